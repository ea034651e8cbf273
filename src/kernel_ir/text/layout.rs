//! Layouts as users write them: `"WGMMA"=TILED((64,8)(16,8)(8,8)(2) warp -8 lane -4 -3 vec -1)`, `WG_SPLAT(64,128)`.
use super::Text;
use crate::kernel_ir::parse::{Parser, Result};
use crate::kernel_ir::print::{Commas, Printer};
use crate::kernel_ir::types::{LayoutArg, LayoutDim, LayoutSpec};
use std::fmt::{self, Display, Formatter, Write};

/// How a layout with a name prints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    /// As its name, for messages.
    Short,
    /// With what it is, for dumps.
    Whole,
}

impl Display for LayoutSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_layout(f, self, Named::Short)
    }
}

impl Text for LayoutSpec {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        write_layout(p, self, Named::Whole)
    }
    fn parse(p: &mut Parser<'_>) -> Result<LayoutSpec> {
        p.blanks();
        if p.rest().starts_with('"') {
            let given = p.quoted()?;
            p.expect("=")?;
            let at = p.at();
            let mut layout = LayoutSpec::parse(p)?;
            let LayoutSpec::Tiled { name, .. } = &mut layout else {
                return p.error_at(at, "only tiled layouts have names");
            };
            *name = given;
            return Ok(layout);
        }
        let kind = p.word("a layout")?;
        p.expect("(")?;
        let layout = match kind {
            "TILED" => {
                let mut tiling = vec![];
                while p.eat("(") {
                    tiling.push(p.list(")", Parser::number)?);
                }
                let mut dims = |what: &str| {
                    p.expect(what)?;
                    let mut dims = vec![];
                    while p.starts_with(|c| c == 'R' || c == '-' || c.is_ascii_digit()) {
                        dims.push(LayoutDim::parse(p)?);
                    }
                    Ok(dims)
                };
                LayoutSpec::Tiled {
                    name: String::new(),
                    tiling,
                    warp_dims: dims("warp")?,
                    lane_dims: dims("lane")?,
                    vector_dim: i64::parse_field("vec", p)?,
                }
            }
            "WG_STRIDED" => LayoutSpec::Strided {
                shape: p.list(";", Parser::number::<u64>)?.into(),
                vec: p.number()?,
            },
            "WG_SPLAT" => {
                let shape = p.list(")", Parser::number::<u64>)?.into();
                return Ok(LayoutSpec::Splat { shape });
            }
            name => {
                let args = p.list(")", |p| {
                    let key = p.word("an argument's name")?.to_string();
                    p.expect("=")?;
                    Ok((key, LayoutArg::parse(p)?))
                })?;
                let name = name.to_string();
                return Ok(LayoutSpec::Named { name, args });
            }
        };
        p.expect(")")?;
        Ok(layout)
    }
}

fn write_layout(f: &mut dyn Write, layout: &LayoutSpec, named: Named) -> fmt::Result {
    match layout {
        LayoutSpec::Tiled {
            name,
            tiling,
            warp_dims,
            lane_dims,
            vector_dim,
        } => {
            match named {
                _ if name.is_empty() => {}
                Named::Short => return f.write_str(name),
                Named::Whole => write!(f, "{name:?}=")?,
            }
            f.write_str("TILED(")?;
            for tile in tiling {
                write!(f, "({})", Commas(tile))?;
            }
            for (what, dims) in [("warp", warp_dims), ("lane", lane_dims)] {
                write!(f, " {what}")?;
                dims.iter().try_for_each(|dim| write!(f, " {dim}"))?;
            }
            write!(f, " vec {vector_dim})")
        }
        LayoutSpec::Strided { shape, vec } => write!(f, "WG_STRIDED({}; {vec})", Commas(shape)),
        LayoutSpec::Splat { shape } => write!(f, "WG_SPLAT({})", Commas(shape)),
        LayoutSpec::Named { name, args } => {
            write!(f, "{name}(")?;
            for (i, (key, arg)) in args.iter().enumerate() {
                write!(f, "{}{key}=", if i > 0 { ", " } else { "" })?;
                match arg {
                    LayoutArg::Int(x) => write!(f, "{x}")?,
                    LayoutArg::Bool(x) => write!(f, "{x}")?,
                    LayoutArg::Ints(x) => write!(f, "({})", Commas(x))?,
                    LayoutArg::Text(x) => write!(f, "{x:?}")?,
                    LayoutArg::DType(x) => write!(f, "{x}")?,
                    LayoutArg::Layout(x) => write_layout(f, x, named)?,
                }
            }
            f.write_char(')')
        }
    }
}

impl LayoutArg {
    fn parse(p: &mut Parser<'_>) -> Result<LayoutArg> {
        let (start, rest) = (p.at(), p.rest());
        if rest.starts_with('"') {
            let text = p.quoted()?;
            if !p.rest().starts_with('=') {
                return Ok(LayoutArg::Text(text));
            }
            p.back_to(start);
            return Text::parse(p).map(LayoutArg::Layout);
        }
        if rest.starts_with('(') {
            return Text::parse(p).map(LayoutArg::Ints);
        }
        if rest.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
            return Text::parse(p).map(LayoutArg::Int);
        }
        for (text, flag) in [("true", true), ("false", false)] {
            if p.eat(text) {
                return Ok(LayoutArg::Bool(flag));
            }
        }
        p.word("an argument")?;
        let is_layout = p.rest().starts_with('(');
        p.back_to(start);
        match is_layout {
            true => Text::parse(p).map(LayoutArg::Layout),
            false => Text::parse(p).map(LayoutArg::DType),
        }
    }
}

impl Display for LayoutDim {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            LayoutDim::Dim(d) => write!(f, "{d}"),
            LayoutDim::Replicated(n) => write!(f, "R{n}"),
        }
    }
}

impl LayoutDim {
    fn parse(p: &mut Parser<'_>) -> Result<LayoutDim> {
        match p.eat_prefix("R") {
            true => p.number().map(LayoutDim::Replicated),
            false => p.number().map(LayoutDim::Dim),
        }
    }
}
