//! Steps of a group: ops with effects, regions, waits.
use super::memory::Outside;
use super::values::{flat, product};
use super::{Agent, Bits, Frame, Machine, Next, Outcome, Role, Waiting, invalid, numbers, unsupported};
use smalt::dtype::DType;
use smalt::kernel_ir::*;
use std::rc::Rc;

fn set_new(_: u64, new: u64) -> Outcome<u64> {
    Ok(new)
}

impl Machine<'_> {
    /// Runs the group's next op, or ends its region.
    pub fn step(&mut self, a: usize) -> Outcome<Next> {
        let kernel = self.kernel;
        let frame = self.agents[a]
            .stack
            .last()
            .expect("a group that is not done has a region");
        let region = &kernel.regions[frame.region];
        let Some(&op) = region.ops.get(frame.next) else {
            return self.end_region(a);
        };
        self.spend(0)?;
        let OpData { kind, results, .. } = &kernel.ops[op];
        // Regions that are entered, and waits that are over, are behind the op.
        self.agents[a].stack.last_mut().expect("as above").next += 1;
        if let Some(values) = self.pure(a, kind, results)? {
            for (v, bits) in results.iter().zip(values) {
                self.set(a, *v, bits)?;
            }
            return Ok(Next::Goes);
        }
        let next = self.effect(a, op, kind, results)?;
        if let Next::Waits = next {
            let agent = &mut self.agents[a];
            if let Some(Waiting::Again) = agent.waiting {
                agent.stack.last_mut().expect("as above").next -= 1;
            }
        }
        Ok(next)
    }

    fn again(&mut self, a: usize) -> Outcome<Next> {
        self.agents[a].waiting = Some(Waiting::Again);
        Ok(Next::Waits)
    }

    fn enter(&mut self, a: usize, op: Op, region: Region, role: Role, params: &[Bits]) -> Outcome<Next> {
        let kernel = self.kernel;
        for (p, bits) in kernel.regions[region].params.iter().zip(params) {
            self.set(a, *p, bits.clone())?;
        }
        self.agents[a].stack.push(Frame {
            region,
            next: 0,
            op: Some(op),
            role,
        });
        Ok(Next::Goes)
    }

    fn get_all(&self, a: usize, values: &[Value]) -> Outcome<Vec<Bits>> {
        values.iter().map(|v| self.get(a, *v)).collect()
    }

    fn set_all(&mut self, a: usize, values: &[Value], bits: Vec<Bits>) -> Outcome<()> {
        values.iter().zip(bits).try_for_each(|(v, bits)| self.set(a, *v, bits))
    }

    // -------------------------------------------------------- regions
    fn end_region(&mut self, a: usize) -> Outcome<Next> {
        let kernel = self.kernel;
        let frame = self.agents[a].stack.pop().expect("a region that ends");
        let mut yielded = self.get_all(a, &kernel.regions[frame.region].results)?;
        let Some(op) = frame.op else {
            self.agents[a].done = true;
            if matches!(frame.role, Role::Warp) {
                self.warp_is_done(a, yielded)?;
            }
            return Ok(Next::Goes);
        };
        let OpData { kind, results, .. } = &kernel.ops[op];
        match (frame.role, kind) {
            (
                Role::For { i, last, mut stacked },
                OpKind::For {
                    inits,
                    reverse,
                    lower,
                    xs,
                    body,
                    ..
                },
            ) => {
                for (list, slice) in stacked.iter_mut().zip(yielded.split_off(inits.len())) {
                    list.push(slice);
                }
                if i != last {
                    let i = if *reverse { i - 1 } else { i + 1 };
                    let role = Role::For { i, last, stacked };
                    return self.enter_iteration(a, op, (*lower, i), yielded, xs, *body, role);
                }
                yielded.extend(stack(stacked, *reverse));
                self.set_all(a, results, yielded)?;
            }
            (Role::Condition, OpKind::While { body, .. }) => {
                let again = yielded.remove(0)[0] & 1 == 1;
                if again {
                    return self.enter(a, op, *body, Role::Body, &yielded);
                }
                self.set_all(a, results, yielded)?;
            }
            (Role::Body, OpKind::While { cond, .. }) => return self.enter(a, op, *cond, Role::Condition, &yielded),
            _ => self.set_all(a, results, yielded)?,
        }
        Ok(Next::Goes)
    }

    fn enter_iteration(
        &mut self,
        a: usize,
        op: Op,
        (lower, i): (Value, i128),
        mut params: Vec<Bits>,
        xs: &[Value],
        body: Region,
        role: Role,
    ) -> Outcome<Next> {
        let dtype = self.kernel.ty(lower).dtype();
        let step = (i - self.int(a, lower)?) as usize;
        params.insert(0, Rc::new(vec![numbers::from_int(dtype, i)]));
        for x in xs {
            let n = num_elements(&self.kernel.ty(*x).shape()[1..]) as usize;
            let whole = self.get(a, *x)?;
            match whole.get(step * n..(step + 1) * n) {
                Some(slice) => params.push(Rc::new(slice.to_vec())),
                None => return invalid("a loop longer than the arrays that it takes slices of"),
            }
        }
        self.enter(a, op, body, role, &params)
    }

    /// What a warp yields goes to its place in the warpgroup's values, which have one of each warp.
    fn warp_is_done(&mut self, w: usize, yielded: Vec<Bits>) -> Outcome<()> {
        let (Some(parent), Some(warp)) = (self.agents[w].parent, self.agents[w].warp) else {
            return Ok(());
        };
        let frame = self.agents[parent].stack.last().expect("it is in a region");
        let op = self.kernel.regions[frame.region].ops[frame.next - 1];
        for (v, bits) in self.kernel.ops[op].results.iter().zip(yielded) {
            let place = &mut self.agents[parent].env[v.as_u32() as usize];
            let of_warps = Rc::make_mut(place.get_or_insert_default());
            of_warps.resize(4, 0);
            of_warps[warp as usize] = bits[0];
        }
        Ok(())
    }

    fn warp_map(&mut self, a: usize, inits: &[Value], body: Region) -> Outcome<Next> {
        let kernel = self.kernel;
        for warp in 0..4 {
            let Agent {
                block,
                warpgroup,
                env,
                own,
                ..
            } = &self.agents[a];
            let child = Agent {
                block: *block,
                warpgroup: *warpgroup,
                warp: Some(warp),
                env: env.clone(),
                own: own.clone(),
                stack: vec![Frame {
                    region: body,
                    next: 0,
                    op: None,
                    role: Role::Warp,
                }],
                parent: Some(a),
                waiting: None,
                done: false,
            };
            // In the place of the one that ran the warp before.
            let before = self
                .agents
                .iter()
                .position(|w| w.parent == Some(a) && w.warp == Some(warp));
            let w = before.unwrap_or(self.agents.len());
            match before {
                Some(w) => self.agents[w] = child,
                None => self.agents.push(child),
            }
            for (p, init) in kernel.regions[body].params.iter().zip(inits) {
                let bits = self.get(a, *init)?;
                let own = bits.get(warp as usize).or(bits.first()).copied();
                self.set(w, *p, Rc::new(own.into_iter().collect()))?;
            }
        }
        self.agents[a].waiting = Some(Waiting::Warps);
        Ok(Next::Waits)
    }

    /// All warpgroups of the block have come, and go on; the last one does `then` before.
    fn rendezvous(&mut self, a: usize, then: impl FnOnce(&mut Self) -> Outcome<()>) -> Outcome<Next> {
        let block = self.agents[a].block;
        let n = self.blocks[block].rendezvous;
        self.blocks[block].arrived += 1;
        if self.blocks[block].arrived == self.kernel.num_warpgroups {
            then(self)?;
            self.blocks[block].arrived = 0;
            self.blocks[block].rendezvous += 1;
            return Ok(Next::Goes);
        }
        self.agents[a].waiting = Some(Waiting::Rendezvous(n));
        Ok(Next::Waits)
    }

    /// Allocations of a scope, as they are at first. Barriers and members of unions have theirs where they are used.
    fn allocate(&mut self, a: usize, allocs: &[Alloc], shared: bool) -> Outcome<()> {
        let kernel = self.kernel;
        for &alloc in allocs {
            let data = &kernel.allocs[alloc];
            if data.within.is_some() || data.is_barrier() || self.global.contains_key(&alloc) {
                continue;
            }
            let memory = self.fresh(data)?;
            let home = self.home(memory);
            match shared {
                true => self.blocks[self.agents[a].block].shared.insert(alloc, home),
                false => self.agents[a].own.insert(alloc, home),
            };
        }
        Ok(())
    }

    // -------------------------------------------------------- ops
    fn axis_index(&self, a: usize, axis: Axis) -> u64 {
        let agent = &self.agents[a];
        let block = &self.blocks[agent.block];
        match self.kernel.axes[axis].kind {
            AxisKind::Grid(i) => block.grid[i as usize],
            AxisKind::Cluster(i) => block.cluster[i as usize],
            AxisKind::Thread => u64::from(agent.warpgroup),
            AxisKind::Warp => u64::from(agent.warp.unwrap_or(0)),
            AxisKind::DeviceMesh(_) => 0,
        }
    }

    /// How often the group has waited for a barrier. A warpgroup that waits does so with all of its warps.
    fn waited(&mut self, a: usize, alloc: Alloc, index: usize) -> Vec<&mut u64> {
        let Agent {
            block, warpgroup, warp, ..
        } = self.agents[a];
        let warps = match warp {
            Some(warp) => warp..warp + 1,
            None => 0..4,
        };
        for warp in warps.clone() {
            self.waits
                .entry((alloc, index as u64, block, warpgroup, warp))
                .or_insert(0);
        }
        let mut found = vec![];
        for (key, n) in &mut self.waits {
            if (key.0, key.1, key.2, key.3) == (alloc, index as u64, block, warpgroup) && warps.contains(&key.4) {
                found.push(n);
            }
        }
        found
    }

    /// Whether the phase that the group waits for next is over.
    fn is_over(&mut self, a: usize, barrier: &RefUse, phases: Option<Value>) -> Outcome<((usize, usize), bool)> {
        let at = self.single(a, barrier)?;
        let parity = match phases {
            Some(phases) => (self.get(a, phases)?[0] >> at.1) & 1,
            None => {
                let counts = self.waited(a, barrier.alloc, at.1);
                let first = *counts[0];
                if counts.iter().any(|n| **n != first) {
                    return unsupported("warps of a warpgroup that have waited differently, and together");
                }
                first & 1
            }
        };
        Ok((at, self.barrier(at).phases & 1 != parity))
    }

    /// The group has waited: what becomes of its phases.
    fn next_phases(
        &mut self,
        a: usize,
        barrier: &RefUse,
        index: usize,
        phases: Option<Value>,
    ) -> Outcome<Option<Bits>> {
        match phases {
            Some(phases) => Ok(Some(Rc::new(vec![self.get(a, phases)?[0] ^ 1 << index]))),
            None => {
                self.waited(a, barrier.alloc, index).into_iter().for_each(|n| *n += 1);
                Ok(None)
            }
        }
    }

    /// The elements of an accumulator, and where they are if it is in memory.
    fn accumulator(&mut self, a: usize, acc: &AccUse) -> Outcome<Vec<u64>> {
        match acc {
            AccUse::Ref(r) => self.load(a, r, Outside::Refused),
            AccUse::Value(v) => Ok(self.get(a, *v)?.to_vec()),
            AccUse::Part { acc, at, shape } => {
                let (whole, elements) = (self.kernel.ty(*acc).shape(), self.get(a, *acc)?);
                let mut part = vec![];
                super::memory::for_each_index(shape, |i| {
                    part.push(elements[flat(whole, &[at[0] + i[0], at[1] + i[1]])])
                });
                Ok(part)
            }
        }
    }

    fn wgmma(&mut self, a: usize, acc: &AccUse, left: &MmaOperand, right: &RefUse, results: &[Value]) -> Outcome<()> {
        let kernel = self.kernel;
        let mut sums = self.accumulator(a, acc)?;
        let sum = match acc {
            AccUse::Ref(r) => r.dtype().expect("data"),
            AccUse::Value(v) | AccUse::Part { acc: v, .. } => kernel.ty(*v).dtype(),
        };
        let (elements, shape) = match left {
            MmaOperand::Smem(r) => (self.load(a, r, Outside::Refused)?, r.shape.to_vec()),
            MmaOperand::Registers(v) => (self.get(a, *v)?.to_vec(), kernel.ty(*v).shape().to_vec()),
        };
        let b = self.load(a, right, Outside::Refused)?;
        let ([m, k], [_, n]) = (shape.as_slice(), right.shape.as_slice()) else {
            return unsupported("wgmma of other than matrices");
        };
        let (m, n, k) = (*m as usize, *n as usize, *k as usize);
        self.spend((m * n * k) as u64)?;
        let operand = right.dtype().expect("data");
        product(
            &mut sums,
            sum,
            operand,
            [m, n, k],
            &elements,
            |k_at, j| b[k_at * n + j],
            true,
        );
        match acc {
            AccUse::Ref(r) => {
                self.update(a, r, Outside::Refused, &sums, &set_new)?;
            }
            AccUse::Value(_) => self.set(a, results[0], Rc::new(sums))?,
            AccUse::Part { acc, at, shape } => {
                let whole = kernel.ty(*acc).shape();
                let mut all = self.get(a, *acc)?.to_vec();
                let mut sums = sums.into_iter();
                super::memory::for_each_index(shape, |i| {
                    all[flat(whole, &[at[0] + i[0], at[1] + i[1]])] = sums.next().expect("an element");
                });
                self.set(a, results[0], Rc::new(all))?;
            }
        }
        Ok(())
    }

    fn dot_in_place(
        &mut self,
        a: usize,
        acc: Option<Value>,
        left: &MmaOperand,
        right: &MmaOperand,
        result: Value,
    ) -> Outcome<()> {
        let kernel = self.kernel;
        let mut operand = |operand: &MmaOperand| {
            Ok(match operand {
                MmaOperand::Smem(r) => (
                    self.load(a, r, Outside::Refused)?,
                    r.shape.to_vec(),
                    r.dtype().expect("data"),
                ),
                MmaOperand::Registers(v) => {
                    let ty = kernel.ty(*v);
                    (self.get(a, *v)?.to_vec(), ty.shape().to_vec(), ty.dtype())
                }
            })
        };
        let ((x, shape, dtype), (y, columns, _)) = (operand(left)?, operand(right)?);
        let ([m, k], [n, _]) = (shape.as_slice(), columns.as_slice()) else {
            return unsupported("a product of other than matrices");
        };
        let (m, n, k) = (*m as usize, *n as usize, *k as usize);
        self.spend((m * n * k) as u64)?;
        let mut sums = match acc {
            Some(acc) => self.get(a, acc)?.to_vec(),
            None => vec![0; m * n],
        };
        let sum = kernel.ty(result).dtype();
        product(&mut sums, sum, dtype, [m, n, k], &x, |k_at, j| y[j * k + k_at], true);
        self.set(a, result, Rc::new(sums))
    }

    /// Where the elements at such indices are; none where a mask is false.
    fn positions(
        &mut self,
        a: usize,
        r: &RefUse,
        at: &[Value],
        mask: Option<Value>,
    ) -> Outcome<(super::Home, Vec<Option<i64>>)> {
        let mask = mask.map(|mask| self.get(a, mask)).transpose()?;
        let (home, view) = self.view(a, r, Outside::Refused)?;
        let list = view.list()?;
        let indices = self.get_all(a, at)?;
        let n = indices.first().map_or(1, |i| i.len());
        let mut positions = vec![];
        for i in 0..n {
            if mask.as_ref().is_some_and(|mask| mask[i] == 0) {
                positions.push(None);
                continue;
            }
            let mut index = vec![];
            for ((v, bits), extent) in at.iter().zip(&indices).zip(&view.shape) {
                let x = numbers::to_int(self.kernel.ty(*v).dtype(), bits[i]);
                match u64::try_from(x).ok().filter(|x| x < extent) {
                    Some(x) => index.push(x),
                    None => return invalid(format!("the index {x} of {extent}")),
                }
            }
            positions.push(list[flat(&view.shape, &index)]);
        }
        Ok((home, positions))
    }

    /// Where the elements of a view are for which a mask is true.
    fn masked(&mut self, a: usize, r: &RefUse, mask: Value) -> Outcome<(super::Home, Vec<Option<i64>>)> {
        let mask = self.get(a, mask)?;
        let (home, view) = self.view(a, r, Outside::Nothing)?;
        let positions = view.list()?;
        let chosen = positions
            .into_iter()
            .zip(mask.iter())
            .map(|(p, m)| p.filter(|_| *m != 0));
        Ok((home, chosen.collect()))
    }

    fn signal(&mut self, a: usize, semaphore: &RefUse, value: Value) -> Outcome<()> {
        let n = self.int(a, value)? as i32;
        let at = self.single(a, semaphore)?;
        let semaphore = self.semaphore(at);
        *semaphore = semaphore.wrapping_add(n);
        Ok(())
    }

    fn effect(&mut self, a: usize, op: Op, kind: &OpKind, results: &[Value]) -> Outcome<Next> {
        let kernel = self.kernel;
        match kind {
            OpKind::Constant(_)
            | OpKind::Unary { .. }
            | OpKind::Binary { .. }
            | OpKind::Compare { .. }
            | OpKind::Select { .. }
            | OpKind::Clamp { .. }
            | OpKind::IntegerPow { .. }
            | OpKind::Convert { .. }
            | OpKind::Bitcast { .. }
            | OpKind::ReducePrecision { .. }
            | OpKind::Iota { .. }
            | OpKind::Broadcast { .. }
            | OpKind::Reshape { .. }
            | OpKind::Transpose { .. }
            | OpKind::Slice { .. }
            | OpKind::DynamicSlice { .. }
            | OpKind::DynamicUpdateSlice { .. }
            | OpKind::Concat { .. }
            | OpKind::Pad { .. }
            | OpKind::Reverse { .. }
            | OpKind::Reduce { .. }
            | OpKind::ArgReduce { .. }
            | OpKind::Cumulative { .. }
            | OpKind::Take { .. }
            | OpKind::Put { .. }
            | OpKind::Sort { .. }
            | OpKind::OptimizationBarrier { .. }
            | OpKind::MultipleOf { .. }
            | OpKind::LayoutCast { .. }
            | OpKind::Relayout { .. }
            | OpKind::Dot { .. } => unreachable!("computed from operands alone"),
            OpKind::AxisIndex { axis } => {
                let index = self.axis_index(a, *axis);
                self.set(a, results[0], Rc::new(vec![index]))?;
            }
            OpKind::Load { src } => {
                let bits = self.load(a, src, Outside::Refused)?;
                self.set(a, results[0], Rc::new(bits))?;
            }
            OpKind::Store { dst, value } | OpKind::Swap { dst, value } => {
                let new = self.get(a, *value)?;
                let old = self.update(a, dst, Outside::Refused, &new, &set_new)?;
                if let [result] = results {
                    self.set(a, *result, Rc::new(old))?;
                }
            }
            OpKind::AtomicUpdate { op, dst, value } => {
                let new = self.get(a, *value)?;
                let dtype = dst.dtype().expect("data");
                let with = |old, new| atomic(*op, dtype, old, new);
                self.update(a, dst, Outside::Refused, &new, &with)?;
            }
            OpKind::LoadMasked { src, mask } => {
                let (home, positions) = self.masked(a, src, *mask)?;
                let nothing = vec![0; positions.len()];
                let old = self.update_at(home, src, &positions, &nothing, &|old, _| Ok(old))?;
                self.set(a, results[0], Rc::new(old))?;
            }
            OpKind::StoreMasked { dst, mask, value } => {
                let new = self.get(a, *value)?;
                let (home, positions) = self.masked(a, dst, *mask)?;
                self.update_at(home, dst, &positions, &new, &set_new)?;
            }
            OpKind::LoadAt { src, at, mask } => {
                let (home, positions) = self.positions(a, src, at, *mask)?;
                let nothing = vec![0; positions.len()];
                let old = self.update_at(home, src, &positions, &nothing, &|old, _| Ok(old))?;
                self.set(a, results[0], Rc::new(old))?;
            }
            OpKind::StoreAt { dst, at, mask, value } => {
                let new = self.get(a, *value)?;
                let (home, positions) = self.positions(a, dst, at, *mask)?;
                self.update_at(home, dst, &positions, &new, &set_new)?;
            }
            OpKind::AtomicUpdateAt { op, dst, at, value } => {
                let new = self.get(a, *value)?;
                let (home, positions) = self.positions(a, dst, at, None)?;
                let dtype = dst.dtype().expect("data");
                self.update_at(home, dst, &positions, &new, &|old, new| atomic(*op, dtype, old, new))?;
            }
            OpKind::CopyGmemToSmem {
                by_threads: _,
                uncounted: _,
                src,
                dst,
                barrier,
                collective_axes: _,
                leader_tracked,
                oob,
                predicate,
            } => {
                if leader_tracked.is_some() {
                    return unsupported("copies that a leader tracks");
                }
                let runs = self.holds(a, *predicate)?;
                if runs {
                    let outside = match oob {
                        OobMode::Zeros | OobMode::Undefined => Outside::Nothing,
                        OobMode::PromiseInBounds => Outside::Refused,
                    };
                    let elements = self.load(a, src, outside)?;
                    self.update(a, dst, Outside::Refused, &elements, &set_new)?;
                }
                if let Some(barrier) = barrier
                    && (runs || !kernel.semantics.false_predicate_suppresses_arrival)
                {
                    let (at, arrivals) = (self.single(a, barrier)?, self.arrivals(barrier));
                    self.barrier(at).arrive(1, arrivals);
                }
            }
            OpKind::CopySmemToGmem {
                by_threads: _,
                src,
                dst,
                reduction,
                commit_group: _,
                predicate,
            } => {
                if self.holds(a, *predicate)? {
                    let elements = self.load(a, src, Outside::Refused)?;
                    let dtype = dst.dtype().expect("data");
                    let with = |old: u64, new: u64| match reduction {
                        None => Ok(new),
                        Some(CopyReduction::Add) => atomic(AtomicOp::Add, dtype, old, new),
                        Some(CopyReduction::Min) => atomic(AtomicOp::Min, dtype, old, new),
                        Some(CopyReduction::Max) => atomic(AtomicOp::Max, dtype, old, new),
                        Some(CopyReduction::And) => atomic(AtomicOp::And, dtype, old, new),
                        Some(CopyReduction::Or) => atomic(AtomicOp::Or, dtype, old, new),
                        Some(CopyReduction::Xor) => atomic(AtomicOp::Xor, dtype, old, new),
                        // To 0 behind the limit; from it, below 0 or above it.
                        Some(CopyReduction::Inc) => Ok(if old >= new { 0 } else { old + 1 }),
                        Some(CopyReduction::Dec) => Ok(if old == 0 || old > new { new } else { old - 1 }),
                    };
                    self.update(a, dst, Outside::Nothing, &elements, &with)?;
                }
            }
            OpKind::AsyncStoreSmem {
                value,
                dst,
                barrier,
                atomic: how,
            } => {
                let new = self.get(a, *value)?;
                let dtype = dst.dtype().expect("data");
                let with = |old, new| match how {
                    Some(op) => atomic(*op, dtype, old, new),
                    None => Ok(new),
                };
                self.update(a, dst, Outside::Refused, &new, &with)?;
                let bytes = dtype.bytes(new.len() as u64).unwrap_or(0) as i64;
                let (at, arrivals) = (self.single(a, barrier)?, self.arrivals(barrier));
                let barrier = self.barrier(at);
                barrier.bytes -= bytes;
                barrier.settle(arrivals);
            }
            OpKind::CommitGroup
            | OpKind::WaitSmemToGmem { .. }
            | OpKind::WaitGmemToSmem { .. }
            | OpKind::Prefetch { .. }
            | OpKind::CommitSmem
            | OpKind::Fence { .. }
            | OpKind::SetMaxRegisters { .. }
            | OpKind::Delay { .. }
            | OpKind::GridDependency { .. }
            | OpKind::ProfileMark { .. }
            | OpKind::PrintLayout { .. } => {}
            OpKind::BarrierArrive { barrier, predicate } => {
                if self.holds(a, *predicate)? {
                    self.arrive(a, barrier)?;
                }
            }
            OpKind::BarrierWait { barrier, phases } => {
                let (at, over) = self.is_over(a, barrier, *phases)?;
                if !over {
                    return self.again(a);
                }
                if let Some(next) = self.next_phases(a, barrier, at.1, *phases)? {
                    self.set(a, results[0], next)?;
                }
            }
            OpKind::BarrierTest { barrier, phases } => {
                let (at, over) = self.is_over(a, barrier, *phases)?;
                self.set(a, results[0], Rc::new(vec![u64::from(over)]))?;
                match (over, phases) {
                    (true, _) => {
                        if let Some(next) = self.next_phases(a, barrier, at.1, *phases)? {
                            self.set(a, results[1], next)?;
                        }
                    }
                    (false, Some(phases)) => {
                        let same = self.get(a, *phases)?;
                        self.set(a, results[1], same)?;
                    }
                    (false, None) => {}
                }
                return Ok(if over { Next::Goes } else { Next::Yields });
            }
            OpKind::MbarrierArrive { barrier, count, by, .. } => {
                let count = self.int(a, *count)? as u64;
                let warps = if self.agents[a].warp.is_some() { 1 } else { 4 };
                let n = match by {
                    Arriving::One => count,
                    Arriving::Warps => warps * count,
                    Arriving::All => 32 * warps * count,
                };
                let (at, arrivals) = (self.single(a, barrier)?, self.arrivals(barrier));
                self.barrier(at).arrive(n, arrivals);
            }
            OpKind::MbarrierExpect {
                barrier,
                bytes,
                arrives,
            } => {
                let bytes = self.int(a, *bytes)? as i64;
                let (at, arrivals) = (self.single(a, barrier)?, self.arrivals(barrier));
                let barrier = self.barrier(at);
                barrier.bytes += bytes;
                barrier.arrive(u64::from(*arrives), arrivals);
            }
            OpKind::MbarrierWait { barrier, phase, .. } => {
                let parity = self.get(a, *phase)?[0] & 1;
                let at = self.single(a, barrier)?;
                if self.barrier(at).phases & 1 == parity {
                    return self.again(a);
                }
            }
            OpKind::Sync { group } => {
                if *group == Group::Block {
                    if self.agents[a].warp.is_some() {
                        return unsupported("a barrier of the block in a warp region");
                    }
                    return self.rendezvous(a, |_| Ok(()));
                }
            }
            OpKind::SemaphoreSignal { semaphore, value, .. } => self.signal(a, semaphore, *value)?,
            OpKind::SemaphoreSignalParallel { signals, .. } => {
                for (semaphore, value) in signals {
                    self.signal(a, semaphore, *value)?;
                }
            }
            OpKind::SemaphoreWait {
                semaphore,
                value,
                decrement,
                ..
            } => {
                let n = self.int(a, *value)? as i32;
                let at = self.single(a, semaphore)?;
                let semaphore = self.semaphore(at);
                if *semaphore < n {
                    return self.again(a);
                }
                if *decrement {
                    *semaphore -= n;
                }
            }
            OpKind::SemaphoreRead { semaphore } => {
                let at = self.single(a, semaphore)?;
                let now = *self.semaphore(at) as u32;
                self.set(a, results[0], Rc::new(vec![u64::from(now)]))?;
                return Ok(Next::Yields);
            }
            OpKind::AccInit { init } => {
                let bits = match init {
                    Some(init) => self.get(a, *init)?,
                    None => Rc::new(vec![0; num_elements(kernel.ty(results[0]).shape()) as usize]),
                };
                self.set(a, results[0], bits)?;
            }
            OpKind::Wgmma { acc, a: left, b } => self.wgmma(a, acc, left, b, results)?,
            OpKind::DotInPlace { acc, a: left, b: right } => self.dot_in_place(a, *acc, left, right, results[0])?,
            OpKind::TmemLoad { .. }
            | OpKind::TmemStore { .. }
            | OpKind::TmemWait { .. }
            | OpKind::TmemCopy { .. }
            | OpKind::Tcgen05Mma { .. }
            | OpKind::Tcgen05Commit { .. } => return invalid(format!("`{}` is not interpreted", kind.name())),
            OpKind::WgmmaWait { n: _, accs } => {
                let bits = self.get_all(a, accs)?;
                self.set_all(a, results, bits)?;
            }
            OpKind::AccRead { acc } => {
                let bits = Rc::new(self.accumulator(a, acc)?);
                results.iter().try_for_each(|v| self.set(a, *v, bits.clone()))?;
            }
            OpKind::For {
                lower,
                upper,
                inits,
                xs,
                reverse,
                unroll: _,
                body,
            } => {
                let (first, end) = (self.int(a, *lower)?, self.int(a, *upper)?);
                let inits = self.get_all(a, inits)?;
                let stacked = vec![vec![]; results.len() - inits.len()];
                if end <= first {
                    let none = stacked.len();
                    let empty = inits.into_iter().chain((0..none).map(|_| Rc::new(vec![])));
                    self.set_all(a, results, empty.collect())?;
                    return Ok(Next::Goes);
                }
                let (i, last) = if *reverse { (end - 1, first) } else { (first, end - 1) };
                let role = Role::For { i, last, stacked };
                return self.enter_iteration(a, op, (*lower, i), inits, xs, *body, role);
            }
            OpKind::While { inits, cond, .. } => {
                let inits = self.get_all(a, inits)?;
                return self.enter(a, op, *cond, Role::Condition, &inits);
            }
            OpKind::Switch { selector, arms } => {
                let which = self.int(a, *selector)?;
                match usize::try_from(which).ok().and_then(|w| arms.get(w)) {
                    Some(arm) => return self.enter(a, op, *arm, Role::Once, &[]),
                    None => return invalid(format!("arm {which} of {}", arms.len())),
                }
            }
            OpKind::Scope {
                allocs,
                collective,
                body,
            } => {
                let together = *collective && self.agents[a].warp.is_none();
                let next = match together {
                    true => self.rendezvous(a, |this| this.allocate(a, allocs, true))?,
                    false => {
                        let shared = kernel.num_warpgroups == 1 && self.agents[a].warp.is_none();
                        self.allocate(a, allocs, shared)?;
                        Next::Goes
                    }
                };
                self.enter(a, op, *body, Role::Once, &[])?;
                return Ok(next);
            }
            OpKind::WarpMap { axis: _, inits, body } => return self.warp_map(a, inits, *body),
            OpKind::InlinePtx { .. } => return unsupported("inline_ptx"),
            OpKind::DebugPrint { format, args, then } => {
                let args = self.get_all(a, args)?;
                self.prints.push(format!("{format:?} {args:x?}"));
                if *then == AfterPrint::Fails {
                    return invalid("the kernel says that it fails");
                }
            }
        }
        Ok(Next::Goes)
    }
}

fn atomic(op: AtomicOp, dtype: DType, old: u64, new: u64) -> Outcome<u64> {
    match numbers::atomic(op, dtype, old, new) {
        Some(x) => Ok(x),
        None => unsupported(format!("atomic {} of {dtype}", op.name())),
    }
}

/// Slices one behind another, those of a loop that runs downwards the last first.
fn stack(stacked: Vec<Vec<Bits>>, reverse: bool) -> impl Iterator<Item = Bits> {
    stacked.into_iter().map(move |mut slices| {
        if reverse {
            slices.reverse();
        }
        Rc::new(slices.iter().flat_map(|s| s.iter().copied()).collect::<Vec<u64>>())
    })
}
