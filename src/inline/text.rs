//! A text as lowering emits it: read, or as it is.
use super::emit::emit;
use super::parse::{Interface, Limits, parse};
use super::program::Program;
use super::unchecked::Unchecked;
use crate::error::Result;
use crate::kernel_ir::InlinePtx;
use crate::ptx::build::{Builder, Operand};

/// What is emitted for a text.
pub enum Text {
    Read(Program),
    Unchecked(Unchecked),
}

impl Text {
    /// `barriers`: the named barriers that it may use by numbers in registers, where it does not say.
    pub fn new(code: &InlinePtx, interface: &Interface, results: usize, barriers: (u32, u32)) -> Result<Text> {
        if let Some(isa) = code.unchecked {
            return Ok(Text::Unchecked(Unchecked::new(code, isa, interface, results)?));
        }
        let mut program = parse(&code.text, interface, results, Limits::of(code))?;
        program.barriers = code.barriers.unwrap_or(barriers);
        Ok(Text::Read(program))
    }

    /// Emits it for these operands, and gives its results.
    pub fn emit(&self, b: &mut Builder, operands: &[Operand]) -> Vec<Operand> {
        match self {
            Text::Read(program) => emit(b, program, operands, false),
            Text::Unchecked(text) => text.emit(b, operands),
        }
    }
}
