//! A text that has been read.
use crate::ptx::flat::{Guard, Reg};
use crate::ptx::inst::Inst;

/// A label of a text, by number.
pub type Label = usize;

#[derive(Clone, Debug)]
pub enum Statement {
    /// Where branches to a label go on.
    Label(Label),
    /// To a label, in the lanes in which the guard holds.
    Branch { guard: Option<Guard>, to: Label },
    /// An instruction, in the lanes in which the guard holds.
    Inst { guard: Option<Guard>, inst: Inst<Reg> },
}

/// The statements of a text over registers of its own, of which the first are its results and operands, in order.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub statements: Vec<Statement>,
    /// The line of the text that each statement begins on, from 1.
    pub lines: Vec<u32>,
    /// Where each label stands among the statements.
    pub labels: Vec<usize>,
    /// The registers that stand for the results and the operands.
    pub interface: Vec<Reg>,
    /// How many registers there are of each class, by `Class as usize`.
    pub registers: [u32; 4],
    /// The first and last of the named barriers whose numbers may be in registers.
    pub barriers: (u32, u32),
}

impl Program {
    /// A number for a register, below [`Program::count`].
    pub fn index(&self, r: Reg) -> usize {
        let before: u32 = self.registers[..r.class as usize].iter().sum();
        (before + r.index) as usize
    }
    pub fn count(&self) -> usize {
        self.registers.iter().sum::<u32>() as usize
    }
}
