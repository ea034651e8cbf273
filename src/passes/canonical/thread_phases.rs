//! Makes barrier phases data.
//!
//! Each barrier allocation has one word for each group that waits on it, a bit per barrier: the parity of the phase that the
//! group waits for next. The words are 0 at the kernel's start and live as long as the kernel, whatever scopes, loops and arms
//! the barrier is allocated and waited on in; a wait flips its bit. A group that waits inside of warp regions is each warp.
use super::thread_state::{Threaded, Touched, find_touched, thread};
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
use rustc_hash::FxHashMap;

/// Bits in a word.
const MAX_BARRIERS: u64 = 32;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let body = kernel.body;
    let mut touched = Touched::default();
    find_touched(
        kernel,
        body,
        &|kernel, op, out| {
            if let OpKind::BarrierWait { barrier, .. } | OpKind::BarrierTest { barrier, .. } = &kernel.ops[op].kind {
                out.push(barrier.alloc);
            }
        },
        &mut touched,
    );
    let mut by_warp = vec![];
    find_warps(kernel, body, &touched, &mut by_warp);
    let mut words = FxHashMap::default();
    // The words are defined first of all.
    let ops = std::mem::take(&mut kernel.regions[body].ops);
    for &alloc in &touched[&body] {
        let data = &kernel.allocs[alloc];
        if num_elements(&data.shape) > MAX_BARRIERS {
            return Err(
                Error::unsupported(format!("an array of {} barriers", num_elements(&data.shape)))
                    .at(data.loc)
                    .expected(format!("at most {MAX_BARRIERS} barriers in an array"))
                    .remedy("use several barrier arrays"),
            );
        }
        let word = kernel.append_int(body, DType::U32, 0, Loc::CALL_SITE);
        kernel.values[word].group = if by_warp.contains(&alloc) {
            Group::Warp
        } else {
            Group::Warpgroup
        };
        words.insert(alloc, word);
    }
    kernel.regions[body].ops.extend(ops);
    ThreadPhases { kernel, touched, words }.region(body)
}

/// The barriers that warps wait on by themselves.
fn find_warps(kernel: &Kernel, region: Region, touched: &Touched, out: &mut Vec<Alloc>) {
    for &op in &kernel.regions[region].ops {
        for inner in regions_of(kernel, op) {
            if kernel.regions[inner].group == Group::Warp {
                out.extend_from_slice(&touched[&inner]);
            } else {
                find_warps(kernel, inner, touched, out);
            }
        }
    }
}

struct ThreadPhases<'a> {
    kernel: &'a mut Kernel,
    touched: Touched,
    words: FxHashMap<Alloc, Value>,
}

impl Threaded for ThreadPhases<'_> {
    fn kernel(&mut self) -> &mut Kernel {
        self.kernel
    }

    fn get(&mut self, var: Alloc) -> Value {
        self.words[&var]
    }

    fn set(&mut self, var: Alloc, v: Value) {
        self.words.insert(var, v);
    }

    fn region(&mut self, region: Region) -> Result<()> {
        for i in 0..self.kernel.regions[region].ops.len() {
            let op = self.kernel.regions[region].ops[i];
            if let OpKind::BarrierWait { barrier, phases } | OpKind::BarrierTest { barrier, phases } =
                &mut self.kernel.ops[op].kind
            {
                let alloc = barrier.alloc;
                let word = self.words[&alloc];
                *phases = Some(word);
                let group = self.kernel.values[word].group;
                let next = self.kernel.new_value(Type::Scalar(DType::U32), group);
                self.kernel.values[next].def = op.into();
                self.kernel.ops[op].results.push(next);
                self.words.insert(alloc, next);
            } else {
                let mut vars = vec![];
                for inner in regions_of(self.kernel, op) {
                    vars.extend_from_slice(&self.touched[&inner]);
                }
                vars.sort_unstable();
                vars.dedup();
                thread(self, op, &vars)?;
            }
        }
        Ok(())
    }
}
