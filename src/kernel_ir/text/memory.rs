//! Allocations (`smem f16[4,64,64] tile(8,64) swizzle 128`), views of them (`alloc4[%v29, 0:+64, 0:+64]: f16[64,64]`), and operands
//! that are values or in memory.
use super::{Text, visits};
use crate::dtype::DType;
use crate::error::Loc;
use crate::kernel_ir::alloc::{AllocData, AllocKind, GmemOrigin, Owner};
use crate::kernel_ir::op::{AccUse, Constant, MmaOperand, PrintLayoutOf};
use crate::kernel_ir::parse::{Parser, Result};
use crate::kernel_ir::print::Printer;
use crate::kernel_ir::types::{Elem, Shape, write_array};
use crate::kernel_ir::view::{DimIndex, Index, Place, RefUse, Step};
use crate::kernel_ir::visit::{Part, PartMut};
use crate::kernel_ir::{Alloc, Value};
use std::fmt::{self, Display, Write};

impl Text for AllocData {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        let AllocData {
            kind,
            shape,
            collective,
            within,
            owner,
            loc: _,
        } = self;
        let array = |p: &mut Printer<'_>, what: &str, elem: &dyn Display| {
            p.write_str(what)?;
            write_array(p, elem, shape)
        };
        match kind {
            AllocKind::Gmem { dtype, origin } => {
                array(p, "gmem ", dtype)?;
                origin.print_field("", p)?;
            }
            AllocKind::Smem { dtype, transforms } => {
                array(p, "smem ", dtype)?;
                transforms.print_field("", p)?;
            }
            AllocKind::SmemUnion => write!(p, "smem_union {} bytes", shape[0])?,
            AllocKind::Tmem {
                dtype,
                layout,
                collective_mma,
            } => {
                array(p, "tmem ", dtype)?;
                layout.print_field("as", p)?;
                collective_mma.print_field("collective_mma", p)?;
            }
            AllocKind::TmemUnion => write!(p, "tmem_union {} columns", shape.last().copied().unwrap_or(0))?,
            AllocKind::Barrier {
                num_arrivals,
                orders_tensor_core,
                cluster,
            } => {
                array(p, "", &"barrier")?;
                num_arrivals.print_field("arrivals", p)?;
                orders_tensor_core.print_field("orders_tensor_core", p)?;
                cluster.print_field("cluster", p)?;
            }
            AllocKind::Semaphore { origin } => {
                array(p, "", &"semaphore")?;
                origin.print_field("", p)?;
            }
            AllocKind::Register { dtype, accumulator } => {
                array(p, if *accumulator { "accumulator " } else { "register " }, dtype)?;
            }
        }
        within.print_field("in", p)?;
        (*collective && !matches!(kind, AllocKind::Gmem { .. })).print_field("collective", p)?;
        (*owner == Owner::Compiler).print_field("compiler", p)
    }

    fn parse(p: &mut Parser<'_>) -> Result<AllocData> {
        p.blanks();
        let start = p.at();
        let mut shape = Shape::new();
        let mut dtype = DType::I8;
        let mut array = |p: &mut Parser<'_>| {
            (dtype, shape) = (DType::parse(p)?, p.shape()?);
            Ok(dtype)
        };
        let kind = match p.word("a kind of allocation")? {
            "gmem" => AllocKind::Gmem {
                dtype: array(p)?,
                origin: GmemOrigin::parse(p)?,
            },
            "smem" => AllocKind::Smem {
                dtype: array(p)?,
                transforms: ["tile", "swizzle"]
                    .into_iter()
                    .any(|w| p.is_next(w))
                    .then(|| Text::parse(p))
                    .transpose()?,
            },
            "smem_union" => {
                shape.push(p.number()?);
                p.expect("bytes")?;
                AllocKind::SmemUnion
            }
            "tmem" => AllocKind::Tmem {
                dtype: array(p)?,
                layout: Text::parse_field("as", p)?,
                collective_mma: p.eat("collective_mma"),
            },
            "tmem_union" => {
                shape.extend([128, p.number()?]);
                p.expect("columns")?;
                AllocKind::TmemUnion
            }
            "barrier" => {
                shape = p.shape()?;
                AllocKind::Barrier {
                    num_arrivals: u64::parse_field("arrivals", p)?,
                    orders_tensor_core: p.eat("orders_tensor_core"),
                    cluster: Text::parse_field("cluster", p)?,
                }
            }
            "semaphore" => {
                shape = p.shape()?;
                let origin = GmemOrigin::parse(p)?;
                AllocKind::Semaphore { origin }
            }
            of @ ("accumulator" | "register") => AllocKind::Register {
                dtype: array(p)?,
                accumulator: of == "accumulator",
            },
            other => return p.error_at(start, format!("`{other}` is no kind of allocation")),
        };
        let within = Text::parse_field("in", p)?;
        let collective = p.eat("collective") || matches!(kind, AllocKind::Gmem { .. });
        let owner = match p.eat("compiler") {
            true => Owner::Compiler,
            false => Owner::Author,
        };
        Ok(AllocData {
            kind,
            shape,
            collective,
            within,
            owner,
            loc: Loc::CALL_SITE,
        })
    }
}

impl Text for GmemOrigin {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        match self {
            GmemOrigin::Param(i) => write!(p, "param{i}"),
            GmemOrigin::Scratch { global: true } => p.write_str("global"),
            GmemOrigin::Scratch { global: false } => p.write_str("per block"),
        }
    }
    fn parse(p: &mut Parser<'_>) -> Result<GmemOrigin> {
        if p.eat("global") {
            return Ok(GmemOrigin::Scratch { global: true });
        }
        if p.eat("per") {
            p.expect("block")?;
            return Ok(GmemOrigin::Scratch { global: false });
        }
        match p.eat_prefix("param") {
            true => p.number().map(GmemOrigin::Param),
            false => p.expected("a parameter"),
        }
    }
}

/// The allocation, what is taken of it step by step, whose it is, and what that gives.
impl Text for RefUse {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        self.alloc.print(p)?;
        for step in &self.steps {
            if let Step::Index(dims) = step {
                p.write_char('[')?;
                p.list(", ", dims)?;
                p.write_char(']')?;
            } else {
                p.write_char('.')?;
                step.print(p)?;
            }
        }
        if self.place != Place::Here {
            p.write_char('@')?;
            self.place.print(p)?;
        }
        p.write_str(": ")?;
        write_array(p, self.elem, &self.shape)
    }
    fn parse(p: &mut Parser<'_>) -> Result<RefUse> {
        let alloc = Alloc::parse(p)?;
        let mut steps = vec![];
        loop {
            if p.eat_prefix("[") {
                steps.push(Step::Index(p.list("]", DimIndex::parse)?));
            } else if p.eat_prefix(".") {
                steps.push(Step::parse(p)?);
            } else {
                break;
            }
        }
        let place = match p.eat_prefix("@") {
            true => Place::parse(p)?,
            false => Place::Here,
        };
        p.expect(":")?;
        let elem = p.name("element type", |name| match name {
            "barrier" => Some(Elem::Barrier),
            "semaphore" => Some(Elem::Semaphore),
            _ => DType::from_short(name).map(Elem::Data),
        })?;
        let shape = p.shape()?;
        Ok(RefUse {
            alloc,
            steps,
            place,
            elem,
            shape,
        })
    }
    fn print_list(list: &[RefUse], p: &mut Printer<'_>) -> fmt::Result {
        p.list(", ", list)
    }
    fn parse_list(p: &mut Parser<'_>) -> Result<Vec<RefUse>> {
        p.operands(|p| p.rest().starts_with("alloc"), RefUse::parse)
    }
    fn visit(&self, f: &mut dyn FnMut(Part<'_>)) {
        f(Part::Ref(self));
    }
    fn visit_mut(&mut self, f: &mut dyn FnMut(PartMut<'_>)) {
        f(PartMut::Ref(self));
    }
}

impl Text for DimIndex {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        match self {
            DimIndex::At(index) => index.print(p),
            DimIndex::Slice { start, size, stride } => {
                start.print(p)?;
                write!(p, ":+{size}")?;
                match stride {
                    1 => Ok(()),
                    _ => write!(p, ":{stride}"),
                }
            }
            DimIndex::Window { start, size } => {
                p.write_str("window ")?;
                start.print(p)?;
                write!(p, ":+{size}")
            }
            DimIndex::Gather(v) => write!(p, "gather {v}"),
        }
    }
    fn parse(p: &mut Parser<'_>) -> Result<DimIndex> {
        if p.eat("gather") {
            return p.value().map(DimIndex::Gather);
        }
        let window = p.eat("window");
        let start = Index::parse(p)?;
        if !p.eat(":+") {
            return match window {
                true => p.expected("`:+` and a size"),
                false => Ok(DimIndex::At(start)),
            };
        }
        let size = p.number()?;
        if window {
            return Ok(DimIndex::Window { start, size });
        }
        let stride = match p.eat(":") {
            true => p.number()?,
            false => 1,
        };
        Ok(DimIndex::Slice { start, size, stride })
    }
    visits!(
        DimIndex::At(start) | DimIndex::Slice { start, .. } | DimIndex::Window { start, .. } => [start],
        DimIndex::Gather(v) => [v],
    );
}

impl Text for Index {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        match self {
            Index::Const(x) => write!(p, "{x}"),
            Index::Value(v) => v.print(p),
        }
    }
    /// A number without a type is no value.
    fn parse(p: &mut Parser<'_>) -> Result<Index> {
        p.blanks();
        let start = p.at();
        if let Ok(number) = p.number()
            && !p.is_typed()
        {
            return Ok(Index::Const(number));
        }
        p.back_to(start);
        p.value().map(Index::Value)
    }
    visits!(Index::Value(v) => [v], Index::Const(_) => []);
}

/// A use of a semaphore, and what is added to it.
impl Text for (RefUse, Value) {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        self.0.print(p)?;
        self.1.print_field("+=", p)
    }
    fn parse(p: &mut Parser<'_>) -> Result<(RefUse, Value)> {
        Ok((RefUse::parse(p)?, Value::parse_field("+=", p)?))
    }
    fn print_list(list: &[Self], p: &mut Printer<'_>) -> fmt::Result {
        p.list(", ", list)
    }
    fn parse_list(p: &mut Parser<'_>) -> Result<Vec<Self>> {
        p.operands(|p| p.rest().starts_with("alloc"), Self::parse)
    }
    visits!((semaphore, value) => [semaphore, value]);
}

/// What is before and behind a dimension: `-1:0`.
impl Text for (i64, i64) {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        write!(p, "{}:{}", self.0, self.1)
    }
    fn parse(p: &mut Parser<'_>) -> Result<(i64, i64)> {
        let low = p.number()?;
        p.expect(":")?;
        Ok((low, p.number()?))
    }
}

/// A value, or a use of a reference.
macro_rules! value_or_ref {
    ($ty:ident: $value:ident, $reference:ident) => {
        impl Text for $ty {
            fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
                match self {
                    $ty::$value(v) => v.print(p),
                    $ty::$reference(r) => r.print(p),
                }
            }
            fn parse(p: &mut Parser<'_>) -> Result<$ty> {
                match p.at_value() {
                    true => p.value().map($ty::$value),
                    false => RefUse::parse(p).map($ty::$reference),
                }
            }
            visits!($ty::$value(v) => [v], $ty::$reference(r) => [r]);
        }
    };
}
value_or_ref!(MmaOperand: Registers, Smem);
value_or_ref!(PrintLayoutOf: Value, Ref);

/// An allocation, or a value and perhaps a part of it: `%v3[64:+64, 0:+128]`.
impl Text for AccUse {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        match self {
            AccUse::Ref(r) => r.print(p),
            AccUse::Value(v) => v.print(p),
            AccUse::Part { acc, at, shape } => {
                acc.print(p)?;
                write!(p, "[{}:+{}, {}:+{}]", at[0], shape[0], at[1], shape[1])
            }
        }
    }
    fn parse(p: &mut Parser<'_>) -> Result<AccUse> {
        if !p.at_value() {
            return RefUse::parse(p).map(AccUse::Ref);
        }
        let acc = p.value()?;
        if !p.eat_prefix("[") {
            return Ok(AccUse::Value(acc));
        }
        let extent = |p: &mut Parser<'_>| {
            let at = p.number()?;
            p.expect(":+")?;
            Ok((at, p.number()?))
        };
        let rows = extent(p)?;
        p.expect(",")?;
        let columns = extent(p)?;
        p.expect("]")?;
        let (at, shape) = ([rows.0, columns.0], [rows.1, columns.1]);
        Ok(AccUse::Part { acc, at, shape })
    }
    visits!(AccUse::Ref(r) => [r], AccUse::Value(v) | AccUse::Part { acc: v, .. } => [v]);
}

/// `splat 0x3f800000`, `dense 0001`: the type is the result's.
impl Text for Constant {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        match self {
            Constant::Splat(bits) => write!(p, "splat {bits:#x}"),
            Constant::Dense(bytes) => {
                p.write_str("dense ")?;
                bytes.iter().try_for_each(|byte| write!(p, "{byte:02x}"))
            }
        }
    }
    fn parse(p: &mut Parser<'_>) -> Result<Constant> {
        let splat = p.eat("splat");
        if !splat {
            p.expect("dense")?;
        }
        p.blanks();
        let start = p.at();
        if splat {
            let word = p.word("bits")?;
            let bits = word.strip_prefix("0x").and_then(|w| u64::from_str_radix(w, 16).ok());
            return match bits {
                Some(bits) => Ok(Constant::Splat(bits)),
                None => p.error_at(start, format!("expected bits as 0x…, got `{word}`")),
            };
        }
        if p.rest().starts_with('\n') {
            return Ok(Constant::Dense(vec![]));
        }
        let word = p.word("bytes")?;
        let bytes = word
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        match bytes.collect::<Option<Vec<u8>>>() {
            Some(bytes) if word.len() % 2 == 0 => Ok(Constant::Dense(bytes)),
            Some(_) | None => p.error_at(start, "bytes have two hexadecimal digits each"),
        }
    }
}
