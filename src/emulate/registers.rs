//! Which rows registers live in.
use crate::error::{Error, Result};
use crate::ptx::Flat;
use crate::ptx::flat::Reg;
use crate::ptx::operand::Class;

/// Rows of the register file.
pub struct Allocation {
    /// First row of each class.
    base: [u32; 4],
    pub rows: usize,
    pub predicates: usize,
}

impl Allocation {
    /// The first row of a register, or the number of a predicate.
    pub fn row(&self, r: Reg) -> u16 {
        let width = if r.class == Class::B64 { 2 } else { 1 };
        (self.base[r.class as usize] + width * r.index) as u16
    }
}

pub fn run(flat: &Flat) -> Result<Allocation> {
    let [predicates, b16, b32, b64] = flat.registers;
    let rows = b16 as usize + b32 as usize + 2 * b64 as usize;
    if rows >= 0x8000 || predicates >= 0xfff0 {
        return Err(Error::unsupported(
            "a kernel with more than 32767 registers in the emulator",
        ));
    }
    Ok(Allocation {
        base: [0, 0, b16, b16 + b32],
        rows,
        predicates: predicates as usize,
    })
}
