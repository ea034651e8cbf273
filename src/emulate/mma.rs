//! `mma`: what a warp multiplies out of its own registers.
use super::arith::float::Rounding;
use super::arith::mma_sync::{
    Arithmetic, LaneHas, Meaningless, QuadTypes, Sparsity, WideFragment, multiply_add, multiply_add_doubles,
    multiply_add_quads, multiply_add_sparse,
};
use super::arith::tensor_core_fast::Fragment;
use super::check::Hooks;
use super::machine::Machine;
use super::uop::{Body, Flow, Step, Uop, fail};
use super::warp::Warp;
use crate::error::{Error, Fault};

/// An `mma`, as a side table holds it.
#[derive(Clone, Debug)]
pub struct MmaOp {
    pub product: Product,
    pub d: Vec<u16>,
    pub a: Vec<u16>,
    pub b: Vec<u16>,
    pub c: Vec<u16>,
}

/// What is multiplied, and how.
#[derive(Clone, Copy, Debug)]
pub enum Product {
    Dense(Arithmetic),
    /// `meta`: the register with the metadata.
    Sparse {
        arithmetic: Arithmetic,
        sparsity: Sparsity,
        meta: u16,
    },
    Doubles(Rounding),
    /// What lanes have of A and of B.
    Quads([LaneHas; 2], QuadTypes),
}

/// Executes `mma` `aux` of the program's table.
pub struct Mma;
impl<H: Hooks> Body<H> for Mma {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        if w.exec != !0 {
            return fail(Error::new(
                Fault::Execution,
                "mma.sync in code that not all lanes of the warp execute",
            ));
        }
        let program = m.program;
        let op = &program.mma_ops[u.aux as usize];
        if let Product::Doubles(rounding) = op.product {
            let read = |list: &[u16]| list.iter().map(|r| *w.read::<u64>(*r)).collect::<Vec<WideFragment>>();
            let (a, b, mut d) = (read(&op.a), read(&op.b), read(&op.c));
            multiply_add_doubles(rounding, &a, &b, &mut d);
            for (r, value) in op.d.iter().zip(&d) {
                *w.register::<u64>(*r) = *value;
            }
            return Ok(Flow::Next);
        }
        let read = |list: &[u16]| list.iter().map(|r| *w.read::<u32>(*r)).collect::<Vec<Fragment>>();
        let (a, b, c) = (read(&op.a), read(&op.b), read(&op.c));
        let mut d = c;
        match op.product {
            Product::Dense(arithmetic) => multiply_add(&mut m.tensor_core.core, arithmetic, &a, &b, &mut d),
            Product::Sparse {
                arithmetic,
                sparsity,
                meta,
            } => {
                let metadata = *w.read::<u32>(meta);
                if let Err(found) = multiply_add_sparse(arithmetic, sparsity, &metadata, (&a, &b), &mut d) {
                    return fail(meaningless("mma.sp", sparsity, found));
                }
            }
            Product::Quads(has, types) => {
                let (Ok(a), Ok(b)) = (<&[Fragment; 2]>::try_from(&a[..]), <&[Fragment; 2]>::try_from(&b[..])) else {
                    return fail(Error::internal(
                        "mma.m8n8k4 with other than two registers of A and of B",
                    ));
                };
                d = multiply_add_quads(has, types, a, b, &d);
            }
            Product::Doubles(_) => {}
        }
        for (r, value) in op.d.iter().zip(&d) {
            *w.register::<u32>(*r) = *value;
        }
        Ok(Flow::Next)
    }
}

/// PTX ISA, "Sparse matrix storage": other values have no meaning.
pub fn meaningless(what: &str, sparsity: Sparsity, found: Meaningless) -> Error {
    let expected = match (sparsity.whole_pairs, sparsity.ordered) {
        (true, _) => "0b0100 (the first of two elements) or 0b1110 (the second) for each of A's elements",
        (false, true) => "two rising places of four for each two of A's elements, the first in the low bits",
        (false, false) => "two different places of four for each two of A's elements",
    };
    let Meaningless { row, chunk, bits } = found;
    Error::new(Fault::Execution, format!("{what} with metadata that means nothing"))
        .expected(expected)
        .got(format!("0b{bits:04b} of row {row}, chunk {chunk}"))
        .remedy(
            "the lanes that the selector names must have it, in the layout of the PTX ISA's \"Sparse matrix storage\"",
        )
}
