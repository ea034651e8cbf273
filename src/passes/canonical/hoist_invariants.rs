//! Moves scalar ops that may as well be executed where they were not out of loops.
//!
//! Array ops stay: hoisting them costs registers for the whole loop.
use crate::error::Result;
use crate::kernel_ir::class::Control;
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let body = kernel.body;
    let mut pass = Hoist {
        kernel,
        depth: SecondaryMap::new(),
    };
    pass.region(body, 0);
    Ok(())
}

struct Hoist<'a> {
    kernel: &'a mut Kernel,
    /// How many loops a value is defined in.
    depth: SecondaryMap<Value, u32>,
}

impl Hoist<'_> {
    /// Hoists inside of `region`, which `loops` loops are around; gives the ops that may leave the innermost of them, in order.
    fn region(&mut self, region: Region, loops: u32) -> Vec<Op> {
        for i in 0..self.kernel.regions[region].params.len() {
            let p = self.kernel.regions[region].params[i];
            self.depth[p] = loops;
        }
        let group = self.kernel.regions[region].group;
        let mut leaving = vec![];
        let ops = std::mem::take(&mut self.kernel.regions[region].ops);
        let mut kept = vec![];
        for op in ops {
            let is_loop = self.kernel.ops[op].kind.control().is_some_and(Control::is_loop);
            for inner in regions_of(self.kernel, op) {
                if self.kernel.regions[inner].group != group {
                    // A warp's values mean nothing outside of its region.
                    let out = self.region(inner, loops + 1);
                    self.kernel.regions[inner].ops.splice(0..0, out);
                    continue;
                }
                for op in self.region(inner, if is_loop { loops + 1 } else { loops }) {
                    // What leaves the inner loop lands here; if it can go further, so it does.
                    self.place(op, loops, &mut kept, &mut leaving);
                }
            }
            self.place(op, loops, &mut kept, &mut leaving);
        }
        self.kernel.regions[region].ops = kept;
        leaving
    }

    fn place(&mut self, op: Op, loops: u32, kept: &mut Vec<Op>, leaving: &mut Vec<Op>) {
        let data = &self.kernel.ops[op];
        let scalar = data.kind.is_speculatable() && data.results.iter().all(|&v| self.kernel.ty(v).is_scalar());
        let mut arrays = false;
        let mut needs = 0;
        visit::for_each_value(&data.kind, &mut |v| {
            arrays |= !self.kernel.ty(v).is_scalar();
            needs = needs.max(self.depth[v]);
        });
        let leaves = scalar && !arrays && loops > 0 && needs < loops;
        for i in 0..self.kernel.ops[op].results.len() {
            let v = self.kernel.ops[op].results[i];
            self.depth[v] = if leaves { needs } else { loops };
        }
        if leaves { leaving.push(op) } else { kept.push(op) }
    }
}
