//! What one launch has left in its memory for prints, as text.
//!
//! Sorted by block and warpgroup; what one warpgroup prints, and what one of its warps does, is in the order of the program. Lines of warps
//! of one warp region stand by warps.
use super::values;
use crate::dtype::DType;
use crate::error::{Error, Fault};
use crate::kernel_ir::AfterPrint;
use crate::kernel_ir::text_format::{self, Field, Piece};
use crate::lower::debug_print::{PrintArg, PrintSite, Prints};
use crate::ptx::launch::Printer;
use std::collections::VecDeque;

/// Memory for the prints of a launch, `bytes` of them for records: all zero but for its capacity.
pub fn empty(bytes: u64) -> Vec<u64> {
    let words = (Printer::RECORDS + bytes).div_ceil(8);
    let mut memory = vec![0; words as usize];
    memory[(Printer::CAPACITY / 8) as usize] = bytes & !15;
    memory
}

/// A record, without its header.
struct Record<'a> {
    site: usize,
    block: u32,
    warp: u32,
    words: &'a [u32],
}

/// What a launch has printed.
#[derive(Debug, Default)]
pub struct Printed {
    /// Lines with an end each; empty: nothing.
    pub text: String,
    /// The first check that failed.
    pub failed: Option<Error>,
}

/// What kernel `name` has printed. `memory`: from the start, as far as anything was reserved at least;
/// `device`: where that is to be shown.
pub fn printed(name: &str, prints: &Prints, memory: &[u32], device: Option<i32>) -> Printed {
    let (records, mut dropped) = read(prints, memory);
    let mut out = Printed::default();
    let warpgroup = |record: &Record<'_>| (record.block, record.warp / 4);
    let mut groups: Vec<Vec<Record<'_>>> = vec![];
    let mut sorted = records;
    sorted.sort_by_key(warpgroup);
    for record in sorted {
        match groups.last_mut() {
            Some(group) if warpgroup(&group[0]) == warpgroup(&record) => group.push(record),
            _ => groups.push(vec![record]),
        }
    }
    for group in groups {
        dropped += of_warpgroup(prints, group, device, &mut out);
    }
    if dropped > 0 {
        let bytes = capacity(memory);
        let (prints, were) = if dropped == 1 {
            ("print", "was")
        } else {
            ("prints", "were")
        };
        out.text += &format!(
            "smalt: {dropped} {prints} of `{name}` {were} dropped: a launch's buffer has {bytes} bytes (set SMALT_PRINT_BYTES to more)\n"
        );
    }
    out
}

fn word64(memory: &[u32], at: u64) -> u64 {
    let word = |i: u64| u64::from(memory.get((at / 4 + i) as usize).copied().unwrap_or(0));
    word(0) | word(1) << 32
}

fn capacity(memory: &[u32]) -> u64 {
    word64(memory, Printer::CAPACITY)
}

/// The records in the order in which room was found for them, and how many prints found none.
fn read<'a>(prints: &Prints, memory: &'a [u32]) -> (Vec<Record<'a>>, u64) {
    let dropped = u64::from(memory.get((Printer::DROPPED / 4) as usize).copied().unwrap_or(0));
    let used = word64(memory, Printer::CURSOR).min(capacity(memory));
    let all = memory.get((Printer::RECORDS / 4) as usize..).unwrap_or_default();
    let mut rest = &all[..all.len().min((used / 4) as usize)];
    let mut records = vec![];
    while let [bytes, site, block, warp, ..] = *rest {
        let known = prints.sites.get(site as usize).is_some_and(|s| s.bytes == bytes);
        let words = (bytes / 4) as usize;
        // A kernel that ended half-way leaves room that it has not written to; and the last that found no room ends them all.
        if !known || words > rest.len() {
            break;
        }
        records.push(Record {
            site: site as usize,
            block,
            warp,
            words: &rest[Printer::HEADER..words],
        });
        rest = &rest[words..];
    }
    (records, dropped)
}

/// The records of one warpgroup, in order; how many are not whole.
fn of_warpgroup(prints: &Prints, records: Vec<Record<'_>>, device: Option<i32>, out: &mut Printed) -> u64 {
    let mut incomplete = 0;
    // Parts by the other warps, in the order of each.
    let mut parts: Vec<[VecDeque<Record<'_>>; 4]> = prints.sites.iter().map(|_| Default::default()).collect();
    let mut whole = vec![];
    for record in records {
        let site = &prints.sites[record.site];
        if site.in_parts && !site.of_warp && !record.warp.is_multiple_of(4) {
            parts[record.site][(record.warp % 4) as usize].push_back(record);
        } else {
            whole.push(record);
        }
    }
    // Warps of a warp region come as they come.
    let mut from = 0;
    while from < whole.len() {
        let of_warp = |record: &Record<'_>| prints.sites[record.site].of_warp;
        let run = whole[from..].iter().take_while(|r| of_warp(r)).count();
        whole[from..from + run].sort_by_key(|r| r.warp);
        from += run.max(1);
    }
    for first in whole {
        let site = &prints.sites[first.site];
        let prefix = prefix(prints, site, &first, device);
        let mut of_warps = vec![first];
        if site.in_parts && !site.of_warp {
            let others = (1..4).filter_map(|warp| parts[of_warps[0].site][warp].pop_front());
            let others: Vec<_> = others.collect();
            of_warps.extend(others);
            if of_warps.len() < 4 {
                incomplete += 1;
                continue;
            }
        }
        match site.then {
            AfterPrint::GoesOn => lines(site, &of_warps, &prefix, &mut out.text),
            AfterPrint::Fails => {
                out.failed.get_or_insert_with(|| failure(site, &of_warps, &prefix));
            }
        }
    }
    incomplete
}

/// `[block (0, 1), warpgroup 1, warp 2] `: what there is more than one of.
fn prefix(prints: &Prints, site: &PrintSite, record: &Record<'_>, device: Option<i32>) -> String {
    let mut labels = vec![];
    if let Some(device) = device {
        labels.push(format!("device {device}"));
    }
    if prints.blocks.iter().product::<u64>() > 1 {
        let index = index_text(&prints.blocks, record.block.into());
        labels.push(match prints.blocks.len() {
            1 => format!("block {index}"),
            _ => format!("block ({index})"),
        });
    }
    if prints.warpgroups > 1 {
        labels.push(format!("warpgroup {}", record.warp / 4));
    }
    if site.of_warp {
        labels.push(format!("warp {}", record.warp % 4));
    }
    if labels.is_empty() {
        return String::new();
    }
    format!("[{}] ", labels.join(", "))
}

/// The error of a check that failed.
fn failure(site: &PrintSite, records: &[Record<'_>], prefix: &str) -> Error {
    let mut message = String::new();
    one_line(site, records, &mut message);
    let error = Error::new(Fault::Execution, format!("a check failed: {message}")).at(site.loc);
    match prefix.trim().trim_start_matches('[').trim_end_matches(']') {
        "" => error,
        place => error.got(format!("in {place}")),
    }
}

fn lines(site: &PrintSite, records: &[Record<'_>], prefix: &str, out: &mut String) {
    if let [arg] = site.args.as_slice()
        && let Some(layout) = &arg.layout
    {
        // One array: a line for each element, as JAX's own backend has it.
        let pieces = text_format::parse(&site.format, 1).unwrap_or_default();
        for (i, bits) in (0..).zip(elements(arg, records)) {
            let index = index_text(layout.shape(), i);
            *out += prefix;
            for piece in &pieces {
                match piece {
                    Piece::Text(text) => *out += text,
                    Piece::Field(field) => {
                        *out += &format!("[{index}]: {}", values::format(field, arg.dtype, bits));
                    }
                }
            }
            out.push('\n');
        }
        return;
    }
    *out += prefix;
    one_line(site, records, out);
    out.push('\n');
}

/// The text in which arrays stand as nested lists.
fn one_line(site: &PrintSite, records: &[Record<'_>], out: &mut String) {
    let pieces = text_format::parse(&site.format, site.args.len()).unwrap_or_default();
    let args: Vec<Vec<u64>> = site.args.iter().map(|arg| elements(arg, records)).collect();
    for piece in &pieces {
        match piece {
            Piece::Text(text) => *out += text,
            Piece::Field(field) => {
                let (arg, values) = (&site.args[field.arg], &args[field.arg]);
                *out += &match &arg.layout {
                    None => values::format(field, arg.dtype, values[0]),
                    Some(layout) => nested(field, arg.dtype, layout.shape(), values),
                };
            }
        }
    }
}

/// The index of the element of this number in row-major order.
fn index(shape: &[u64], mut number: u64) -> Vec<u64> {
    let mut index = vec![];
    for extent in shape.iter().rev() {
        index.push(number % extent);
        number /= extent;
    }
    index.reverse();
    index
}

/// `1, 2`
pub fn index_text(shape: &[u64], number: u64) -> String {
    let index: Vec<String> = index(shape, number).iter().map(u64::to_string).collect();
    index.join(", ")
}

/// `[[1, 2], [3, 4]]`
fn nested(field: &Field, dtype: DType, shape: &[u64], values: &[u64]) -> String {
    let Some((extent, inner)) = shape.split_first() else {
        return values
            .first()
            .map_or_else(String::new, |bits| values::format(field, dtype, *bits));
    };
    let each = values.len() / (*extent).max(1) as usize;
    let parts: Vec<String> = (0..*extent as usize)
        .map(|i| nested(field, dtype, inner, &values[i * each..(i + 1) * each]))
        .collect();
    format!("[{}]", parts.join(", "))
}

/// The bits of an argument's elements, row-major. `records`: each warp's that has a part, or the only one.
fn elements(arg: &PrintArg, records: &[Record<'_>]) -> Vec<u64> {
    let header = Printer::HEADER as u32;
    let word = |record: usize, lane: u32, k: u32| {
        let at = arg.at - header + if arg.by_lane { 32 * k + lane } else { k };
        u64::from(records[record].words.get(at as usize).copied().unwrap_or(0))
    };
    let bits = arg.dtype.bits();
    let slot_bits = |record: usize, lane: u32, slot: u32| {
        if bits == 64 {
            return word(record, lane, 2 * slot) | word(record, lane, 2 * slot + 1) << 32;
        }
        let per_word = if arg.dtype == DType::Bool { 1 } else { 32 / bits };
        word(record, lane, slot / per_word) >> (slot % per_word * bits) & ((1 << bits) - 1)
    };
    let Some(layout) = &arg.layout else {
        return vec![slot_bits(0, 0, 0)];
    };
    let count: u64 = layout.shape().iter().product();
    if layout.is_splat() {
        return vec![slot_bits(0, 0, 0); count as usize];
    }
    let of_element = |number: u64| {
        let (thread, slot) = layout.owner(&index(layout.shape(), number));
        match arg.by_lane {
            true => slot_bits((thread / 32) as usize, thread % 32, slot),
            false => slot_bits(0, 0, slot),
        }
    };
    (0..count).map(of_element).collect()
}
