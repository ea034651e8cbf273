//! Reads the texts of a kernel, says what is wrong with them, and notes what each does.
use super::emit::{emit, loop_end, named_barrier};
use super::in_flight;
use super::parse::{Interface, Limits, parse};
use super::program::{Program, Statement};
use super::reads;
use super::unchecked::Unchecked;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{self as ir, Does, Group, InlinePtx, Kernel};
use crate::ptx::build::{Builder, Operand};
use crate::ptx::flat::Reg;
use crate::ptx::infer_uniformity;
use crate::ptx::inst::{Effects, Inst, ROWS};
use crate::ptx::modifier::{Compare, CompareType, LoadSem, MemType, Space};
use crate::ptx::operand::{Class, Field, Src};
use crate::ptx::ssa::{OpKind, Region, Ssa, Uniform, Value};
use crate::ptx::uniformity::carries;
use rustc_hash::FxHashMap;

/// Checks every text of an imported kernel; after it, each op says what its text does.
pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut found = vec![];
    for region in kernel.regions.values() {
        for &op in &region.ops {
            if let ir::OpKind::InlinePtx { .. } = kernel.ops[op].kind {
                found.push((op, region.group));
            }
        }
    }
    let mut made: FxHashMap<ir::Op, Vec<ir::Op>> = FxHashMap::default();
    for (op, group) in found {
        let known = text(kernel, op, group).map_err(|e| e.at(kernel.ops[op].loc))?;
        if let ir::OpKind::InlinePtx { does, code, .. } = &mut kernel.ops[op].kind {
            *does = known.does;
            code.loads_from = known.loads_from;
        }
        for k in known.unequal {
            made.entry(op).or_default().extend(of_first_lane(kernel, op, k));
        }
    }
    if !made.is_empty() {
        for region in kernel.regions.values_mut() {
            let ops = std::mem::take(&mut region.ops);
            for op in ops {
                region.ops.push(op);
                region.ops.extend(made.remove(&op).unwrap_or_default());
            }
        }
    }
    Ok(())
}

/// What is known of a text.
struct Known {
    does: Does,
    loads_from: Vec<bool>,
    /// Of one that runs once: results whose elements are equal in all lanes, for all that their makers say.
    unequal: Vec<usize>,
}

/// Gives such a result the value that the first lane has: the text's result is an array of a register for each lane. Gives the ops that
/// follow the text.
fn of_first_lane(kernel: &mut Kernel, op: ir::Op, k: usize) -> Vec<ir::Op> {
    let result = kernel.ops[op].results[k];
    let (ty, group, loc) = (
        kernel.ty(result).clone(),
        kernel.values[result].group,
        kernel.ops[op].loc,
    );
    let lanes = kernel.new_value(ir::Type::of(ty.dtype(), vec![LANES]), group);
    kernel.values[lanes].def = op.into();
    kernel.ops[op].results[k] = lanes;
    if let ir::OpKind::InlinePtx { code, .. } = &mut kernel.ops[op].kind
        && let Some(whole) = &mut code.whole
    {
        whole.results[k] = Some(ir::LaneArray {
            layout: ir::LayoutSpec::Strided {
                shape: [LANES].into_iter().collect(),
                vec: 1,
            },
            order: vec![0],
        });
    }
    let mut ops = vec![];
    let mut push = |kernel: &mut Kernel, kind: ir::OpKind, ty: Option<ir::Type>| {
        let made = kernel.new_op(kind, ty.clone(), group, loc);
        if ty.is_none() {
            kernel.ops[made].results.push(result);
            kernel.values[result].def = made.into();
        }
        ops.push(made);
        kernel.ops[made].results[0]
    };
    let (starts, strides) = (vec![0], vec![1]);
    let slice = ir::OpKind::Slice {
        a: lanes,
        starts,
        strides,
    };
    let first = push(kernel, slice, Some(ir::Type::of(ty.dtype(), vec![1])));
    let reshape = ir::OpKind::Reshape { a: first };
    if ty.is_scalar() {
        push(kernel, reshape, None);
    } else {
        let scalar = push(kernel, reshape, Some(ir::Type::Scalar(ty.dtype())));
        let dims = vec![];
        push(kernel, ir::OpKind::Broadcast { a: scalar, dims }, None);
    }
    ops
}

/// The lanes of a warpgroup.
const LANES: u64 = 128;

/// The class of the register that stands for a value; `pack` elements of an array at a time.
pub fn class_of(ty: &ir::Type, pack: u32) -> Result<Class> {
    let dtype = ty.dtype();
    let bits = dtype.bits() * if ty.is_scalar() { 1 } else { pack };
    match (dtype, bits) {
        (DType::Bool, _) if ty.is_scalar() || pack == 1 => Ok(Class::Pred),
        (DType::Bool, _) => Err(pack_error(ty, pack)),
        (_, 64) => Ok(Class::B64),
        (_, 32) => Ok(Class::B32),
        (_, 16) => Ok(Class::B16),
        // Narrow numbers are in the low bits of a word.
        (_, 0..16) if ty.is_scalar() || pack == 1 => Ok(Class::B32),
        _ => Err(pack_error(ty, pack)),
    }
}

fn pack_error(ty: &ir::Type, pack: u32) -> Error {
    Error::invalid(format!("inline PTX: {pack} elements of {ty} in one register"))
        .expected("16, 32 or 64 bits")
        .remedy("another `pack`, or convert the array to another type first")
}

/// The registers that stand for the results and operands of an op, in the text's order.
pub fn interface(kernel: &Kernel, op: ir::Op) -> Result<Interface> {
    let data = &kernel.ops[op];
    let ir::OpKind::InlinePtx { code, refs, args, .. } = &data.kind else {
        return Err(Error::internal("an op that is no inline PTX"));
    };
    let (mut classes, mut sizes) = (vec![], vec![]);
    let mut push = |class: Class, n: usize| {
        classes.extend(std::iter::repeat_n(class, n));
        sizes.push(n);
    };
    let of_value = |v: ir::Value| class_of(kernel.ty(v), code.pack_of(kernel.ty(v)));
    for (k, v) in data.results.iter().enumerate() {
        push(of_value(*v)?, code.registers_of_result(k, kernel.ty(*v)));
    }
    for operand in &code.operands {
        match operand {
            ir::InlineOperand::Value(i) => {
                let v = args[*i as usize];
                push(of_value(v)?, code.registers_of_arg(*i as usize, kernel.ty(v)));
            }
            ir::InlineOperand::Ref(i) if is_shared(kernel, &refs[*i as usize]) => push(Class::B32, 1),
            ir::InlineOperand::Ref(_) | ir::InlineOperand::Map(_) => push(Class::B64, 1),
        }
    }
    Ok(Interface::new(classes, sizes))
}

/// Whether a reference is an address in shared memory.
fn is_shared(kernel: &Kernel, r: &ir::RefUse) -> bool {
    let data = &kernel.allocs[r.alloc];
    data.is_smem() || data.is_barrier()
}

/// How many of them stand for results.
pub fn num_results(kernel: &Kernel, op: ir::Op, code: &InlinePtx) -> usize {
    let results = kernel.ops[op].results.iter().enumerate();
    results.map(|(k, v)| code.registers_of_result(k, kernel.ty(*v))).sum()
}

fn text(kernel: &Kernel, op: ir::Op, group: Group) -> Result<Known> {
    let data = &kernel.ops[op];
    let ir::OpKind::InlinePtx { code, refs, args, .. } = &data.kind else {
        return Err(Error::internal("an op that is no inline PTX"));
    };
    refs.iter()
        .try_for_each(|r| ir::legality::memory::address(kernel, code, r))?;
    shapes(kernel, code, args, &data.results)?;
    if let (Group::Warp, Some(whole)) = (group, &code.whole)
        && whole.args.iter().chain(&whole.results).any(Option::is_some)
    {
        return Err(Error::invalid(format!("{} of arrays in a warp region", code.name()))
            .expected("scalars and references: layouts are those of warpgroups")
            .remedy("call it outside of the warp region, or pass the array in shared memory"));
    }
    let num_results = num_results(kernel, op, code);
    if let Some(isa) = code.unchecked {
        Unchecked::new(code, isa, &interface(kernel, op)?, num_results)?;
        if is_bounded(kernel) && may_synchronise(&code.text) {
            return Err(unforgiving("in an unchecked text"));
        }
        if !code.once
            && let Some(k) = data.results.iter().position(|v| kernel.ty(*v).is_scalar())
        {
            return Err(Error::invalid(format!("unchecked inline PTX: the scalar {{{k}}}"))
                .expected("results that are arrays, each lane's own an element; scalars, where `once` is true")
                .remedy("give the result the shape of an array, or run the text in one lane (once=True)"));
        }
        return Ok(Known {
            does: Does::Acts,
            loads_from: vec![],
            unequal: vec![],
        });
    }
    let program = parse(&code.text, &interface(kernel, op)?, num_results, Limits::of(code))?;
    structure(&program)?;
    carry_chains(&program)?;
    let has_products = in_flight::has_products(&program, group)?;
    named_barriers(&program, code, kernel.num_warpgroups)?;
    if is_bounded(kernel) {
        no_barriers(&program)?;
    }
    let uniform = match group {
        Group::Warp => Uniform::Warp,
        Group::Warpgroup => Uniform::Warpgroup,
        Group::Block => Uniform::Cta,
    };
    // A run of the text for one element, by which its branches and results are judged.
    let mut b = Builder::new();
    let mut registers = program.interface[num_results..].iter();
    let mut operands: Vec<Operand> = vec![];
    let (mut addresses, mut maps): (Vec<Reg>, Vec<Reg>) = (vec![], vec![]);
    for operand in &code.operands {
        let (n, is_equal) = match operand {
            ir::InlineOperand::Value(i) => {
                let i = *i as usize;
                let array = code.whole.as_ref().and_then(|whole| whole.args[i].as_ref());
                let is_equal = kernel.ty(args[i]).is_scalar() || array.is_some_and(|a| a.layout.is_splat());
                (code.registers_of_arg(i, kernel.ty(args[i])), is_equal)
            }
            ir::InlineOperand::Ref(_) | ir::InlineOperand::Map(_) => (1, true),
        };
        let how = if is_equal { uniform } else { Uniform::Thread };
        for reg in registers.by_ref().take(n) {
            match operand {
                ir::InlineOperand::Ref(_) => addresses.push(*reg),
                ir::InlineOperand::Map(_) => maps.push(*reg),
                ir::InlineOperand::Value(_) => {}
            }
            operands.push(Src::Reg(outside(&mut b, reg.class, how)));
        }
    }
    let results = emit(&mut b, &program, &operands, true);
    if has_products {
        in_flight::read_results(&mut b, &program, &results);
    }
    let mut ssa = b.finish();
    infer_uniformity::run(&mut ssa);
    if let Some(body) = ssa.body {
        let together = if code.once { Uniform::Thread } else { uniform };
        convergent(&program, &ssa, body, together)?;
    }
    if has_products {
        in_flight::check(&program, ssa.clone())?;
    }
    let mut results = results.iter();
    let mut unequal = vec![];
    for (k, v) in data.results.iter().enumerate() {
        let each = results.by_ref().take(code.registers_of_result(k, kernel.ty(*v)));
        let of = each
            .map(|x| x.reg().map_or(Uniform::Cta, |x| ssa.values[x].uniform))
            .min();
        let array = code.whole.as_ref().and_then(|whole| whole.results[k].as_ref());
        let is_equal = kernel.ty(*v).is_scalar() || array.is_some_and(|a| a.layout.is_splat());
        if is_equal && of.is_some_and(|of| of < uniform) && !code.once {
            if code.whole.as_ref().is_some_and(|whole| !whole.in_words) && group != Group::Warp {
                unequal.push(k);
                continue;
            }
            let (who, remedy) = match group {
                Group::Warp => (
                    "the lanes of the warp",
                    "give the result the shape of an array: each lane's own is an element",
                ),
                Group::Warpgroup | Group::Block => (
                    "the threads of the warpgroup",
                    "give the result the shape of an array: each lane's own is an element; or run it in a warp region, where scalars are a warp's",
                ),
            };
            return Err(
                Error::invalid(format!("inline PTX: {who} do not agree on the scalar {{{k}}}"))
                    .expected(
                        "a scalar that is equal in all of them: made of scalars, and of nothing that lanes differ in",
                    )
                    .got("a result of what differs from lane to lane, or of memory")
                    .remedy(remedy),
            );
        }
    }
    let is = does(&program, !refs.is_empty() || code.once);
    // What runs once for all elements is not made element by element.
    let is = if code.whole.is_some() {
        is.max(Does::Exchanges)
    } else {
        is
    };
    let refs = addresses.len();
    addresses.extend(maps);
    let mut loads_from = reads::only(&program, &addresses);
    // What is done by a map is done to its reference.
    let by_maps = loads_from.split_off(refs);
    for (map, only_loaded) in code.maps.iter().zip(by_maps) {
        loads_from[map.of as usize] &= only_loaded;
    }
    Ok(Known {
        does: is,
        loads_from,
        unequal,
    })
}

/// What elements fill words with, there are as many of as words take.
fn words(
    kernel: &Kernel,
    code: &InlinePtx,
    whole: &ir::Whole,
    args: &[ir::Value],
    results: &[ir::Value],
) -> Result<()> {
    let arrays = whole.results.iter().zip(results).chain(whole.args.iter().zip(args));
    for (array, v) in arrays {
        let (Some(array), ty) = (array, kernel.ty(*v)) else {
            continue;
        };
        let pack = code.pack_of(ty) as usize;
        if whole.in_words && !array.order.len().is_multiple_of(pack) {
            return Err(Error::invalid(format!("inline PTX: {ty} in words of 32 bits"))
                .expected(format!("a layout in which a lane has a multiple of {pack} elements"))
                .got(format!("{} of them", array.order.len()))
                .remedy("another layout or shape, or convert the array to a type of 32 bits first"));
        }
    }
    Ok(())
}

/// Arrays have one shape.
fn shapes(kernel: &Kernel, code: &InlinePtx, args: &[ir::Value], results: &[ir::Value]) -> Result<()> {
    if !(1..=16).contains(&code.pack) {
        return Err(Error::invalid("inline PTX: a `pack` of elements")
            .expected("1 to 16 elements of an array for each register")
            .got(code.pack.to_string())
            .remedy("as many as fit into a register of the text: 2 of 16 bits, 4 of 8"));
    }
    if let Some(whole) = &code.whole {
        return words(kernel, code, whole, args, results);
    }
    let arrays = || results.iter().chain(args).filter(|v| !kernel.ty(**v).is_scalar());
    let types: Vec<String> = arrays().map(|v| kernel.ty(*v).to_string()).collect();
    let mut shapes = arrays().map(|v| kernel.ty(*v).shape());
    let first = shapes.next();
    if shapes.any(|s| Some(s) != first) {
        return Err(Error::invalid("inline PTX of arrays of several shapes")
            .expected("one shape of all arrays among results and operands; scalars beside them")
            .got(types.join(", "))
            .remedy("broadcast the smaller ones (jnp.broadcast_to)"));
    }
    if code.once && first.is_some() {
        return Err(Error::invalid("inline PTX of one lane with arrays")
            .expected("scalars and references, where `once` is true")
            .got(types.join(", "))
            .remedy("leave out `once`: every lane runs the text for its elements; or pass single elements"));
    }
    if code.pack > 1 && first.is_none() {
        return Err(Error::invalid("inline PTX: a `pack` of scalars")
            .expected("pack=1 where no operand and no result is an array")
            .remedy("leave `pack` out"));
    }
    Ok(())
}

/// The compiler's own barriers are 0, the block's, and those of the warpgroups behind it.
fn named_barriers(program: &Program, code: &InlinePtx, num_warpgroups: u32) -> Result<()> {
    if let Some((first, last)) = code.barriers
        && (first <= num_warpgroups || last > 15 || first > last)
    {
        let all = format!("numbers from {} to 15", num_warpgroups + 1);
        let what = format!(
            "{}: named barriers, of which some are the compiler's, or none",
            code.name()
        );
        return Err(Error::invalid(what)
            .expected(all)
            .got(format!("{first} to {last}"))
            .remedy(
                "0 is the block's barrier, and those that follow are its warpgroups': declare higher numbers (`among`)",
            ));
    }
    for (statement, line) in program.statements.iter().zip(&program.lines) {
        let Statement::Inst { inst, .. } = statement else {
            continue;
        };
        let Some(Field::Src(Src::Imm(id), _)) = named_barrier(inst) else {
            continue;
        };
        if *id <= u64::from(num_warpgroups) {
            return Err(Error::invalid(format!(
                "inline PTX, line {line}: a named barrier that is the compiler's"
            ))
            .expected(format!("a number from {} to 15", num_warpgroups + 1))
            .got(id.to_string())
            .remedy("0 is the block's barrier, and those that follow are its warpgroups': take a higher number"));
        }
    }
    Ok(())
}

fn is_bounded(kernel: &Kernel) -> bool {
    kernel.compiler_params.wait_timeout_ns > 0
}

/// Who stands at a barrier with a count when another warp gives up would stand there for ever, and who arrives there for it is not known.
fn no_barriers(program: &Program) -> Result<()> {
    for (statement, line) in program.statements.iter().zip(&program.lines) {
        if let Statement::Inst { inst, .. } = statement
            && (named_barrier(inst).is_some() || is_of_cluster(inst))
        {
            return Err(unforgiving(&format!("line {line}")));
        }
    }
    Ok(())
}

fn is_of_cluster(inst: &Inst<Reg>) -> bool {
    matches!(
        inst,
        Inst::ClusterArrive { .. } | Inst::ClusterWait {} | Inst::ClusterArriveApart { .. } | Inst::ClusterWaitApart {}
    )
}

/// Whether the text names an instruction of a barrier of the block's or the cluster's.
fn may_synchronise(text: &str) -> bool {
    ["bar.", "barrier."].iter().any(|name| {
        text.match_indices(name)
            .any(|(at, _)| !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')))
    })
}

fn unforgiving(at: &str) -> Error {
    Error::unsupported(format!("inline PTX, {at}: a barrier in a kernel whose waits have a limit"))
        .expected("no bar, barrier or barrier.cluster where wait_timeout_ns is set: who waits there while another warp gives up waits for ever")
        .remedy("use a plgpu.Barrier, whose waits have the limit, or leave wait_timeout_ns out")
}

/// Carries go from one statement to a later one with no label, branch or guard in between (PTX ISA 9.7.2: for straight-line code), from
/// sums to sums and from differences to differences.
fn carry_chains(program: &Program) -> Result<()> {
    let mut left: Option<bool> = None;
    for (statement, line) in program.statements.iter().zip(&program.lines) {
        let Statement::Inst { guard, inst } = statement else {
            left = None;
            continue;
        };
        let Some(carries) = carries(inst) else {
            if guard.is_some() && !inst.is_speculatable() {
                left = None;
            }
            continue;
        };
        let error = |what: &str| Error::invalid(format!("inline PTX, line {line}: {what}"));
        if guard.is_some() {
            return Err(error("a carry behind a guard")
                .expected("sums with carries that all lanes execute which are there")
                .remedy("compute the sum in all lanes, and pick its result with selp"));
        }
        if carries.takes && left != Some(carries.borrows) {
            let (got, expected) = match (left, carries.borrows) {
                (None, true) => (
                    "none",
                    "a difference before it that leaves a borrow (sub.cc), with no label and no branch in between",
                ),
                (None, false) => (
                    "none",
                    "a sum before it that leaves a carry (add.cc, mad.lo.cc), with no label and no branch in between",
                ),
                (Some(_), true) => ("the carry of a sum", "the borrow of a difference (sub.cc)"),
                (Some(_), false) => ("the borrow of a difference", "the carry of a sum (add.cc, mad.lo.cc)"),
            };
            return Err(error("a carry that is taken and not there")
                .expected(expected)
                .got(got)
                .remedy("begin the chain with the form that ends in .cc and takes none"));
        }
        if carries.leaves {
            left = Some(carries.borrows);
        }
    }
    Ok(())
}

/// No branch goes into the middle of a loop.
fn structure(program: &Program) -> Result<()> {
    let n = program.statements.len();
    for at in 0..n {
        if !matches!(program.statements[at], Statement::Label(_)) {
            continue;
        }
        let Some(end) = loop_end(program, at, n) else { continue };
        for (from, statement) in program.statements.iter().enumerate() {
            let Statement::Branch { to, .. } = statement else {
                continue;
            };
            let to = program.labels[*to];
            if !(at..end).contains(&from) && to > at && to < end {
                return Err(Error::invalid(format!(
                    "inline PTX, line {}: a branch into the middle of a loop",
                    program.lines[from]
                ))
                .expected(format!(
                    "loops that are entered at their first label, here on line {}",
                    program.lines[at]
                ))
                .remedy("branch to the loop's first label"));
            }
        }
    }
    Ok(())
}

/// A value that comes from outside of the text: nothing is known of it but how equal it is.
fn outside(b: &mut Builder, class: Class, uniform: Uniform) -> Value {
    let ty = match class {
        Class::B64 => MemType::B64,
        Class::B16 => MemType::B16,
        Class::B32 | Class::Pred => MemType::B32,
    };
    let base = b.smem_base();
    let addr = b.addr(base, 0);
    let word = b.inst(Inst::ld(
        LoadSem::Weak,
        Space::Shared,
        ty,
        [Value::NEW].into_iter().collect(),
        addr,
    ))[0];
    b.claim_uniform(word, uniform);
    match class {
        Class::Pred => {
            let p = b.setp(Compare::Ne, CompareType::U32, word, Src::u32(0));
            b.value(p, Class::Pred)
        }
        Class::B16 | Class::B32 | Class::B64 => word,
    }
}

/// What warps do together is not where lanes have parted, what warpgroups do not where warps have. `together`: who comes here as one.
fn convergent(program: &Program, ssa: &Ssa, region: Region, together: Uniform) -> Result<()> {
    for op in &ssa.regions[region].ops {
        match &op.kind {
            OpKind::Inst { inst, guard } => {
                let (needs, who) = match in_flight::is_of_warpgroup(inst) {
                    true => (Uniform::Warpgroup, ["warps that have parted", "the warpgroup", "warps"]),
                    false => (Uniform::Warp, ["lanes that have parted", "the warp", "lanes"]),
                };
                let parted = guard.is_some() || together < needs;
                if parted && inst.effects().contains(Effects::CONVERGENT) {
                    let line = program.lines.get(op.loc.0 as usize).copied().unwrap_or(1);
                    let row = &ROWS[inst.row()];
                    let [parts, whole, each] = who;
                    let (expected, remedy) = match needs {
                        Uniform::Warpgroup => (
                            format!(
                                "wgmma where all of {whole} is: behind no branch and no guard in which {each} differ"
                            ),
                            "branch in plgpu's code, around the text; or make the condition of what is equal in the warpgroup",
                        ),
                        _ => (
                            format!(
                                "shuffles, votes, barriers and matrices where all lanes of {whole} are: behind no branch and no guard in which {each} differ"
                            ),
                            "execute it in all lanes, and pick its result with selp",
                        ),
                    };
                    return Err(Error::invalid(format!(
                        "inline PTX, line {line}: {parts} execute what {whole} does together"
                    ))
                    .expected(expected)
                    .got(format!("`{}`", row.syntax.split(';').next().unwrap_or("")))
                    .remedy(remedy));
                }
            }
            OpKind::If {
                cond, then, otherwise, ..
            } => {
                let together = together.min(ssa.values[*cond].uniform);
                convergent(program, ssa, *then, together)?;
                convergent(program, ssa, *otherwise, together)?;
            }
            OpKind::Loop { cond, body, .. } => {
                let goes_on = ssa.regions[*cond].results.first();
                let together = goes_on.map_or(together, |p| together.min(ssa.values[*p].uniform));
                convergent(program, ssa, *cond, together)?;
                convergent(program, ssa, *body, together)?;
            }
        }
    }
    Ok(())
}

fn does(program: &Program, acts: bool) -> Does {
    let mut does = if acts { Does::Acts } else { Does::Computes };
    for statement in &program.statements {
        let Statement::Inst { inst, .. } = statement else {
            continue;
        };
        let effects = inst.effects();
        let looks_at_lanes = matches!(inst, Inst::MovSpecial32 { .. } | Inst::MovSpecial64 { .. });
        does = does.max(
            if !effects.difference(Effects::CONVERGENT | Effects::CARRY).is_empty() || reads_memory(inst) {
                Does::Acts
            } else if effects.contains(Effects::CONVERGENT) || looks_at_lanes {
                Does::Exchanges
            } else {
                Does::Computes
            },
        );
    }
    does
}

/// Loads of memory that nothing writes count as pure elsewhere.
fn reads_memory(inst: &Inst<Reg>) -> bool {
    inst.fields().iter().any(|field| matches!(field, Field::Addr(..)))
}
