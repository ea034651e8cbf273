//! Kernels as text, for dumps and tests. [`parse`](super::parse) reads it.
//!
//! Scalar constants print where they are used (`64`, `0:u32`, `1.5:f32`) and have no line of their own. A trailing comment gives
//! the op of the descriptor, and what is known about an integer scalar: `// op7; 0..=63, multiple of 8`. Options print where they are
//! not those of [`Kernel::empty`]. How fields print is in [`text`](super::text). What is not in the text: facts of regions' parameters, which [`facts`] computes, and where
//! allocations are from.
use super::entities::{Op, Region, Value};
use super::kernel::bits_int;
use super::text::Text;
use super::*;
use crate::dtype::DType;
use cranelift_entity::SecondaryMap;
use std::fmt::{self, Display, Formatter, Write};

/// Expands `$each! { … }` over the options of kernels.
macro_rules! options {
    ($each:ident) => {
        $each! {
            semantics: Semantics { lowering }
                false_predicate_suppresses_arrival tensor_core_barrier_tracks_copies leader_tracked_last_axis_only;
            compiler_params: CompilerParams {}
                approx_math accumulate_products unsafe_no_auto_barriers reduction_scratch_bytes skip_device_barrier
                is_multi_process fp_contract quotients target wait_timeout_ns profile_space profile_scope every_lane_arrives;
        }
    };
}
pub(super) use options;

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut constants = SecondaryMap::new();
        for (_, op) in &self.ops {
            if let (OpKind::Constant(Constant::Splat(bits)), [v]) = (&op.kind, op.results.as_slice())
                && self.ty(*v).is_scalar()
            {
                constants[*v] = Some(*bits);
            }
        }
        let group = self.regions[self.body].group;
        let mut printer = Printer {
            out: f,
            kernel: self,
            constants,
            indent: 0,
            group,
            blank: false,
            opened: false,
        };
        printer.kernel()
    }
}

/// Writes a kernel's text, with scalar constants in place.
pub(crate) struct Printer<'a> {
    out: &'a mut dyn Write,
    kernel: &'a Kernel,
    /// Scalar constants: their bits.
    constants: SecondaryMap<Value, Option<u64>>,
    indent: usize,
    /// Who executes the region that is printed.
    group: Group,
    /// A blank is to be written before what comes next.
    blank: bool,
    /// A parenthesis has just been opened.
    opened: bool,
}

impl Write for Printer<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if s.is_empty() {
            return Ok(());
        }
        let blank = std::mem::take(&mut self.blank);
        if blank && !self.opened && !s.starts_with(['(', ',', '\n']) {
            self.out.write_char(' ')?;
        }
        self.opened = s.ends_with('(');
        self.out.write_str(s)
    }
}

impl Printer<'_> {
    /// What comes next is separated from what was before, but for commas and lists in parentheses.
    pub fn blank(&mut self) {
        self.blank = true;
    }

    pub fn label(&mut self, label: &str) -> fmt::Result {
        self.blank();
        self.write_str(label)
    }

    pub fn list<T: Text>(&mut self, between: &str, list: &[T]) -> fmt::Result {
        list.iter().enumerate().try_for_each(|(i, x)| {
            self.write_str(if i > 0 { between } else { "" })?;
            x.print(self)
        })
    }

    pub fn value(&mut self, v: Value) -> fmt::Result {
        match self.constants[v] {
            Some(bits) => write_bits(self, self.kernel.ty(v).dtype(), bits),
            None => write!(self, "{v}"),
        }
    }

    /// Values where they are defined.
    fn definitions(&mut self, values: &[Value], usual: Group) -> fmt::Result {
        for (i, &v) in values.iter().enumerate() {
            write!(self, "{}{v}: {}", if i > 0 { ", " } else { "" }, self.kernel.ty(v))?;
            match self.kernel.values[v].group {
                group if group == usual => {}
                group => write!(self, " per {group}")?,
            }
        }
        Ok(())
    }

    /// `per warp (%v1: i32) {`, ops, what it yields, `}`.
    pub fn region(&mut self, region: Region) -> fmt::Result {
        let data = &self.kernel.regions[region];
        let outer = std::mem::replace(&mut self.group, data.group);
        if data.group != outer {
            write!(self, "per {} ", data.group)?;
        }
        if !data.params.is_empty() {
            // The blank that a list does without.
            let blank = if std::mem::take(&mut self.blank) { " (" } else { "(" };
            self.write_str(blank)?;
            self.definitions(&data.params, data.group)?;
            self.write_str(") ")?;
        }
        self.ops(data)?;
        self.group = outer;
        Ok(())
    }

    fn ops(&mut self, region: &RegionData) -> fmt::Result {
        self.write_str("{\n")?;
        self.indent += 1;
        region.ops.iter().try_for_each(|op| self.op(*op))?;
        if !region.results.is_empty() {
            self.line("yield ")?;
            self.list(", ", &region.results)?;
            self.write_str("\n")?;
        }
        self.indent -= 1;
        self.line("}")
    }

    fn line(&mut self, begin: &str) -> fmt::Result {
        write!(self, "{:1$}{begin}", "", self.indent * 2)
    }

    fn op(&mut self, op: Op) -> fmt::Result {
        let OpData { kind, results, loc } = &self.kernel.ops[op];
        if let [v] = results.as_slice()
            && self.constants[*v].is_some()
        {
            return Ok(());
        }
        self.line("")?;
        self.definitions(results, Group::Warpgroup)?;
        self.write_str(if results.is_empty() { "" } else { " = " })?;
        kind.print(self)?;
        self.blank = false;
        let mut comments = vec![];
        if self.kernel.num_warpgroups > 0 && loc.0 != 0 {
            comments.push(format!("op{}", loc.0));
        }
        for &v in results {
            let data = &self.kernel.values[v];
            if data.ty.is_scalar() && !data.ty.dtype().is_float() && data.facts != Facts::of_dtype(data.ty.dtype()) {
                comments.push(match results.len() {
                    1 => data.facts.to_string(),
                    _ => format!("{v} {}", data.facts),
                });
            }
        }
        if !comments.is_empty() {
            write!(self, "  // {}", comments.join("; "))?;
        }
        self.write_str("\n")
    }

    fn kernel(&mut self) -> fmt::Result {
        let Kernel {
            name,
            stage,
            axes,
            grid,
            cluster,
            thread_axis,
            num_warpgroups,
            params,
            allocs,
            values: _,
            ops: _,
            regions: _,
            body,
            semantics,
            compiler_params: _,
            target: _,
            device_mesh: _,
            notes: _,
            dealing: _,
            refs: _,
        } = self.kernel;
        let (stage, lowering) = (stage.name(), semantics.lowering.name());
        writeln!(
            self,
            "kernel {name:?} {stage}, {num_warpgroups} warpgroup(s), {lowering} semantics"
        )?;
        self.options()?;
        for (axis, data) in axes {
            write!(self, "{axis}: ")?;
            data.kind.print(self)?;
            writeln!(self, ", size {}, {:?}", data.size, data.name)?;
        }
        assert!(grid.len() + cluster.len() + usize::from(thread_axis.is_some()) <= axes.len());
        for (i, param) in params.iter().enumerate() {
            write!(self, "param{i}: ")?;
            param.role.print(self)?;
            self.blank();
            match param.binding {
                ParamBinding::Alloc(alloc) => alloc.print(self)?,
                ParamBinding::Scalar(v) => self.definitions(&[v], Group::Warpgroup)?,
            }
            writeln!(self)?;
        }
        for (alloc, data) in allocs {
            write!(self, "{alloc}: ")?;
            data.print(self)?;
            writeln!(self)?;
        }
        // Its parameters are those of the kernel.
        self.ops(&self.kernel.regions[*body])?;
        self.write_str("\n")
    }

    /// `name value` of what is not as in an empty kernel.
    fn options(&mut self) -> fmt::Result {
        let plain = Kernel::empty("", 1);
        let kernel = self.kernel;
        let mut begin = "options: ";
        macro_rules! print {
            ($($of:ident: $ty:ident { $($other:ident)* } $($name:ident)*;)*) => {$(
                let $ty { $($name,)* $($other: _,)* } = &kernel.$of;
                $(
                    if *$name != plain.$of.$name {
                        write!(self, "{begin}{} ", stringify!($name))?;
                        $name.print(self)?;
                        begin = ", ";
                    }
                )*
            )*};
        }
        options!(print);
        self.write_str(if begin == ", " { "\n" } else { "" })
    }
}

/// `a,b,c`.
pub(super) struct Commas<'a, T>(pub &'a [T]);

impl<T: Display> Display for Commas<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, x) in self.0.iter().enumerate() {
            write!(f, "{}{x}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Writes a constant's element.
fn write_bits(f: &mut Printer<'_>, dtype: DType, bits: u64) -> fmt::Result {
    match dtype {
        DType::Bool => write!(f, "{}", bits & 1 != 0),
        DType::I32 => write!(f, "{}", bits as u32 as i32),
        // A NaN other than the usual one.
        DType::F32 if f32::from_bits(bits as u32).is_nan() && bits != u64::from(f32::NAN.to_bits()) => {
            write!(f, "{bits:#x}:f32")
        }
        DType::F64 if f64::from_bits(bits).is_nan() && bits != f64::NAN.to_bits() => write!(f, "{bits:#x}:f64"),
        DType::F16 if half::f16::from_bits(bits as u16).is_nan() && bits != u64::from(half::f16::NAN.to_bits()) => {
            write!(f, "{bits:#x}:f16")
        }
        DType::BF16 if half::bf16::from_bits(bits as u16).is_nan() && bits != u64::from(half::bf16::NAN.to_bits()) => {
            write!(f, "{bits:#x}:bf16")
        }
        DType::F32 => write!(f, "{:?}:f32", f32::from_bits(bits as u32)),
        DType::F64 => write!(f, "{:?}:f64", f64::from_bits(bits)),
        DType::F16 => write!(f, "{:?}:f16", half::f16::from_bits(bits as u16)),
        DType::BF16 => write!(f, "{:?}:bf16", half::bf16::from_bits(bits as u16)),
        _ => match bits_int(dtype, bits) {
            Some(x) => write!(f, "{x}:{dtype}"),
            None => write!(f, "{bits:#x}:{dtype}"),
        },
    }
}

impl Display for Facts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const LEAST: i128 = i64::MIN as i128;
        const GREATEST: i128 = i64::MAX as i128;
        const UNSIGNED: i128 = u64::MAX as i128;
        match (self.lo, self.hi) {
            (LEAST, GREATEST | UNSIGNED) => f.write_str("..")?,
            (LEAST, hi) => write!(f, "..={hi}")?,
            (lo, GREATEST | UNSIGNED) => write!(f, "{lo}..")?,
            (lo, hi) => write!(f, "{lo}..={hi}")?,
        }
        if self.divisor > 1 && self.lo != self.hi {
            write!(f, ", multiple of {}", self.divisor)?;
        }
        Ok(())
    }
}
