//! Prints, and checks that fail: a record in memory that the host reads when the kernel has ended ([`Printer`]).
//!
//! A record has the words of its values as they lie in registers. Its reader has each print's layouts ([`PrintSite`]), so that no
//! value is moved between lanes for it. Scalars, and arrays of which each thread has all, are written by one warp, each word by all of its
//! lanes alike; of other arrays each warp writes a record with its part.
use super::cx::LowerCx;
use super::emit::S;
use super::ids;
use super::value::{ArrayRegs, Lowered, Packing, scalar_class};
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::{AfterPrint, Group, Kernel, Op, Value};
use crate::layout::RegisterLayout;
use crate::ptx::inst::Inst;
use crate::ptx::launch::Printer;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::Value as PtxValue;

/// The prints of a kernel, and what their records need to be read.
#[derive(Clone, Debug, Default)]
pub struct Prints {
    pub sites: Vec<PrintSite>,
    /// Extents of the grid's, then the cluster's axes.
    pub blocks: Vec<u64>,
    pub warpgroups: u32,
}

/// One print.
#[derive(Clone, Debug)]
pub struct PrintSite {
    pub loc: Loc,
    /// See `kernel_ir::text_format`.
    pub format: String,
    pub args: Vec<PrintArg>,
    pub then: AfterPrint,
    /// Printed by a warp of a warp region.
    pub of_warp: bool,
    /// Each warp writes its part.
    pub in_parts: bool,
    /// Of a record.
    pub bytes: u32,
}

/// An argument, and where in a record it is.
#[derive(Clone, Debug)]
pub struct PrintArg {
    pub dtype: DType,
    /// None: a scalar.
    pub layout: Option<RegisterLayout>,
    /// The first of its words of 32 bits.
    pub at: u32,
    /// Each lane has words of its own: lane l's k-th is number `at + 32 k + l`.
    pub by_lane: bool,
}

impl Prints {
    pub fn of(kernel: &Kernel, sites: Vec<PrintSite>) -> Prints {
        let axes = kernel.grid.iter().chain(&kernel.cluster);
        Prints {
            sites,
            blocks: axes.map(|axis| kernel.axes[*axis].size).collect(),
            warpgroups: kernel.num_warpgroups,
        }
    }
}

pub fn lower_debug_print(cx: &mut LowerCx, op: Op, format: &str, args: &[Value], then: AfterPrint) -> Result<()> {
    let mut values = vec![];
    for &v in args {
        values.push((cx.kernel.ty(v).dtype(), cx.get(v)?.clone()));
    }
    let mut site = PrintSite {
        loc: cx.kernel.ops[op].loc,
        format: format.into(),
        args: vec![],
        then,
        of_warp: cx.group == Group::Warp,
        in_parts: false,
        bytes: 0,
    };
    // What all lanes have alike stands in front of what each has.
    let mut at = Printer::HEADER as u32;
    let mut placed = vec![None; values.len()];
    for by_lane in [false, true] {
        for ((dtype, value), place) in values.iter().zip(&mut placed) {
            if of_lanes(value) != by_lane {
                continue;
            }
            let (layout, words) = match value {
                Lowered::Scalar(_) => (None, dtype.bits().div_ceil(32)),
                Lowered::Array(a) => (Some(a.layout.clone()), a.regs.len() as u32 * words_of(*dtype)),
                Lowered::Acc(_) => return Err(Error::internal("an accumulator is printed")),
            };
            *place = Some(PrintArg {
                dtype: *dtype,
                layout,
                at,
                by_lane,
            });
            at += words * if by_lane { 32 } else { 1 };
        }
        at = at.next_multiple_of(4);
    }
    site.args = placed.into_iter().flatten().collect();
    site.in_parts = site.args.iter().any(|arg| arg.by_lane);
    site.bytes = 4 * at;
    let (id, whole) = (cx.entry.prints.len() as u32, !site.in_parts);
    cx.entry.prints.push(site.clone());
    if whole {
        let is_leader = cx.is_leading_warp();
        return cx.if_then(is_leader, |cx| {
            record(cx, id, &site, &values)?;
            fail(cx, then);
            Ok(())
        });
    }
    record(cx, id, &site, &values)?;
    if then == AfterPrint::Fails {
        // Not before all parts are there.
        cx.sync_group();
    }
    fail(cx, then);
    Ok(())
}

/// Ends the kernel if it is to fail, when the host can see what it printed.
fn fail(cx: &mut LowerCx, then: AfterPrint) {
    match then {
        AfterPrint::GoesOn => {}
        AfterPrint::Fails => {
            cx.b.inst(Inst::fence(FenceSem::AcqRel, Scope::Sys));
            cx.b.inst(Inst::Trap {});
        }
    }
}

/// Whether lanes have elements of their own.
fn of_lanes(value: &Lowered) -> bool {
    match value {
        Lowered::Array(a) => !a.layout.is_splat() && a.layout.replication() < a.layout.group().threads(),
        Lowered::Scalar(_) | Lowered::Acc(_) => false,
    }
}

/// Words of a register.
fn words_of(dtype: DType) -> u32 {
    if Packing::of(dtype) == Packing::Wide { 2 } else { 1 }
}

/// A whole warp writes a record, if there is room for it.
fn record(cx: &mut LowerCx, id: u32, site: &PrintSite, values: &[(DType, Lowered)]) -> Result<()> {
    let printer = cx.printer_pointer();
    // Of a print in parts, the first warp's counts.
    let weight = if site.in_parts && !site.of_warp {
        let first = cx.is_issuing_warp();
        cx.b.pick(Class::B32, first, Src::u32(1), Src::u32(0))
    } else {
        Src::u32(1)
    };
    let place = cx.b.inst(Inst::print_reserve(
        PtxValue::NEW,
        printer,
        weight,
        i64::from(site.bytes),
    ))[0];
    let fits = cx.b.setp(Compare::Ne, CompareType::U64, place, Src::Imm(0));
    cx.if_then(fits, |cx| {
        let block = block(cx)?;
        let warp = cx.b.warp().into();
        let mut alike = vec![Src::u32(site.bytes), Src::u32(id), block, warp];
        let mut own: Vec<(u32, S)> = vec![];
        for by_lane in [false, true] {
            for (arg, (dtype, value)) in site.args.iter().zip(values).filter(|(arg, _)| arg.by_lane == by_lane) {
                let words = match value {
                    Lowered::Scalar(s) => scalar_words(cx, *dtype, *s),
                    Lowered::Array(a) => array_words(cx, a),
                    Lowered::Acc(_) => vec![],
                };
                if by_lane {
                    own.extend((0..).map(|k| arg.at + 32 * k).zip(words));
                } else {
                    alike.extend(words);
                }
            }
        }
        while alike.len() % 4 != 0 {
            alike.push(Src::u32(0));
        }
        for (k, words) in alike.chunks(4).enumerate() {
            let addr = cx.b.addr(place, 16 * k as i32);
            cx.b.store(Space::Global, MemType::B32, addr, words);
        }
        if !own.is_empty() {
            let lane = cx.b.lane();
            let lane = cx.b.shl(BitType::B32, lane, Src::u32(2));
            let lane = cx.b.widen(lane, false);
            let base = cx.b.add(IntType::U64, place, lane);
            for (at, word) in own {
                let addr = cx.b.addr(base, 4 * at as i32);
                cx.b.store(Space::Global, MemType::B32, addr, &[word]);
            }
        }
        Ok(())
    })
}

/// The executing block's number: along the grid's, then the cluster's axes, row-major.
pub(super) fn block(cx: &mut LowerCx) -> Result<S> {
    let kernel = cx.kernel;
    let mut block: S = Src::u32(0);
    for &axis in kernel.grid.iter().chain(&kernel.cluster) {
        let index = ids::axis_index(cx, axis)?;
        block = cx.b.mad(IntType::U32, block, Src::Imm(kernel.axes[axis].size), index);
    }
    Ok(block)
}

fn scalar_words(cx: &mut LowerCx, dtype: DType, s: S) -> Vec<S> {
    match scalar_class(dtype) {
        Class::Pred => vec![cx.b.pick(Class::B32, s, Src::u32(1), Src::u32(0))],
        Class::B16 => vec![cx.b.pack16(s, Src::Imm(0))],
        Class::B32 => vec![s],
        Class::B64 => cx.b.unpack64(s).to_vec(),
    }
}

fn array_words(cx: &mut LowerCx, a: &ArrayRegs) -> Vec<S> {
    match Packing::of(a.dtype) {
        Packing::Words(_) => a.regs.clone(),
        Packing::Predicates | Packing::Wide => a.regs.iter().flat_map(|&r| scalar_words(cx, a.dtype, r)).collect(),
    }
}
