"""Changes for the worse, one at a time: what each makes wrong, and the tests that are tried first."""

from __future__ import annotations

import dataclasses
import pathlib

from tests import ROOT

#: The rooms of the tests that are run.
ROOMS = ["tests/unit", "tests/emulated"]


def file_named(name: str) -> pathlib.Path:
    """The file of this name in these rooms."""
    (found,) = (path for room in ROOMS for path in (ROOT / room).rglob(f"{name}.py"))
    return found


@dataclasses.dataclass(frozen=True)
class Mutant:
    """An expression (or, with `to` empty, a statement) of a file that becomes another one.

    Attributes:
        file: Beneath `src/` or `jax_plugin/smalt/`.
        within: Text that the file has once.
        old: What of it is replaced.
        to: By what; empty: a statement that is left out.
        wrong: What goes wrong.
        first: Test files that are tried before all others.
    """

    file: str
    within: str
    old: str
    to: str
    wrong: str
    first: tuple[str, ...]

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")

    def applied(self, text: str, condition: str) -> str:
        """The file's text, in which `condition` decides."""
        if text.count(self.within) != 1 or self.within.count(self.old) != 1:
            raise LookupError(f"{self.file} has this {text.count(self.within)} times, and the part {self.within.count(self.old)} times in it: {self.within}")
        if self.is_python:
            new = self.to
        elif self.to:
            new = f"(if {condition} {{ {self.to} }} else {{ {self.old} }})"
        else:
            new = f"if !{condition} {{ {self.old} }}"
        return text.replace(self.within, self.within.replace(self.old, new))


def m(file: str, within: str, old: str, to: str, wrong: str, *first: str) -> Mutant:
    return Mutant(file, within, old or within, to, wrong, first)


MUTANTS: list[Mutant] = [
    # ------------------------------------------------------------------ kernel IR
    m("passes/canonical/hoist_invariants.rs", "scalar && !arrays && loops > 0 && needs < loops", "needs < loops", "needs <= loops",
      "scalars leave loops whose values they need", "test_kernels", "test_arrays"),
    m("passes/canonical/promote_registers.rs", "(shape[1] > MAX_WIDTH || !is_plain)", "!is_plain", "false",
      "wgmmas of other widths on registers in flight are taken for those of the same", "test_views"),
    m("kernel_ir/legality/arithmetic.rs", "Sub | Div => dtype.is_int()", "dtype.is_int()", "!dtype.is_float()",
      "booleans are divided, which lowering does not know", "test_errors", "test_types"),
    # ------------------------------------------------------------------ layouts
    m("layout/relayout.rs", "a: w,\n                            lo: lo as u8,", "lo as u8", "0",
      "parts of words are taken from the word's first element", "test_layouts", "test_kernels"),
    m("layout/relayout.rs", "let pass = a.offset as u64 / chunk;", "a.offset as u64 / chunk", "(a.offset as u64 / chunk).saturating_sub(1)",
      "conversions in several passes store what belongs to passes before", "test_kernels", "test_layouts"),
    # ------------------------------------------------------------------ plan
    m("plan/allocate.rs", "next += data.shape.iter().product::<u64>() as u32 * 8;", "data.shape.iter().product::<u64>() as u32 * 8", "data.shape.iter().product::<u64>() as u32 * 4",
      "barriers overlap", "test_kernels", "test_rings"),
    m("plan/allocate.rs", "                kernel.num_warpgroups > 1\n            }\n            Class::Pure(", "kernel.num_warpgroups > 1", "kernel.num_warpgroups > 2",
      "what two warpgroups load is taken for the same in both", "test_scopes"),
    m("plan/footprint.rs", "t.tiling.is_empty() && t.swizzle_bytes == 0", "t.tiling.is_empty() && t.swizzle_bytes == 0", "true",
      "tiled memory is taken for plain: barriers are left out", "test_layouts", "test_programs"),
    m("plan/footprint.rs", "|| layout.is_constant_somewhere()", "layout.is_constant_somewhere()", "false",
      "elements that several lanes hold are one lane's: barriers are left out", "test_programs", "test_arrays"),
    m("plan/footprint.rs", "*known = Some(known.map_or(who, |k| k.and(who)));", "known.map_or(who, |k| k.and(who))", "who",
      "elements that several lanes hold are the last one's", "test_programs", "test_arrays"),
    m("plan/arrivals.rs", ".saturating_mul(senders(kernel, alloc))", "senders(kernel, alloc)", "1",
      "barriers of clusters count one block", "test_barriers", "test_kernels"),
    m("plan/arrivals.rs", "            && by_hand[barrier.alloc]", "by_hand[barrier.alloc]", "false",
      "bytes that the author announces are announced twice", "test_barriers", "test_errors"),
    m("plan/insert_barriers.rs", "if self.automatic && divergent.commits {", "self.automatic && divergent.commits", "false",
      "no barrier behind warp regions that commit", "test_warps", "test_programs"),
    m("plan/insert_barriers.rs", "if barrier.is_some_and(|alloc| self.waited_alone[alloc]) && !is_divergent {", "barrier.is_some_and(|alloc| self.waited_alone[alloc])", "false",
      "a warpgroup may be a phase ahead of its warp that waits alone", "test_programs", "test_warps"),
    m("plan/insert_barriers.rs", "Some(Need::Warp) => self.sync(kernel, state, mode, out, Group::Warp, loc),\n            None => {}\n        }\n        if accesses", "self.sync(kernel, state, mode, out, Group::Warp, loc)", "()",
      "warps do not meet where only their own lanes must", "test_programs", "test_warps"),
    m("plan/insert_barriers.rs", "self.place(kernel, state, mode, out, OpKind::Fence { kind }, loc);\n                state.fence(shared);", "self.place(kernel, state, mode, out, OpKind::Fence { kind }, loc);", "",
      "no fence before copies of what lanes stored", "test_asynchrony", "test_programs"),
    m("plan/insert_barriers.rs", "let releases = shared && arrives && !state.unread.is_empty();", "shared && arrives && !state.unread.is_empty()", "false",
      "no fence between loads and an arrival", "test_barriers", "test_products"),
    m("ptx/optimize.rs", "keep_operands::run(&mut ssa);", "", "",
      "left operands that a loop keeps are left to ptxas", "test_products"),
    m("plan/insert_barriers.rs", "if accesses.iter().any(|access| access.ends == Ends::Wgmma) {", "accesses.iter().any(|access| access.ends == Ends::Wgmma)", "false",
      "products in flight are not known to be", "test_running_products", "test_programs"),
    # ------------------------------------------------------------------ lowering
    m("lower/convert.rs", "let fits = from.bits() < to.bits() && (from.is_unsigned_int() || to.is_signed_int());", "(from.is_unsigned_int() || to.is_signed_int())", "true",
      "signed numbers keep bits that a wider unsigned type has not", "test_types", "test_kernels"),
    m("lower/convert.rs", "b.pick(Class::B32, inexact, odd, x)", "b.pick(Class::B32, inexact, odd, x)", "x",
      "wide numbers are rounded twice on the way to narrow floats", "test_types"),
    m("lower/convert.rs", "if from == DType::F64 || to.bits() == 64 {", "from == DType::F64 || to.bits() == 64", "to.bits() == 64",
      "NaN of f64 is no zero as an integer", "test_types", "test_kernels"),
    m("lower/reduce.rs", "Src::Imm(axis.size - offset))", "axis.size - offset", "axis.size - offset + 1",
      "an element behind the array is reduced", "test_kernels", "test_arrays"),
    m("lower/reduce.rs", "ReduceOp::Xor if n % 2 == 1 => Ok(x),", "n % 2 == 1", "n > 1",
      "the xor of an even number of equal elements is the element", "test_integers"),
    m("lower/reduce.rs", "let whole_warp = lane_bits == (1 << LANE_BITS) - 1;", "lane_bits == (1 << LANE_BITS) - 1", "lane_bits & 15 == 15",
      "reductions over half a warp are those over all of it", "test_arrays", "test_kernels"),
    m("lower/network.rs", "if i / (2 * merged) == (i + distance) / (2 * merged) {", "i / (2 * merged) == (i + distance) / (2 * merged)", "true",
      "networks compare elements of lists apart", "test_indexing", "test_functions"),
    m("lower/network.rs", "let later = cx.b.both(equal, out);", "cx.b.both(equal, out)", "out",
      "second keys decide where first ones differ", "test_indexing", "test_arrays"),
    m("lower/take.rs", "Src::u32(n as u32 - 1));", "n as u32 - 1", "n as u32",
      "an index outside reads a lane's element behind the array", "test_indexing"),
    m("lower/float.rs", "    b.pick(Class::B64, nan, Src::f64(f64::NAN), number)", "b.pick(Class::B64, nan, Src::f64(f64::NAN), number)", "number",
      "the larger of NaN and a number is the number, of f64", "test_types", "test_kernels"),
    m("lower/tma.rs", "let expected = cx.b.select(BitType::B32, p, Src::u32(bytes), Src::u32(0));", "Src::u32(0)", "Src::u32(bytes)",
      "copies that are not made are announced", "test_barriers"),
    m("lower/barrier.rs", "(Group::Warp, ArrivesBy::Lanes) => by.count() / 32,", "by.count() / 32", "by.count()",
      "a warp's lanes arrive 128 times each", "test_asynchrony"),
    m("lower/barrier.rs", "            (Group::Warp, _) => by.count(),", "by.count()", "1",
      "a warp region arrives for its own warp", "test_warps", "test_barriers"),
    m("lower/memory/addresses.rs", "let x = cx.b.add(IntType::U32, x, Src::u32(g.constant as u32));", "g.constant as u32", "0",
      "predicates of accesses forget where the slot is", "test_kernels", "test_arrays"),
    m("lower/shape.rs", "    pub fn load(&self, cx: &mut LowerCx, layout: &RegisterLayout, view: &SmemView) -> Result<ArrayRegs> {\n        cx.sync_group();", "cx.sync_group();", "",
      "threads load from scratch before others have stored", "test_kernels", "test_arrays"),
    m("lower/scan.rs", "cx.b.sub(ty, Src::Imm(n as u64 - 1), from_start)", "n as u64 - 1", "n as u64",
      "scans from the end begin behind it", "test_arrays", "test_functions"),
    m("lower/scan.rs", "next.push(cx.b.pick(class, here[slot % runs.n], made[slot / runs.n], before));", "slot % runs.n", "slot / runs.n % runs.n",
      "scans stack results where others belong", "test_arrays", "test_kernels"),
    m("descriptor/gather.rs", "dropped.contains(&(*d as u32)) || of_operand.contains(&(*d as u32))", "of_operand.contains(&(*d as u32))", "false",
      "batched gathers keep batching dimensions", "test_indexing", "test_functions"),
    # ------------------------------------------------------------------ PTX
    m("ptx/simplify.rs", "Some(c) if !ty.is_signed() && c > bound_of(facts, *a, class) => Operand(Src::Imm(0)),", "c > bound_of(facts, *a, class)", "c >= bound_of(facts, *a, class)",
      "the quotient of the largest number is 0", "test_kernels", "test_arrays"),
    m("ptx/simplify.rs", "Some(c) if c.is_power_of_two() && unsigned(facts, *ty, *a, c) => Inst(Inst::shr(",
      "c.is_power_of_two() && unsigned(facts, *ty, *a, c)", "c.is_power_of_two()", "negative numbers are shifted where they are divided", "test_kernels", "test_types"),
    m("ptx/divide.rs", "(e <= 1 << (k + 1)).then_some((m as u64, k))", "e <= 1 << (k + 1)", "e <= 1 << (k + 3)",
      "multipliers of signed divisions are too coarse for large numbers", "test_kernels", "test_types"),
    m("ptx/divide.rs", "    if bound / c == 1 {", "bound / c == 1", "bound / c <= 2",
      "quotients of 2 are 1", "test_kernels", "test_blocks"),
    m("ptx/divide.rs", "if ty.is_signed() && (bound > half || c > half) {", "(bound > half || c > half)", "bound > half",
      "what is not negative is divided by a negative constant with a division", "test_integers"),
    m("ptx/merge_equal.rs", "OpKind::Inst { guard: None, inst } => inst.is_speculatable(),", "inst.is_speculatable()", "true",
      "branches that store become selections", "test_kernels", "test_programs"),
    m("ptx/contract.rs", "if op.rounding == Rounding::ByTheKernel\n                        && let Inst::MulFloat {", "op.rounding == Rounding::ByTheKernel", "true",
      "products of inline PTX are fused", "test_inline_ptx"),
    m("ptx/contract.rs", ".map(|p| (p, *a, *d, Negate::Factor))", "Negate::Factor", "Negate::Addend",
      "a − b·c has the other sign", "test_kernels", "test_functions"),
    m("ptx/hoist.rs", "any(|(q, h)| q == v && h == p)", "q == v && h == p", "q == v",
      "what a loop exchanges is taken for what it began with", "test_integers"),
    m("ptx/table.rs", "(T::BITS - 1).wrapping_sub(a.significant().leading_zeros())", "T::BITS - 1", "T::BITS",
      "the position of the highest bit is one higher, of constants, too", "test_inline_ptx", "test_filetests"),
    # ------------------------------------------------------------------ emulator
    m("emulate/barrier.rs", "        if count > self.pending {\n            return Err(Misuse::OverArrival {\n                pending: self.pending,", "count > self.pending", "count > self.pending.max(count)",
      "arrivals too many are not told", "test_barrier_errors", "test_errors"),
    m("emulate/barrier.rs", "        self.tx += expect;\n        if self.tx.abs() > MAX_TX {", "self.tx.abs() > MAX_TX", "false",
      "bytes beyond a barrier's range are not told", "test_barrier_errors", "test_barriers"),
    m("emulate/tma.rs", "inside &= at >= 0 && (at as u64) < map.dims[d];", "(at as u64) < map.dims[d]", "(at as u64) <= map.dims[d]",
      "a row behind the tensor is copied", "test_blocks", "test_filetests"),
    m("emulate/tma.rs", "if !inner.is_multiple_of(16) {", "!inner.is_multiple_of(16)", "false",
      "boxes that the hardware refuses are copied", "test_errors", "test_filetests"),
    m("emulate/tma.rs", "if map.swizzle != TensorMapSwizzle::None && inner > map.swizzle.bytes() {", "inner > map.swizzle.bytes()", "inner > 2 * map.swizzle.bytes()",
      "boxes wider than their swizzle are copied", "test_errors", "test_filetests"),
    m("emulate/wgmma.rs", "16 * c % self.span + 16 * c / self.span * self.leading", "16 * c / self.span * self.leading", "0",
      "sparse operands of two spans read the first one twice", "test_inline_wgmma"),
    m("emulate/wgmma.rs", "                    mask |= 0xffff << (offset & 127);", "0xffff", "0xff",
      "of what a product reads the checker sees a half", "test_asynchrony"),
    m("emulate/check/clock.rs", "self.epochs[at] = self.epochs[at].min(from.saturating_sub(1));", "from.saturating_sub(1)", "from",
      "what is to be forgotten is known still", "test_asynchrony", "test_barriers"),
    m("emulate/check/clock.rs", ".take(scope as usize + 1) {", "scope as usize + 1", "scope as usize + 2",
      "releases reach one scope further", "test_barriers", "test_asynchrony"),
    m("emulate/check/small.rs", "if self.clocks[id].seen()[component] < self.arrived[id] {", "self.clocks[id].seen()[component] < self.arrived[id]", "false",
      "who waits for copies does not know that those on barriers are over", "test_copies_unwaited"),
    m("emulate/check/race.rs", "        (Kind::SmallWrite, _) => true,", "true", "mine != Kind::SmallWrite",
      "copies by threads over others that are in flight are not told", "test_copies_unwaited"),
    m("emulate/check/race.rs", "let epoch = if self.kind.is_small() { IN_FLIGHT } else { self.epoch };", "self.kind.is_small()", "false",
      "copies by threads are over for whoever hears of their issue", "test_copies_unwaited", "test_kernels_that_do_not_wait"),
    m("emulate/check/small.rs", "let landing = landing.filter(|landing| *landing != 0);", "*landing != 0", "false",
      "copies by threads are over where they arrive", "test_copies_unwaited", "test_kernels_that_do_not_wait"),
    m("emulate/check/barriers.rs", "        barrier.landing = None;", "barrier.landing = None;", "",
      "copies by threads of all phases of a barrier land with its first", "test_kernels_that_do_not_wait"),
    m("emulate/copies.rs", "copy.committed & mask_of(|i| copy.groups[i] < over[i])", "copy.groups[i] < over[i]", "copy.groups[i] <= over[i]",
      "waits cover a group more", "test_copies_unwaited", "test_copies_in_groups"),
    m("emulate/copies.rs", "let new = w.exec & !copy.committed;", "w.exec & !copy.committed", "w.exec",
      "commits take older copies into a new group", "test_copies_unwaited", "test_copies_in_groups"),
    m("emulate/mma.rs", "                    return fail(meaningless(\"mma.sp\", sparsity, found));", "return fail(meaningless(\"mma.sp\", sparsity, found));", "",
      "metadata that means nothing is not told", "test_filetests", "test_inline_ptx"),
    # ------------------------------------------------------------------ run time
    m("assemble/cache.rs", "if entry.len() as u64 > self.place.limit_bytes {", "entry.len() as u64 > self.place.limit_bytes", "false",
      "entries larger than the limit are kept", "test_assemble"),
    m("inline/check.rs", "    carry_chains(&program)?;", "carry_chains(&program)?;", "",
      "carries that others may change are accepted", "test_inline_ptx_errors", "test_inline_ptx"),
    # ------------------------------------------------------------------ the plugin
    m("_blocks/blocks.py", "return Form(self.constant + sign * other.constant, kept)", "sign * other.constant", "other.constant",
      "index maps that subtract a constant are analysed as if they added it", "test_calls", "test_blocks"),
    m("_blocks/blocks.py", "ends = [sorted((0, f * max(grid[a] - 1, 0))) for a, f in self.factors]", "max(grid[a] - 1, 0)", "max(grid[a] - 2, 0)",
      "the last step of an axis is forgotten in bounds", "test_blocks"),
    m("_expand/complex.py", "re = (a + b * ratio) / below", "a + b * ratio", "a - b * ratio", "quotients of complex numbers", "test_functions"),
    m("_expand/complex.py", "lax.select(z.im == 0, z.im, e * lax.sin(z.im))", "lax.select(z.im == 0, z.im, e * lax.sin(z.im))", "e * lax.sin(z.im)",
      "exp of a large real number has a NaN for its imaginary part", "test_functions"),
    m("_expand/convolutions.py", "limits = [start + (n - 1) * step + 1 if n else start", "(n - 1) * step + 1", "n * step",
      "strided convolutions take more than there is", "test_products", "test_functions"),
    m("_expand/windows.py", "return lax.slice(x, (0,) * rank, x.shape, params[\"window_strides\"])", "(0,) * rank", "tuple(min(1, n - 1) for n in x.shape)",
      "windows begin one further", "test_functions"),
    m("_expand/windows.py", "    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min", "jnp.iinfo(dtype).min", "0",
      "the least integer is 0", "test_functions", "test_indexing"),
    m("_expand/linalg.py", "broken = jnp.any((rows == columns) & ~(out > 0))", "~(out > 0)", "(out < 0)",
      "a matrix that is not positive definite has no NaNs", "test_functions"),
    m("_expand/linalg.py", "candidates = jnp.where(_iota(m) >= k, jnp.abs(_column(a, k)), -1)", "_iota(m) >= k", "_iota(m) > k",
      "pivots are never on the diagonal", "test_functions"),
    m("_expand/gather.py", "    return np.asarray(value).astype(dtype)", "np.asarray(value)", "np.asarray(0)",
      "gathers fill with 0", "test_functions", "test_indexing"),
    # ------------------------------------------------------------------ machines
    m("lower/copy_by_threads.rs", "let at = memory::swizzle(cx, swizzle, at);", "memory::swizzle(cx, swizzle, at)", "at",
      "what threads copy to swizzled memory lies as if it were not", "test_machines"),
    m("lower/copy_by_threads.rs", "PrefetchSize::No, smem, gmem, size, taken)", "taken", "Src::u32(bytes)",
      "threads read what is behind an array, and do not fill it with zeros", "test_machines"),
    m("lower/copy_by_threads.rs", "checked.push(copy.oob == OutOfBounds::Zeros && (has_parts || !inside));", "(has_parts || !inside)", "has_parts",
      "blocks that reach outside are copied as if they did not", "test_machines"),
    m("lower/substitute.rs", "Inst::SubFloat { ty, a, b: c, .. } => fma(b, ty, c, by(ty, ONE | SIGN)?, a),", "ONE | SIGN", "ONE",
      "differences of bf16 are sums, without bf16 arithmetic", "test_machines"),
    m("lower/substitute.rs", "Inst::MulFloat { ty, a, b: c, .. } => fma(b, ty, a, c, by(ty, SIGN)?),", "SIGN", "0",
      "products of bf16 that are -0 are +0, without bf16 arithmetic", "test_machines"),
    m("lower/dot.rs", "let first = (m * plan.k / 4 + 4 * step) as usize;", "4 * step", "2 * step",
      "a product that goes on in a product takes the registers of another step", "test_machines"),
    m("plan/arrivals.rs", "for alloc in by_threads {\n        out.by[alloc] = ArrivesBy::Lanes;", "ArrivesBy::Lanes", "ArrivesBy::Warps",
      "a phase ends before all threads have copied their parts", "test_machines"),
    m("target.rs", "self.name == other.name || is_plain && other.capability <= self.capability", "is_plain", "true",
      "a machine takes what was compiled for another one alone", "test_machines"),
    m("lower/copy_by_threads.rs", "chunk.when.map_or(wanted, |has| cx.b.both(wanted, has))", "cx.b.both(wanted, has)", "has",
      "of copies under a predicate what not all threads have a part of is copied all the same", "test_copies_in_groups", "test_machines"),
    m("lower/copy_by_threads.rs", "let scope = memory::device_scope(cx);", "memory::device_scope(cx)", "Scope::Gpu",
      "threads that add to another device's memory do it as if they were alone", "test_multi_gpu"),
    m("plan/insert_barriers.rs", "all || new.owner == Owner::Compiler || is_acquired", "new.owner == Owner::Compiler", "false",
      "the compiler's own memory is not ordered where the author orders his", "test_own_memory"),
    m("_programs/roles.py", "_primitives.await_copies(max(0, self.depth - 1) * len(self.loop.rings))", "max(0, self.depth - 1)", "self.depth",
      "who copies ahead reads a step's tiles before they have come", "test_copies_ahead"),
    m("_programs/roles.py", "[jnp.where(when, x, last) for x, last in zip(after, state)]", "jnp.where(when, x, last)", "x",
      "who copies ahead looks behind the end of a loop", "test_copies_ahead"),
    m("_programs/roles.py", "            self.ahead.settle()  # what an arm waits for, the others have not", "self.ahead.settle()", "pass",
      "what an arm has waited for the others read at once", "test_copies_ahead"),
    m("_programs/warpgroups.py", "if alone is not None and alone.needed_registers <= MAX_REGISTERS:", "alone.needed_registers <= MAX_REGISTERS", "True",
      "one warpgroup has sums that do not fit into its registers", "test_copies_ahead"),
]
