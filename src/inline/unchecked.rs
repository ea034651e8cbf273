//! Texts that are handed to the assembler as they are: only braces and operands are looked at.
use super::lex;
use super::parse::{Interface, Limits, parse};
use crate::error::{Error, Result};
use crate::kernel_ir::InlinePtx;
use crate::ptx::build::{Builder, Operand};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::{BitType, Compare, CompareType, CvtType, Lanes};
use crate::ptx::operand::{Class, Regs, Src, Srcs};
use crate::ptx::ssa::Value;
use std::fmt::Write;
use std::sync::Arc;

/// Such a text, with names for its results and operands.
pub struct Unchecked {
    code: Arc<str>,
    unknown: Arc<str>,
    isa: i64,
    lanes: Lanes,
    /// Of the results and then the operands.
    classes: Vec<Class>,
    results: usize,
}

impl Unchecked {
    /// `isa`: the PTX ISA that it asks for.
    pub fn new(code: &InlinePtx, isa: u32, interface: &Interface, results: usize) -> Result<Unchecked> {
        let text = named(&code.text, interface)?;
        let classes = interface.classes();
        let mut out = String::new();
        for (k, class) in classes.iter().enumerate() {
            let _ = writeln!(out, "\t.reg {} smalt_{k};", class.ptx_type());
            if k >= results {
                let from = format!("smalt_a{}", k - results);
                let _ = match class {
                    Class::Pred => writeln!(out, "\tsetp.ne.u64 smalt_{k}, {from}, 0;"),
                    Class::B16 => writeln!(out, "\tcvt.u16.u64 smalt_{k}, {from};"),
                    Class::B32 => writeln!(out, "\tcvt.u32.u64 smalt_{k}, {from};"),
                    Class::B64 => writeln!(out, "\tmov.b64 smalt_{k}, {from};"),
                };
            }
        }
        let _ = writeln!(out, "{{\n{text}\n}}");
        for (k, class) in classes[..results].iter().enumerate() {
            let _ = match class {
                Class::Pred => writeln!(out, "\tselp.b64 smalt_d{k}, 1, 0, smalt_{k};"),
                Class::B16 => writeln!(out, "\tcvt.u64.u16 smalt_d{k}, smalt_{k};"),
                Class::B32 => writeln!(out, "\tcvt.u64.u32 smalt_d{k}, smalt_{k};"),
                Class::B64 => writeln!(out, "\tmov.b64 smalt_d{k}, smalt_{k};"),
            };
        }
        let unknown = match parse(&code.text, interface, results, Limits::WRITTEN) {
            Ok(_) => String::new(),
            Err(error) => error.got.unwrap_or(error.what),
        };
        Ok(Unchecked {
            code: out.trim_end().into(),
            unknown: unknown.into(),
            isa: i64::from(isa),
            lanes: if code.once { Lanes::One } else { Lanes::Warp },
            classes: classes.to_vec(),
            results,
        })
    }

    /// Emits it, and gives its results.
    pub fn emit(&self, b: &mut Builder, operands: &[Operand]) -> Vec<Operand> {
        let mut a: Srcs<Value> = Srcs::new();
        for (x, class) in operands.iter().zip(&self.classes[self.results..]) {
            let wide = match class {
                Class::Pred => b.select(BitType::B64, *x, Src::Imm(1), Src::Imm(0)),
                Class::B16 => b.cvt_int(CvtType::U64, CvtType::U16, *x),
                Class::B32 => b.cvt_int(CvtType::U64, CvtType::U32, *x),
                Class::B64 => *x,
            };
            a.push(Src::Reg(b.value(wide, Class::B64)));
        }
        let d: Regs<Value> = (0..self.results).map(|_| Value::NEW).collect();
        let made = b.inst(Inst::unchecked(
            self.lanes,
            self.isa,
            self.unknown.clone(),
            self.code.clone(),
            d,
            a,
        ));
        let of = made.into_iter().zip(&self.classes);
        of.map(|(x, class)| match class {
            Class::Pred => b.setp(Compare::Ne, CompareType::U64, x, Src::Imm(0)),
            Class::B16 => b.cvt_int(CvtType::U16, CvtType::U64, x),
            Class::B32 => b.cvt_int(CvtType::U32, CvtType::U64, x),
            Class::B64 => Src::Reg(x),
        })
        .collect()
    }
}

/// The text with a name in place of each `{k}`.
fn named(text: &str, interface: &Interface) -> Result<String> {
    let wrong = |line: u32, what: &str| Error::invalid(format!("inline PTX, line {line}: {what}"));
    let text = lex::without_comments(text).map_err(|(line, what)| wrong(line, &what))?;
    let (mut out, mut depth, mut line, mut rest) = (String::new(), 0u32, 1u32, text.as_str());
    while let Some(c) = rest.chars().next() {
        line += u32::from(c == '\n');
        let inner = rest
            .strip_prefix('{')
            .and_then(|r| r.split_once('}'))
            .map(|(inner, _)| inner);
        let is_place =
            |i: &str| i.starts_with(|c: char| c.is_ascii_digit()) && i.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if let Some(inner) = inner.filter(|i| is_place(i.trim())) {
            let found = interface.find(inner);
            let range =
                found.map_err(|there| wrong(line, &format!("`{{{inner}}}` stands for nothing")).expected(there))?;
            let names: Vec<String> = range.map(|k| format!("smalt_{k}")).collect();
            match &names[..] {
                [name] => out.push_str(name),
                _ => {
                    let _ = write!(out, "{{{}}}", names.join(", "));
                }
            }
            line += inner.matches('\n').count() as u32;
            rest = &rest[inner.len() + 2..];
            continue;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Err(wrong(line, "a `}` without its `{`")),
            '}' => depth -= 1,
            _ => {}
        }
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    if depth > 0 {
        return Err(wrong(line, "a `{` without its `}`").expected("a `}` for each scope that is opened"));
    }
    if !out.trim_end().ends_with([';', '}']) {
        return Err(
            wrong(line, "the text does not end with a semicolon").expected("a semicolon behind each instruction")
        );
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_braces_and_operands_are_looked_at() {
        let two = Interface::from([Class::B32, Class::B32]);
        assert_eq!(
            named("{ .reg .b32 t; foo.bar {t, { 1 }}, [{0}+4]; } // {9}", &two)
                .unwrap()
                .trim(),
            "{ .reg .b32 t; foo.bar {t, smalt_1}, [smalt_0+4]; }"
        );
        for (text, says) in [
            ("foo {2};", "`{2}` stands for nothing"),
            ("foo {0}", "does not end with a semicolon"),
            ("{ foo {0};", "a `{` without its `}`"),
            ("foo {0}; }", "a `}` without its `{`"),
            ("\nfoo; /* ", "line 2: a comment without"),
        ] {
            let error = named(text, &two).unwrap_err();
            assert!(error.what.contains(says), "{text}: {error}");
        }
    }
}
