//! Regions, ops and views.
use super::*;

impl Parser<'_> {
    /// `{`, ops, what it yields, `}`.
    pub(super) fn region_into(&mut self, region: Region) -> Result<()> {
        self.expect("{")?;
        let group = self.kernel.regions[region].group;
        loop {
            self.lines();
            if self.eat("}") {
                return Ok(());
            }
            if self.eat("yield") {
                self.kernel.regions[region].results = self.values()?;
                self.lines();
                return self.expect("}");
            }
            let op = self.op(group)?;
            self.kernel.regions[region].ops.push(op);
        }
    }

    fn region(&mut self, group: Group, params: Vec<Value>) -> Result<Region> {
        let region = self.kernel.new_region(group);
        self.kernel.regions[region].params = params;
        self.region_into(region)?;
        Ok(region)
    }

    /// One line; with regions, more.
    fn op(&mut self, group: Group) -> Result<Op> {
        let mut results = vec![];
        if self.rest().starts_with('%') {
            results.push(self.definition(Group::Warpgroup)?);
            while self.eat(",") {
                results.push(self.definition(Group::Warpgroup)?);
            }
            self.expect("=")?;
        }
        self.blanks();
        let start = self.at;
        let name = self.word("an op")?;
        let kind = match self.kind(name, group)? {
            Some(kind) => kind,
            None => return self.error_at(start, format!("there is no op `{name}`")),
        };
        let op = self.kernel.new_op(kind, [], group, Loc::CALL_SITE);
        for &v in &results {
            self.kernel.values[v].def = op.into();
        }
        self.kernel.ops[op].results = results.into();
        if self.eat("//") {
            self.comments(op)?;
        }
        self.blanks();
        match self.rest().starts_with('\n') {
            true => Ok(op),
            false => self.expected("the end of the line"),
        }
    }

    /// `op7; 0..=63, multiple of 8`.
    fn comments(&mut self, op: Op) -> Result<()> {
        // Facts without a name are the one result's.
        let only = self.kernel.ops[op].results.first().copied();
        loop {
            self.blanks();
            if self.rest().starts_with("op") {
                self.at += "op".len();
                self.kernel.ops[op].loc = Loc(self.number()?);
            } else {
                let start = self.at;
                let v = match self.rest().starts_with('%') {
                    true => Some(self.value_id()?),
                    false => only,
                };
                let facts = self.facts()?;
                match v {
                    Some(v) if self.kernel.def_op(v) == Some(op) => self.kernel.values[v].facts = facts,
                    Some(_) | None => return self.error_at(start, "facts of no result of this op"),
                }
            }
            if !self.eat(";") {
                return Ok(());
            }
        }
    }

    fn facts(&mut self) -> Result<Facts> {
        let mut facts = Facts::UNKNOWN;
        if !self.eat("..=") {
            if !self.eat("..") {
                facts.lo = self.number()?;
                self.expect("..")?;
                if !self.eat("=") {
                    return self.multiple(facts);
                }
            } else {
                return self.multiple(facts);
            }
        }
        facts.hi = self.number()?;
        if facts.lo == facts.hi {
            facts = Facts::constant(facts.lo);
        }
        self.multiple(facts)
    }

    fn multiple(&mut self, mut facts: Facts) -> Result<Facts> {
        if self.eat(",") {
            self.expect("multiple")?;
            self.expect("of")?;
            facts.divisor = self.number()?;
        }
        Ok(facts)
    }

    fn comma_values<const N: usize>(&mut self) -> Result<[Value; N]> {
        let start = self.at;
        let values = self.values()?;
        let n = values.len();
        match values.try_into() {
            Ok(values) => Ok(values),
            Err(_) => self.error_at(start, format!("expected {N} operands, got {n}")),
        }
    }

    /// The first, and the others.
    fn first_values(&mut self, least: usize) -> Result<(Value, Vec<Value>)> {
        let start = self.at;
        let mut values = self.values()?;
        if values.len() < least {
            return self.error_at(
                start,
                format!("expected {least} operands or more, got {}", values.len()),
            );
        }
        let others = values.split_off(1);
        Ok((values[0], others))
    }

    fn keyed<T: std::str::FromStr>(&mut self, key: &str) -> Result<T> {
        self.expect(key)?;
        self.number()
    }

    fn keyed_list<T: std::str::FromStr>(&mut self, key: &str) -> Result<Vec<T>> {
        self.expect(key)?;
        self.numbers()
    }

    /// The rest of a line that begins with `name`; `None`: no op has this name.
    fn kind(&mut self, name: &str, group: Group) -> Result<Option<OpKind>> {
        if let Some(op) = UnaryOp::from_name(name) {
            let [a] = self.comma_values()?;
            return Ok(Some(OpKind::Unary { op, a }));
        }
        if let Some(op) = BinaryOp::from_name(name) {
            let [a, b] = self.comma_values()?;
            return Ok(Some(OpKind::Binary { op, a, b }));
        }
        if let Some(op) = CompareOp::from_name(name) {
            let [a, b] = self.comma_values()?;
            return Ok(Some(OpKind::Compare { op, a, b }));
        }
        if let Some(op) = ReduceOp::from_name(name) {
            let [a] = self.comma_values()?;
            let axes = self.keyed_list("axes")?;
            let parallel = match self.eat("parallel") {
                true => {
                    self.expect("(")?;
                    let n = self.number()?;
                    self.expect(")")?;
                    Some(n)
                }
                false => None,
            };
            return Ok(Some(OpKind::Reduce { op, a, axes, parallel }));
        }
        if let Some(op) = CumulativeOp::from_name(name) {
            let [a] = self.comma_values()?;
            let axis = self.keyed("axis")?;
            let reverse = self.eat("reverse");
            return Ok(Some(OpKind::Cumulative { op, a, axis, reverse }));
        }
        if let Some(op) = PutOp::from_name(name) {
            let [a, at, update] = self.comma_values()?;
            let distinct = self.eat("distinct");
            return Ok(Some(OpKind::Put {
                op,
                a,
                at,
                update,
                distinct,
            }));
        }
        let kind = match name {
            "constant" => OpKind::Constant(self.array_constant()?),
            "select" => {
                let (which, cases) = self.first_values(2)?;
                OpKind::Select { which, cases }
            }
            "clamp" => {
                let [lo, x, hi] = self.comma_values()?;
                OpKind::Clamp { lo, x, hi }
            }
            "integer_pow" => {
                let a = self.value()?;
                self.expect(",")?;
                OpKind::IntegerPow { a, n: self.number()? }
            }
            "convert" => OpKind::Convert { a: self.value()? },
            "bitcast" => OpKind::Bitcast { a: self.value()? },
            "reduce_precision" => {
                let a = self.value()?;
                self.blanks();
                let (exponent_bits, mantissa_bits) = (self.prefixed("e")?, self.prefixed("m")?);
                OpKind::ReducePrecision {
                    a,
                    exponent_bits,
                    mantissa_bits,
                }
            }
            "iota" => OpKind::Iota {
                dim: self.keyed("dim")?,
            },
            "broadcast" => {
                let a = self.value()?;
                let dims = self.keyed_list("dims")?;
                OpKind::Broadcast { a, dims }
            }
            "reshape" => OpKind::Reshape { a: self.value()? },
            "transpose" => {
                let a = self.value()?;
                let permutation = self.numbers()?;
                OpKind::Transpose { a, permutation }
            }
            "slice" => {
                let a = self.value()?;
                let starts: Vec<u64> = self.keyed_list("starts")?;
                let strides = match self.eat("strides") {
                    true => self.numbers()?,
                    false => vec![1; starts.len()],
                };
                OpKind::Slice { a, starts, strides }
            }
            "dynamic_slice" => {
                let (a, starts) = self.first_values(1)?;
                OpKind::DynamicSlice { a, starts }
            }
            "dynamic_update_slice" => {
                let (a, mut starts) = self.first_values(2)?;
                let update = starts.remove(0);
                OpKind::DynamicUpdateSlice { a, update, starts }
            }
            "concat" => {
                let parts = self.values()?;
                let dim = self.keyed("dim")?;
                OpKind::Concat { parts, dim }
            }
            "pad" => {
                let [a, value] = self.comma_values()?;
                let (low, high) = (self.keyed_list("low")?, self.keyed_list("high")?);
                let interior = self.keyed_list("interior")?;
                OpKind::Pad {
                    a,
                    value,
                    low,
                    high,
                    interior,
                }
            }
            "reverse" => {
                let a = self.value()?;
                let dims = self.keyed_list("dims")?;
                OpKind::Reverse { a, dims }
            }
            "argmax" | "argmin" => {
                let op = match name {
                    "argmax" => ArgReduceOp::ArgMax,
                    _ => ArgReduceOp::ArgMin,
                };
                let a = self.value()?;
                let axis = self.keyed("axis")?;
                OpKind::ArgReduce { op, a, axis }
            }
            "take" => {
                let [a, at, fill] = self.comma_values()?;
                OpKind::Take { a, at, fill }
            }
            "sort" => {
                let keys = self.values()?;
                let axis = self.keyed("axis")?;
                let first = self.keyed("first")?;
                let indexed = self.eat("indexed");
                OpKind::Sort {
                    keys,
                    axis,
                    indexed,
                    first,
                }
            }
            "optimization_barrier" => OpKind::OptimizationBarrier { values: self.values()? },
            "multiple_of" => {
                let a = self.value()?;
                self.expect(",")?;
                let divisor = self.number()?;
                OpKind::MultipleOf { a, divisor }
            }
            "layout_cast" => {
                let a = self.value()?;
                let layout = self.layout()?;
                OpKind::LayoutCast { a, layout }
            }
            "relayout" => OpKind::Relayout { a: self.value()? },
            "axis_index" => OpKind::AxisIndex { axis: self.axis()? },
            "load" => OpKind::Load { src: self.reference()? },
            "store" => {
                let (dst, value) = self.stored()?;
                OpKind::Store { dst, value }
            }
            "swap" => {
                let (dst, value) = self.stored()?;
                OpKind::Swap { dst, value }
            }
            "atomic_update" => {
                let op = self.name("atomic operation", AtomicOp::from_name)?;
                let (dst, value) = self.stored()?;
                OpKind::AtomicUpdate { op, dst, value }
            }
            "load_masked" => {
                let src = self.reference()?;
                self.expect("where")?;
                let mask = self.value()?;
                OpKind::LoadMasked { src, mask }
            }
            "store_masked" => {
                let dst = self.reference()?;
                self.expect("where")?;
                let mask = self.value()?;
                self.expect("<-")?;
                let value = self.value()?;
                OpKind::StoreMasked { dst, mask, value }
            }
            "load_at" => {
                let src = self.reference()?;
                let at = self.positions()?;
                let mask = self.mask()?;
                OpKind::LoadAt { src, at, mask }
            }
            "store_at" => {
                let dst = self.reference()?;
                let at = self.positions()?;
                let mask = self.mask()?;
                self.expect("<-")?;
                let value = self.value()?;
                OpKind::StoreAt { dst, at, mask, value }
            }
            "atomic_update_at" => {
                let op = self.name("atomic operation", AtomicOp::from_name)?;
                let dst = self.reference()?;
                let at = self.positions()?;
                self.expect("<-")?;
                let value = self.value()?;
                OpKind::AtomicUpdateAt { op, dst, at, value }
            }
            "copy_gmem_to_smem" => self.copy_gmem_to_smem()?,
            "copy_smem_to_gmem" => {
                let (src, dst) = self.copied()?;
                let reduction = match self.eat("reduce") {
                    true => Some(self.name("reduction", CopyReduction::from_name)?),
                    false => None,
                };
                let commit_group = self.eat("commit_group");
                let predicate = self.predicate()?;
                OpKind::CopySmemToGmem {
                    src,
                    dst,
                    reduction,
                    commit_group,
                    predicate,
                }
            }
            "commit_group" => OpKind::CommitGroup,
            "wait_smem_to_gmem" => {
                let n = self.number()?;
                let scope = self.name("scope of a wait", WaitScope::from_name)?;
                OpKind::WaitSmemToGmem { n, scope }
            }
            "wait_gmem_to_smem" => OpKind::WaitGmemToSmem { n: self.number()? },
            "prefetch" => {
                let src = self.reference()?;
                let collective_axes = self.collective()?;
                let leader_tracked = self.leader()?;
                let predicate = self.predicate()?;
                OpKind::Prefetch {
                    src,
                    collective_axes,
                    leader_tracked,
                    predicate,
                }
            }
            "async_store_smem" => {
                let value = self.value()?;
                self.expect("->")?;
                let dst = self.reference()?;
                self.expect("using")?;
                let barrier = self.reference()?;
                let atomic = match self.eat("atomic") {
                    true => Some(self.name("atomic operation", AtomicOp::from_name)?),
                    false => None,
                };
                OpKind::AsyncStoreSmem {
                    value,
                    dst,
                    barrier,
                    atomic,
                }
            }
            "commit_smem" => OpKind::CommitSmem,
            "barrier_arrive" => {
                let barrier = self.reference()?;
                let predicate = self.predicate()?;
                OpKind::BarrierArrive { barrier, predicate }
            }
            "barrier_wait" => {
                let (barrier, phases) = self.waited()?;
                OpKind::BarrierWait { barrier, phases }
            }
            "barrier_test" => {
                let (barrier, phases) = self.waited()?;
                OpKind::BarrierTest { barrier, phases }
            }
            "mbarrier_arrive" => {
                let barrier = self.reference()?;
                self.expect("by")?;
                let count = self.value()?;
                self.expect("of")?;
                let by = self.name("arriving lanes", Arriving::from_name)?;
                let order = self.order()?;
                OpKind::MbarrierArrive {
                    barrier,
                    count,
                    by,
                    order,
                }
            }
            "mbarrier_expect" => {
                let barrier = self.reference()?;
                let bytes = self.value()?;
                let arrives = self.eat("arrives");
                OpKind::MbarrierExpect {
                    barrier,
                    bytes,
                    arrives,
                }
            }
            "mbarrier_wait" => {
                let barrier = self.reference()?;
                self.expect("phase")?;
                let phase = self.value()?;
                let order = self.order()?;
                OpKind::MbarrierWait { barrier, phase, order }
            }
            "sync" => OpKind::Sync {
                group: self.group_name()?,
            },
            "fence" => OpKind::Fence {
                kind: self.name("fence", FenceKind::from_name)?,
            },
            "semaphore_signal" => {
                let (semaphore, value) = self.signal()?;
                let scope = self.name("scope", MemoryScope::from_name)?;
                OpKind::SemaphoreSignal {
                    semaphore,
                    value,
                    scope,
                }
            }
            "semaphore_signal_parallel" => {
                let mut signals = vec![];
                while self.eat("(") {
                    signals.push(self.signal()?);
                    self.expect(")")?;
                }
                let scope = self.name("scope", MemoryScope::from_name)?;
                OpKind::SemaphoreSignalParallel { signals, scope }
            }
            "semaphore_wait" => {
                let semaphore = self.reference()?;
                self.expect(">=")?;
                let value = self.value()?;
                let decrement = self.eat("decrement");
                let scope = self.name("scope", MemoryScope::from_name)?;
                OpKind::SemaphoreWait {
                    semaphore,
                    value,
                    decrement,
                    scope,
                }
            }
            "semaphore_read" => OpKind::SemaphoreRead {
                semaphore: self.reference()?,
            },
            "acc_init" => OpKind::AccInit {
                init: match self.at_value() {
                    true => Some(self.value()?),
                    false => None,
                },
            },
            "wgmma" => {
                let acc = self.acc()?;
                self.expect("+=")?;
                let a = match self.at_value() {
                    true => MmaOperand::Registers(self.value()?),
                    false => MmaOperand::Smem(self.reference()?),
                };
                self.expect("@")?;
                let b = self.reference()?;
                OpKind::Wgmma { acc, a, b }
            }
            "dot_in_place" => {
                let start = self.at;
                let operand = |own: &mut Self| -> Result<MmaOperand> {
                    Ok(match own.at_value() {
                        true => MmaOperand::Registers(own.value()?),
                        false => MmaOperand::Smem(own.reference()?),
                    })
                };
                let mut a = operand(self)?;
                let acc = match (self.eat("+"), &a) {
                    (true, MmaOperand::Registers(acc)) => Some(*acc),
                    (true, MmaOperand::Smem(_)) => return self.error_at(start, "an array is added to"),
                    (false, _) => None,
                };
                if acc.is_some() {
                    a = operand(self)?;
                }
                self.expect("@")?;
                let b = operand(self)?;
                OpKind::DotInPlace { acc, a, b }
            }
            "wgmma_wait" => {
                let n = self.number()?;
                let accs = self.values()?;
                OpKind::WgmmaWait { n, accs }
            }
            "acc_read" => OpKind::AccRead { acc: self.acc()? },
            "dot_general" => {
                let start = self.at;
                let (first, others) = self.first_values(2)?;
                let arithmetic = self.name("arithmetic of products", |name| match name {
                    "tensor_core" => Some(DotArithmetic::TensorCore),
                    "multiply_add" => Some(DotArithmetic::MultiplyAdd),
                    _ => None,
                })?;
                // `acc` comes first among the op's values.
                let (acc, a, b) = match (self.eat("added"), others.as_slice()) {
                    (true, [a, b]) => (Some(first), *a, *b),
                    (false, [b]) => (None, first, *b),
                    _ => return self.error_at(start, "the operands are two, and one that is `added`"),
                };
                OpKind::Dot { acc, a, b, arithmetic }
            }
            "for" => self.for_loop(group)?,
            "while" => self.while_loop(group)?,
            "switch" => {
                let selector = self.value()?;
                let mut arms = vec![];
                while self.eat("case") {
                    let start = self.at;
                    if self.number::<usize>()? != arms.len() {
                        return self.error_at(start, format!("expected case {}", arms.len()));
                    }
                    arms.push(self.region(group, vec![])?);
                }
                OpKind::Switch { selector, arms }
            }
            "scope" => {
                let mut allocs = vec![];
                self.blanks();
                while self.rest().starts_with("alloc") {
                    allocs.push(self.alloc()?);
                    self.eat(",");
                    self.blanks();
                }
                let collective = self.eat("collective");
                let body = self.region(group, vec![])?;
                OpKind::Scope {
                    allocs,
                    collective,
                    body,
                }
            }
            "warp_map" => {
                let axis = self.axis()?;
                let (params, inits) = self.carries(Group::Warp)?;
                let body = self.region(Group::Warp, params)?;
                OpKind::WarpMap { axis, inits, body }
            }
            "set_max_registers" => {
                let action = self.name("change of registers", RegisterAction::from_name)?;
                let n = self.number()?;
                OpKind::SetMaxRegisters { action, n }
            }
            "delay" => OpKind::Delay { nanos: self.value()? },
            "grid_dependency" => OpKind::GridDependency {
                action: self.name("part of a dependent launch", GridDependencyAction::from_name)?,
            },
            "inline_ptx" => self.inline_ptx()?,
            "debug_print" => {
                let then = match self.eat("fails") {
                    true => AfterPrint::Fails,
                    false => AfterPrint::GoesOn,
                };
                let format = self.quoted()?;
                let args = self.values()?;
                OpKind::DebugPrint { format, args, then }
            }
            "profile_mark" => {
                let name = self.quoted()?;
                let edge = self.name("edge of a range", |name| match name {
                    "begins" => Some(ProfileEdge::Begins),
                    "ends" => Some(ProfileEdge::Ends),
                    _ => None,
                })?;
                OpKind::ProfileMark { name, edge }
            }
            "print_layout" => {
                let format = self.quoted()?;
                let what = match self.at_value() {
                    true => PrintLayoutOf::Value(self.value()?),
                    false => PrintLayoutOf::Ref(self.reference()?),
                };
                OpKind::PrintLayout { what, format }
            }
            _ => return Ok(None),
        };
        Ok(Some(kind))
    }

    fn prefixed(&mut self, prefix: &str) -> Result<u32> {
        if !self.rest().starts_with(prefix) {
            return self.expected(format!("`{prefix}` and a number"));
        }
        self.at += prefix.len();
        self.number()
    }

    fn array_constant(&mut self) -> Result<Constant> {
        if self.eat("splat") {
            self.blanks();
            let start = self.at;
            let word = self.word("bits")?;
            let bits = word.strip_prefix("0x").and_then(|w| u64::from_str_radix(w, 16).ok());
            return match bits {
                Some(bits) => Ok(Constant::Splat(bits)),
                None => self.error_at(start, format!("expected bits as 0x…, got `{word}`")),
            };
        }
        self.expect("dense")?;
        self.blanks();
        let start = self.at;
        if self.rest().starts_with('\n') {
            return Ok(Constant::Dense(vec![]));
        }
        let word = self.word("bytes")?;
        let bytes = word
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        match bytes.collect::<Option<Vec<u8>>>() {
            Some(bytes) if word.len() % 2 == 0 => Ok(Constant::Dense(bytes)),
            Some(_) | None => self.error_at(start, "bytes have two hexadecimal digits each"),
        }
    }

    // -------------------------------------------------------- references
    fn reference(&mut self) -> Result<RefUse> {
        let alloc = self.alloc()?;
        let mut steps = vec![];
        loop {
            if self.rest().starts_with('[') {
                self.at += 1;
                steps.push(Step::Index(self.list("]", Self::dim_index)?));
            } else if self.rest().starts_with('.') {
                self.at += 1;
                steps.push(self.step()?);
            } else {
                break;
            }
        }
        let place = match self.rest().starts_with('@') {
            true => {
                self.at += 1;
                self.place()?
            }
            false => Place::Here,
        };
        self.expect(":")?;
        let elem = self.name("element type", |name| match name {
            "barrier" => Some(Elem::Barrier),
            "semaphore" => Some(Elem::Semaphore),
            _ => DType::from_short(name).map(Elem::Data),
        })?;
        let shape = self.shape()?;
        Ok(RefUse {
            alloc,
            steps,
            place,
            elem,
            shape,
        })
    }

    fn place(&mut self) -> Result<Place> {
        let start = self.at;
        match self.word("a place")? {
            "cluster" => {
                self.expect("(")?;
                let axes = self.list("=", Self::axis)?;
                let indices = self.values()?;
                self.expect(")")?;
                Ok(Place::Cluster { axes, indices })
            }
            "peer" => {
                self.expect("(")?;
                let device = self.value()?;
                self.expect(")")?;
                Ok(Place::Peer { device })
            }
            "multicast" => Ok(Place::Multicast { axes: self.axes()? }),
            other => self.error_at(start, format!("`{other}` is no place")),
        }
    }

    fn index(&mut self) -> Result<Index> {
        self.blanks();
        let rest = self.rest();
        if rest.starts_with('%') {
            return Ok(Index::Value(self.value()?));
        }
        // Without a type it is no value.
        let start = self.at;
        let number = self.number::<i64>();
        let typed = self
            .rest()
            .strip_prefix(':')
            .is_some_and(|r| r.starts_with(|c: char| c.is_ascii_alphabetic()));
        match number {
            Ok(number) if !typed => Ok(Index::Const(number)),
            _ => {
                self.at = start;
                Ok(Index::Value(self.value()?))
            }
        }
    }

    fn dim_index(&mut self) -> Result<DimIndex> {
        if self.eat("gather") {
            return Ok(DimIndex::Gather(self.value()?));
        }
        let window = self.eat("window");
        let start = self.index()?;
        if !self.eat(":+") {
            return match window {
                true => self.expected("`:+` and a size"),
                false => Ok(DimIndex::At(start)),
            };
        }
        let size = self.number()?;
        if window {
            return Ok(DimIndex::Window { start, size });
        }
        let stride = match self.eat(":") {
            true => self.number()?,
            false => 1,
        };
        Ok(DimIndex::Slice { start, size, stride })
    }

    fn step(&mut self) -> Result<Step> {
        let start = self.at;
        let name = self.word("a step of a view")?;
        match name {
            "transpose" => return Ok(Step::Transpose(self.numbers()?)),
            "reshape" => return Ok(Step::Reshape(self.numbers::<u64>()?.into())),
            "expand_leading_batch" => return Ok(Step::ExpandLeadingBatch(self.numbers::<u64>()?.into())),
            "untile" => return Ok(Step::Untile(self.numbers::<u64>()?.into())),
            _ => {}
        }
        self.expect("(")?;
        let step = match name {
            "bitcast" => {
                let dtype = self.dtype()?;
                self.expect(";")?;
                let shape = self.numbers_until::<u64>(")")?.into();
                return Ok(Step::Bitcast { dtype, shape });
            }
            "im2col" => {
                let window = self.numbers_until(";")?;
                let mut padding = vec![];
                while !self.eat(";") {
                    let low = self.number()?;
                    self.expect(":")?;
                    padding.push((low, self.number()?));
                }
                let shape = self.numbers_until::<u64>(")")?.into();
                return Ok(Step::Im2Col { window, padding, shape });
            }
            "alias" => {
                let offset = self.number()?;
                self.expect(",")?;
                let group = self.keyed("group")?;
                self.expect(",")?;
                let member = Box::new(self.alloc_data()?);
                Step::ExtractAlias { offset, group, member }
            }
            "unswizzle" => Step::Unswizzle(self.number()?),
            other => return self.error_at(start, format!("`{other}` is no step of a view")),
        };
        self.expect(")")?;
        Ok(step)
    }

    fn positions(&mut self) -> Result<Vec<Value>> {
        self.expect("at")?;
        self.expect("(")?;
        let values = self.values()?;
        self.expect(")")?;
        Ok(values)
    }

    fn mask(&mut self) -> Result<Option<Value>> {
        match self.eat("where") {
            true => self.value().map(Some),
            false => Ok(None),
        }
    }

    fn stored(&mut self) -> Result<(RefUse, Value)> {
        let dst = self.reference()?;
        self.expect("<-")?;
        Ok((dst, self.value()?))
    }

    fn copied(&mut self) -> Result<(RefUse, RefUse)> {
        let src = self.reference()?;
        self.expect("->")?;
        Ok((src, self.reference()?))
    }

    fn waited(&mut self) -> Result<(RefUse, Option<Value>)> {
        let barrier = self.reference()?;
        let phases = match self.eat("phases") {
            true => Some(self.value()?),
            false => None,
        };
        Ok((barrier, phases))
    }

    fn signal(&mut self) -> Result<(RefUse, Value)> {
        let semaphore = self.reference()?;
        self.expect("+=")?;
        Ok((semaphore, self.value()?))
    }

    fn order(&mut self) -> Result<BarrierOrder> {
        let relaxed = self.eat("relaxed");
        let scope = BarrierScope::ALL.iter().copied().find(|scope| self.eat(scope.name()));
        Ok(BarrierOrder { relaxed, scope })
    }

    fn predicate(&mut self) -> Result<Option<Value>> {
        match self.eat("if") {
            true => Ok(Some(self.value()?)),
            false => Ok(None),
        }
    }

    fn collective(&mut self) -> Result<Vec<Axis>> {
        match self.eat("collective") {
            true => self.axes(),
            false => Ok(vec![]),
        }
    }

    fn leader(&mut self) -> Result<Option<LeaderTracked>> {
        if !self.eat("leader_tracked") {
            return Ok(None);
        }
        self.expect("(")?;
        let leader = match self.eat("replicated") {
            true => LeaderTracked::Replicated,
            false => LeaderTracked::Partitioned {
                dim: self.keyed("partitioned")?,
            },
        };
        self.expect(")")?;
        Ok(Some(leader))
    }

    fn copy_gmem_to_smem(&mut self) -> Result<OpKind> {
        let (src, dst) = self.copied()?;
        let barrier = match self.eat("using") {
            true => Some(self.reference()?),
            false => None,
        };
        let collective_axes = self.collective()?;
        let leader_tracked = self.leader()?;
        let oob = match self.eat("oob") {
            true => self.name("mode of elements outside", OobMode::from_name)?,
            false => OobMode::Zeros,
        };
        let predicate = self.predicate()?;
        Ok(OpKind::CopyGmemToSmem {
            src,
            dst,
            barrier,
            collective_axes,
            leader_tracked,
            oob,
            predicate,
        })
    }

    /// An allocation, or a value and perhaps a part of it.
    fn acc(&mut self) -> Result<AccUse> {
        if !self.at_value() {
            return Ok(AccUse::Ref(self.reference()?));
        }
        let acc = self.value()?;
        if !self.rest().starts_with('[') {
            return Ok(AccUse::Value(acc));
        }
        self.expect("[")?;
        let (mut at, mut shape) = ([0; 2], [0; 2]);
        for d in 0..2 {
            if d > 0 {
                self.expect(",")?;
            }
            at[d] = self.number()?;
            self.expect(":+")?;
            shape[d] = self.number()?;
        }
        self.expect("]")?;
        Ok(AccUse::Part { acc, at, shape })
    }

    // -------------------------------------------------------- control
    /// `(%v1: i32 = 0, …)`.
    fn carries(&mut self, group: Group) -> Result<(Vec<Value>, Vec<Value>)> {
        self.expect("(")?;
        let carries = self.list(")", |p| {
            let param = p.definition(group)?;
            p.expect("=")?;
            Ok((param, p.value()?))
        })?;
        Ok(carries.into_iter().unzip())
    }

    fn for_loop(&mut self, group: Group) -> Result<OpKind> {
        let mut params = vec![];
        if !self.eat("?") {
            params.push(self.definition(group)?);
        }
        self.expect("in")?;
        let lower = self.value()?;
        self.expect("..")?;
        let upper = self.value()?;
        let reverse = self.eat("reverse");
        let unroll = match self.eat("unroll") {
            true => self.number()?,
            false => 1,
        };
        let (carried, inits) = self.carries(group)?;
        params.extend(carried);
        let mut xs = vec![];
        if self.eat("slices") {
            let (slices, arrays) = self.carries(group)?;
            params.extend(slices);
            xs = arrays;
        }
        let body = self.region(group, params)?;
        Ok(OpKind::For {
            lower,
            upper,
            inits,
            xs,
            reverse,
            unroll,
            body,
        })
    }

    fn while_loop(&mut self, group: Group) -> Result<OpKind> {
        let (params, inits) = self.carries(group)?;
        let types: Vec<Type> = params.iter().map(|v| self.kernel.ty(*v).clone()).collect();
        let cond = self.region(group, params)?;
        self.expect("do")?;
        self.expect("(")?;
        let mut types = types.into_iter();
        let params = self.list(")", |p| {
            p.blanks();
            let start = p.at;
            let v = p.value_id()?;
            let Some(ty) = types.next() else {
                return p.error_at(start, "more parameters than the loop carries");
            };
            let group = p.group(group)?;
            p.define(start, v, ty, group)?;
            Ok(v)
        })?;
        let body = self.region(group, params)?;
        Ok(OpKind::While { inits, cond, body })
    }

    // -------------------------------------------------------- inline PTX
    fn inline_ptx(&mut self) -> Result<OpKind> {
        let does = self.name("effect of a text", Does::from_name)?;
        let text = self.quoted()?;
        let pack = self.keyed("pack")?;
        self.expect("[")?;
        let mut operands = vec![];
        while !self.eat("]") {
            self.blanks();
            operands.push(match self.rest().chars().next() {
                Some('v') => InlineOperand::Value(self.prefixed("v")?),
                Some('m') => InlineOperand::Map(self.prefixed("m")?),
                _ => InlineOperand::Ref(self.prefixed("r")?),
            });
        }
        let once = self.eat("once");
        let loads_from = match self.eat("loads_from") {
            true => {
                self.expect("(")?;
                self.list(")", Self::flag)?
            }
            false => vec![],
        };
        let unchecked = match self.eat("unchecked") {
            true => Some(self.number()?),
            false => None,
        };
        let barriers = match self.eat("barriers") {
            true => {
                let first = self.number()?;
                self.expect("..=")?;
                Some((first, self.number()?))
            }
            false => None,
        };
        let called = match self.eat("called") {
            true => Some(self.quoted()?),
            false => None,
        };
        let maps = match self.eat("maps") {
            true => {
                self.expect("(")?;
                self.list(")", Self::inline_map)?
            }
            false => vec![],
        };
        let whole = match self.eat("whole") {
            true => Some(Box::new(self.whole()?)),
            false => None,
        };
        let refs = match self.eat("refs") {
            true => {
                self.expect("(")?;
                self.list(")", Self::reference)?
            }
            false => vec![],
        };
        let args = match self.eat("args") {
            true => {
                self.expect("(")?;
                self.list(")", Self::value)?
            }
            false => vec![],
        };
        let code = Box::new(InlinePtx {
            text,
            operands,
            pack,
            once,
            loads_from,
            whole,
            barriers,
            unchecked,
            called,
            maps,
        });
        Ok(OpKind::InlinePtx { does, code, refs, args })
    }

    fn inline_map(&mut self) -> Result<InlineMap> {
        self.blanks();
        let of = self.prefixed("r")?;
        let element = self.dtype()?;
        let mut numbers = |name: &str| {
            self.expect(name)?;
            self.expect("(")?;
            self.list(")", Self::number::<u64>)
        };
        let (dims, strides, boxes) = (numbers("dims")?, numbers("strides")?, numbers("box")?);
        Ok(InlineMap {
            of,
            element,
            dims,
            strides,
            box_dims: boxes.into_iter().map(|n| n as u32).collect(),
            swizzle: self.keyed("swizzle")?,
        })
    }

    fn whole(&mut self) -> Result<Whole> {
        let in_words = self.eat("in_words");
        self.expect("(")?;
        let args = self.list(";", Self::lane_array)?;
        let results = self.list(";", Self::lane_array)?;
        let refs = self.list(")", |p| match p.eat("lies") {
            true => p.transforms(),
            false => p.expect("as_is").map(|()| None),
        })?;
        Ok(Whole {
            in_words,
            args,
            results,
            refs,
        })
    }

    fn lane_array(&mut self) -> Result<Option<LaneArray>> {
        if self.eat("scalar") {
            return Ok(None);
        }
        let layout = self.layout()?;
        let order = self.keyed_list("order")?;
        Ok(Some(LaneArray { layout, order }))
    }
}
