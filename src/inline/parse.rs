//! Text → [`Program`].
use super::in_flight;
use super::lex::{self, Piece};
use super::nearest;
use super::program::{Label, Program, Statement};
use crate::error::{Error, Result};
use crate::kernel_ir::InlinePtx;
use crate::ptx::flat::{Guard, Reg};
use crate::ptx::inst::Inst;
use crate::ptx::legal::MAX_PENDING_WGMMA_GROUPS;
use crate::ptx::modifier::{Modifier, SpecialPred, SpecialReg32, SpecialReg64};
use crate::ptx::operand::{Class, Tied};
use crate::ptx::parse::{misfit, parse_inst, printed_float};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// How long a text may be.
#[derive(Clone, Copy)]
pub struct Limits {
    registers: usize,
    statements: usize,
    labels: usize,
}

impl Limits {
    /// What people write: more registers than a thread has.
    pub const WRITTEN: Limits = Limits {
        registers: 1024,
        statements: 4096,
        labels: 256,
    };
    /// What is made of functions for all elements of a lane, with a register for each step.
    const MADE: Limits = Limits {
        registers: 1 << 18,
        statements: 1 << 18,
        labels: 4096,
    };

    pub fn of(code: &InlinePtx) -> Limits {
        match &code.whole {
            Some(whole) if !whole.in_words => Limits::MADE,
            Some(_) | None => Limits::WRITTEN,
        }
    }
}

/// The registers of a text's results and then operands.
pub struct Interface {
    classes: Vec<Class>,
    /// How many registers each result and operand has.
    sizes: Vec<usize>,
}

impl Interface {
    /// Of values of `sizes` registers each.
    pub fn new(classes: Vec<Class>, sizes: Vec<usize>) -> Interface {
        assert_eq!(classes.len(), sizes.iter().sum::<usize>());
        Interface { classes, sizes }
    }
    /// Of the registers one by one.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }
    /// The registers that `{k}` stands for, or the one that `{k.i}` does; else what there is.
    pub fn find(&self, name: &str) -> std::result::Result<Range<usize>, String> {
        let (k, i) = match name.trim().split_once('.') {
            Some((k, i)) => (k, Some(i)),
            None => (name.trim(), None),
        };
        let count = self.sizes.len();
        let Some(k) = k.parse::<usize>().ok().filter(|k| *k < count) else {
            return Err(match count {
                0 => "none: there are no results and no operands".to_string(),
                n => format!("{{0}} to {{{}}}: the results, then the operands", n - 1),
            });
        };
        let first: usize = self.sizes[..k].iter().sum();
        let Some(i) = i else {
            return Ok(first..first + self.sizes[k]);
        };
        match (i.parse::<usize>(), self.sizes[k]) {
            (Ok(i), n) if i < n => Ok(first + i..first + i + 1),
            (_, 1) => Err(format!("`{{{k}}}`, which is one register")),
            (_, n) => Err(format!("`{{{k}.0}}` to `{{{k}.{}}}`, or all of them: `{{{k}}}`", n - 1)),
        }
    }
    /// What a text calls one of the registers.
    fn name_of(&self, at: usize) -> String {
        let mut first = 0;
        for (k, n) in self.sizes.iter().enumerate() {
            if at < first + n {
                return match n {
                    1 => format!("{{{k}}}"),
                    _ => format!("{{{k}.{}}}", at - first),
                };
            }
            first += n;
        }
        String::new()
    }
}

/// Of values of a register each.
impl<const N: usize> From<[Class; N]> for Interface {
    fn from(classes: [Class; N]) -> Interface {
        Interface::new(classes.to_vec(), vec![1; N])
    }
}

/// Reads a text with these results and operands. `results`: how many of their registers are the results'. Errors name the text's line.
pub fn parse(text: &str, interface: &Interface, results: usize, limits: Limits) -> Result<Program> {
    let mut parser = Parser {
        limits,
        program: Program::default(),
        interface,
        scopes: vec![FxHashMap::default()],
        labels: FxHashMap::default(),
        line: 1,
        statement: String::new(),
    };
    for class in &interface.classes {
        let reg = parser.fresh(*class);
        parser.program.interface.push(reg);
    }
    let pieces = lex::pieces(text).map_err(|(line, what)| {
        parser.line = line;
        parser
            .error(what)
            .expected("statements that end with a semicolon, in scopes that are closed")
    })?;
    for (piece, line) in pieces {
        parser.line = line;
        parser.piece(piece)?;
    }
    if parser.scopes.len() != 1 {
        parser.statement.clear();
        return Err(parser
            .error("a `{` without its `}`")
            .expected("a `}` for each scope that is opened"));
    }
    parser.finish(results)
}

struct Parser<'a> {
    limits: Limits,
    program: Program,
    interface: &'a Interface,
    /// Names of registers, innermost scope last.
    scopes: Vec<FxHashMap<String, Reg>>,
    labels: FxHashMap<String, (Label, Option<usize>)>,
    line: u32,
    /// The statement being read, for errors.
    statement: String,
}

impl Parser<'_> {
    fn error(&self, what: impl Into<String>) -> Error {
        let error = Error::invalid(format!("inline PTX, line {}: {}", self.line, what.into()));
        match self.statement.is_empty() {
            true => error,
            false => error.got(format!("`{}`", self.statement)),
        }
    }

    fn fresh(&mut self, class: Class) -> Reg {
        let index = self.program.registers[class as usize];
        self.program.registers[class as usize] += 1;
        Reg { class, index }
    }

    fn push(&mut self, statement: Statement) -> Result<()> {
        if self.program.statements.len() >= self.limits.statements {
            return Err(self
                .error("too long a text")
                .expected(format!("at most {} statements", self.limits.statements)));
        }
        self.program.statements.push(statement);
        self.program.lines.push(self.line);
        Ok(())
    }

    fn label(&mut self, name: &str) -> &mut (Label, Option<usize>) {
        let next = self.labels.len();
        self.labels.entry(name.to_string()).or_insert((next, None))
    }

    fn piece(&mut self, piece: Piece) -> Result<()> {
        match piece {
            Piece::Open => self.scopes.push(FxHashMap::default()),
            Piece::Close => {
                self.scopes.pop();
                if self.scopes.is_empty() {
                    self.statement.clear();
                    return Err(self
                        .error("a `}` without its `{`")
                        .expected("a `{` for each scope that is closed"));
                }
            }
            Piece::Label(name) => {
                self.statement = format!("{name}:");
                let at = self.program.statements.len();
                let (label, place) = self.label(&name);
                let label = *label;
                if place.replace(at).is_some() {
                    return Err(self.error(format!("the label `{name}` stands twice")));
                }
                self.push(Statement::Label(label))?;
            }
            Piece::Statement(text) => {
                self.statement = text.split_whitespace().collect::<Vec<_>>().join(" ");
                self.statement(&text)?;
            }
        }
        Ok(())
    }

    fn statement(&mut self, text: &str) -> Result<()> {
        if let Some(rest) = text.strip_prefix('.') {
            return match rest.strip_prefix("reg") {
                Some(names) if names.starts_with(char::is_whitespace) => self.declare(names.trim()),
                Some(_) | None => Err(self
                    .error("a directive that is not for inline PTX")
                    .expected("`.reg`")
                    .remedy("memory and parameters are the kernel's: allocate them there, and pass references")),
            };
        }
        let (guard, rest) = match text.strip_prefix('@') {
            Some(rest) => {
                let (negated, rest) = match rest.trim_start().strip_prefix('!') {
                    Some(rest) => (true, rest.trim_start()),
                    None => (false, rest.trim_start()),
                };
                let end = match rest.starts_with('{') {
                    true => rest.find('}').map_or(rest.len(), |end| end + 1),
                    false => rest.find(char::is_whitespace).unwrap_or(rest.len()),
                };
                let pred = self.register(&rest[..end])?;
                if pred.class != Class::Pred {
                    return Err(self
                        .error(format!("the guard `{}` is no predicate", &rest[..end]))
                        .expected("a `.pred` register"));
                }
                (Some(Guard { pred, negated }), rest[end..].trim())
            }
            None => (None, text),
        };
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (opcode, operands) = (&rest[..end], rest[end..].trim());
        match opcode {
            "bra" | "bra.uni" => {
                if !lex::is_name(operands) {
                    return Err(self.error("a branch to what is no label").expected("`bra LABEL;`"));
                }
                let to = self.label(operands).0;
                self.push(Statement::Branch { guard, to })
            }
            "ret" | "exit" | "call" | "call.uni" | "brx.idx" | "brx.idx.uni" => Err(self
                .error(format!("`{opcode}` in inline PTX"))
                .expected("control that stays within the text: `bra` to its labels")
                .remedy("branch to a label at the text's end")),
            _ => {
                let operands = self.renamed(opcode, operands)?;
                let (opcode, operands) = match self.generic_barrier(opcode, &operands)? {
                    Some(own) => own,
                    None => (opcode.to_string(), operands),
                };
                let inst = self.instruction(&opcode, &operands)?;
                self.push(Statement::Inst { guard, inst })
            }
        }
    }

    fn declare(&mut self, text: &str) -> Result<()> {
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let class = match &text[..end] {
            ".pred" => Class::Pred,
            ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => Class::B16,
            ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => Class::B32,
            ".b64" | ".u64" | ".s64" | ".f64" => Class::B64,
            other => {
                return Err(self
                    .error(format!("registers of type `{other}`"))
                    .expected(".pred, or a type of 16, 32 or 64 bits"));
            }
        };
        for name in text[end..].split(',').map(str::trim) {
            let (stem, count) = match name.split_once('<') {
                Some((stem, count)) => {
                    let count = count.strip_suffix('>').and_then(|n| n.trim().parse::<usize>().ok());
                    (
                        stem.trim(),
                        Some(count.ok_or_else(|| self.error(format!("`{name}`")).expected("`name<count>`"))?),
                    )
                }
                None => (name, None),
            };
            if !lex::is_name(stem) {
                return Err(self.error(format!("`{stem}` is no name of a register")));
            }
            if self.program.count() + count.unwrap_or(1) > self.limits.registers {
                return Err(self
                    .error("too many registers")
                    .expected(format!("at most {}", self.limits.registers)));
            }
            let names = match count {
                Some(n) => (0..n).map(|i| format!("{stem}{i}")).collect(),
                None => vec![stem.to_string()],
            };
            for name in names {
                let reg = self.fresh(class);
                let scope = self.scopes.last_mut().expect("the outermost scope stays");
                if scope.insert(name.clone(), reg).is_some() {
                    return Err(self.error(format!("`{name}` is declared twice")));
                }
            }
        }
        Ok(())
    }

    /// The register that a name, or `{k}`, stands for.
    fn register(&self, name: &str) -> Result<Reg> {
        if let Some(k) = name.strip_prefix('{').and_then(|k| k.strip_suffix('}')) {
            return match self.placeholder(k)? {
                &[reg] => Ok(reg),
                regs => Err(self
                    .error(format!("`{{{k}}}` is a list of {} registers", regs.len()))
                    .expected(format!("one register: `{{{k}.0}}` to `{{{k}.{}}}`", regs.len() - 1))),
            };
        }
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        found.copied().ok_or_else(|| {
            self.error(format!("`{name}` is not declared")).expected(
                "a register of the text (`.reg .b32 name;`), or `{0}`, `{1}`, …: the results and then the operands",
            )
        })
    }

    fn placeholder(&self, name: &str) -> Result<&[Reg]> {
        match self.interface.find(name) {
            Ok(range) => Ok(&self.program.interface[range]),
            Err(there) => Err(self
                .error(format!("`{{{}}}` stands for nothing", name.trim()))
                .expected(there)),
        }
    }

    /// An instruction on a barrier by a generic address, which is one in the block's shared memory, as one by that: behind the address's conversion.
    fn generic_barrier(&mut self, opcode: &str, operands: &str) -> Result<Option<(String, String)>> {
        let names_memory = opcode.contains(".shared") || opcode.starts_with("mbarrier.pending_count");
        let is_barrier = opcode.starts_with("mbarrier.") || opcode.starts_with("cp.async.mbarrier.");
        let (Some(kind), Some(open), true) = (
            opcode.strip_suffix(".b64"),
            operands.find('['),
            is_barrier && !names_memory,
        ) else {
            return Ok(None);
        };
        let address = &operands[open + 1..];
        let end = address.find(['+', '-', ']', ' ']).unwrap_or(address.len());
        let generic = &address[..end];
        if !generic.starts_with(&format!("%{}", Class::B64.prefix())) {
            return Ok(None);
        }
        let (wide, short) = (self.fresh(Class::B64), self.fresh(Class::B32));
        for text in [
            format!("cvta.to.shared.u64 {wide}, {generic};"),
            format!("cvt.u32.u64 {short}, {wide};"),
        ] {
            let (inst, _) = parse_inst(&text).ok_or_else(|| Error::internal(format!("no instruction `{text}`")))?;
            self.push(Statement::Inst { guard: None, inst })?;
        }
        let operands = format!("{}[{short}{}", &operands[..open], &address[end..]);
        Ok(Some((format!("{kind}.shared::cta.b64"), operands)))
    }

    fn instruction(&mut self, opcode: &str, operands: &str) -> Result<Inst<Reg>> {
        let operands: Vec<String> = lex::operands(operands).into_iter().map(spaced).collect();
        let text = match operands.is_empty() {
            true => format!("{opcode};"),
            false => format!("{opcode} {};", operands.join(", ")),
        };
        let unknown = || {
            self.error("no instruction of smalt's table")
                .expected(nearest::forms(opcode))
                .remedy("write it with instructions that are in the table (docs/INSTRUCTIONS.md), or hand it to the assembler as it is (unchecked=True)")
        };
        if let Some(inst) = self.wgmma_order(opcode, &operands)? {
            return Ok(inst);
        }
        let Some((inst, "")) = parse_inst(&text).map(|(inst, rest)| (inst, rest.trim())) else {
            return Err(unknown());
        };
        if !nearest::is_instruction(inst.row()) {
            return Err(unknown());
        }
        if let Some(what) = misfit(&inst) {
            return Err(self.error(what).expected(nearest::forms(opcode)).remedy(
                "take one of these forms; cvt converts between widths, and addresses have 32 bits in shared memory, 64 elsewhere",
            ));
        }
        if let Some(tied) = inst.tied() {
            let mut seen = tied.output.clone();
            seen.sort();
            if seen.windows(2).any(|w| w[0] == w[1]) {
                return Err(self
                    .error("a register that stands twice among accumulators")
                    .expected("as many accumulators as the shape has, each a register of its own")
                    .remedy("declare more registers (`.reg .f32 d<64>;`)"));
            }
        }
        if let Inst::GridDep { .. } = inst {
            return Err(self
                .error("programmatic launches are set up by the compiler")
                .remedy("plgpu.griddepcontrol_wait, plgpu.griddepcontrol_launch_dependents"));
        }
        if let Inst::SetMaxReg { .. } = inst {
            return Err(self
                .error("the number of registers is the compiler's")
                .remedy("plgpu.set_max_registers"));
        }
        Ok(inst)
    }

    /// `wgmma.fence` and `wgmma.wait_group`. Which registers they are about, PTX does not say: [`in_flight::tie`] does.
    fn wgmma_order(&self, opcode: &str, operands: &[String]) -> Result<Option<Inst<Reg>>> {
        let acc = Tied::in_place(vec![]);
        match (opcode, operands) {
            ("wgmma.fence.sync.aligned", []) => Ok(Some(Inst::WgmmaFence { acc })),
            ("wgmma.wait_group.sync.aligned", [n]) => {
                let number = n.parse().ok().filter(|n| (0..=MAX_PENDING_WGMMA_GROUPS).contains(n));
                let n = number.ok_or_else(|| {
                    self.error("a wait for groups of wgmma").expected(format!(
                        "how many groups may be pending behind it: 0 to {MAX_PENDING_WGMMA_GROUPS}"
                    ))
                })?;
                Ok(Some(Inst::WgmmaWait { n, acc }))
            }
            _ => Ok(None),
        }
    }

    /// The operands with registers as the table's parser names them, and floats as it reads them.
    fn renamed(&self, opcode: &str, operands: &str) -> Result<String> {
        let mut out = String::with_capacity(operands.len() + 8);
        let mut rest = operands;
        while let Some(c) = rest.chars().next() {
            let is_placeholder = c == '{' && rest[1..].trim_start().starts_with(|c: char| c.is_ascii_digit());
            if is_placeholder
                && let Some(end) = rest.find('}')
                && rest[1..end].trim().bytes().all(|b| b.is_ascii_digit() || b == b'.')
            {
                match self.placeholder(&rest[1..end])? {
                    [reg] => out.push_str(&reg.to_string()),
                    regs => {
                        let names: Vec<String> = regs.iter().map(Reg::to_string).collect();
                        out.push_str(&format!("{{{}}}", names.join(", ")));
                    }
                }
                rest = &rest[end + 1..];
                continue;
            }
            if c.is_ascii_digit() {
                let number = |c: char| c.is_ascii_alphanumeric() || c == '.';
                let mut end = rest.find(|c| !number(c)).unwrap_or(rest.len());
                // The sign of an exponent.
                if rest[..end].ends_with(['e', 'E']) && !rest.starts_with("0x") && rest[end..].starts_with(['+', '-']) {
                    let digits = rest[end + 1..].find(|c: char| !c.is_ascii_digit());
                    end = digits.map_or(rest.len(), |n| end + 1 + n);
                }
                let negative = out.ends_with('-') && is_decimal_float(&rest[..end]);
                if negative {
                    out.pop();
                }
                out.push_str(&self.number(opcode, &rest[..end], negative)?);
                rest = &rest[end..];
                continue;
            }
            if c.is_ascii_alphabetic() || matches!(c, '_' | '$' | '%') {
                let follows = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
                let end = rest[1..].find(|c| !follows(c)).map_or(rest.len(), |n| n + 1);
                let name = &rest[..end];
                match self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
                    Some(reg) => out.push_str(&reg.to_string()),
                    None if name == "_" || is_special(name) => out.push_str(name),
                    None => return Err(self.register(name).unwrap_err()),
                }
                // `%tid.x`: what follows the dot belongs to the name.
                rest = &rest[end..];
                if let Some(after) = rest.strip_prefix('.') {
                    let end = after.find(|c| !follows(c)).unwrap_or(after.len());
                    out.push_str(&rest[..end + 1]);
                    rest = &after[end..];
                }
                continue;
            }
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
        Ok(out)
    }

    /// A number as the table's parser reads it.
    fn number(&self, opcode: &str, text: &str, negative: bool) -> Result<String> {
        let broken = || self.error(format!("`{text}` is no number"));
        if text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d") || text.starts_with("0D") {
            let digits = if text[1..].starts_with(['f', 'F']) { 8 } else { 16 };
            let ok = text.len() == digits + 2 && text[2..].bytes().all(|b| b.is_ascii_hexdigit());
            return ok.then(|| text.to_ascii_lowercase()).ok_or_else(broken);
        }
        if is_decimal_float(text) {
            let x: f64 = text.parse().map_err(|_| broken())?;
            let x = if negative { -x } else { x };
            return Ok(printed_float(opcode, x));
        }
        let text = text.strip_suffix(['U', 'u']).unwrap_or(text);
        let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => match text.strip_prefix("0b").or_else(|| text.strip_prefix("0B")) {
                Some(binary) => u64::from_str_radix(binary, 2),
                None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(&text[1..], 8),
                None => text.parse(),
            },
        };
        let value = value.map_err(|_| broken())?;
        // The parser's numbers are signed.
        Ok(match i64::try_from(value) {
            Ok(value) => value.to_string(),
            Err(_) => format!("0x{value:x}"),
        })
    }

    fn finish(mut self, results: usize) -> Result<Program> {
        self.statement.clear();
        let mut labels: Vec<(Label, String, Option<usize>)> = self
            .labels
            .iter()
            .map(|(name, (label, at))| (*label, name.clone(), *at))
            .collect();
        labels.sort();
        for (_, name, at) in &labels {
            match at {
                Some(at) => self.program.labels.push(*at),
                None => {
                    let to = labels.iter().find(|l| l.1 == *name).map(|l| l.0);
                    let branch = self
                        .program
                        .statements
                        .iter()
                        .position(|s| matches!(s, Statement::Branch { to: t, .. } if Some(*t) == to));
                    self.line = branch.map_or(1, |at| self.program.lines[at]);
                    return Err(self
                        .error(format!("the label `{name}` stands nowhere"))
                        .expected("a branch to a label of the same text"));
                }
            }
        }
        if labels.len() > self.limits.labels {
            return Err(self
                .error("too many labels")
                .expected(format!("at most {}", self.limits.labels)));
        }
        in_flight::tie(&mut self.program, results);
        let mut written = vec![false; self.program.count()];
        for statement in &self.program.statements {
            if let Statement::Inst { inst, .. } = statement {
                inst.for_each_def(|r, _| written[self.program.index(r)] = true);
            }
        }
        let unwritten = self.program.interface[..results]
            .iter()
            .position(|r| !written[self.program.index(*r)]);
        if let Some(at) = unwritten {
            self.line = self.program.lines.last().copied().unwrap_or(1);
            let k = self.interface.name_of(at);
            return Err(self.error(format!("the result {k} is never written")).expected(format!(
                "an instruction whose destination is {k}; results are numbered before operands"
            )));
        }
        Ok(self.program)
    }
}

fn is_decimal_float(text: &str) -> bool {
    let exponent = text.contains(['e', 'E']) && !text.starts_with("0x") && !text.starts_with("0X");
    let prefixed = ["0f", "0F", "0d", "0D", "0b", "0B"].iter().any(|p| text.starts_with(p));
    !prefixed && (text.contains('.') || exponent)
}

/// The first part of a special register's name.
fn is_special(name: &str) -> bool {
    let begins = |text: &str| text.split('.').next() == Some(name);
    let of_words = SpecialReg32::ALL.iter().any(|r| begins(r.text()));
    let of_pairs = SpecialReg64::ALL.iter().any(|r| begins(r.text()));
    of_words || of_pairs || SpecialPred::ALL.iter().any(|r| begins(r.text()))
}

/// An operand as printed PTX has it: no spaces but behind commas, offsets added.
fn spaced(operand: &str) -> String {
    let bare: String = operand.chars().filter(|c| !c.is_whitespace()).collect();
    let bare = match bare.strip_prefix('[') {
        Some(inner) if !inner.contains(',') => match inner.find('-') {
            Some(at) if !inner[..at].ends_with('+') => format!("[{}+{}", &inner[..at], &inner[at..]),
            Some(_) | None => bare,
        },
        Some(_) | None => bare,
    };
    bare.replace(',', ", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::inst::ROWS;

    fn read<const N: usize>(text: &str, interface: [Class; N]) -> Result<Program> {
        parse(text, &interface.into(), 1, Limits::WRITTEN)
    }

    #[test]
    fn values_of_several_registers_are_lists() {
        let interface = Interface::new(vec![Class::B32; 6], vec![4, 1, 1]);
        let read = |text: &str| parse(text, &interface, 4, Limits::WRITTEN);
        let text = ".reg .b64 a; .reg .pred p;
            wgmma.fence.sync.aligned;
            wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {0}, { {1}, {2}, {1.0}, {2} }, a, p, 1, 1, 0;
            wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; mov.b32 {0.3}, {0.2};";
        let program = read(text).unwrap();
        let regs = |n: std::ops::Range<u32>| -> Vec<Reg> {
            let class = Class::B32;
            n.map(|index| Reg { class, index }).collect()
        };
        let (mut fenced, mut settled) = (vec![], vec![]);
        for statement in &program.statements {
            match statement {
                Statement::Inst {
                    inst: Inst::WgmmaFence { acc },
                    ..
                } => fenced = acc.output.clone(),
                Statement::Inst {
                    inst: Inst::WgmmaWait { acc, .. },
                    ..
                } => settled = acc.output.clone(),
                Statement::Inst {
                    inst: Inst::WgmmaHalfRs { acc, a, .. },
                    ..
                } => {
                    assert_eq!(acc.output, regs(0..4));
                    assert_eq!(a.len(), 4);
                }
                _ => {}
            }
        }
        // All that a product reads is ordered; of what it writes, the fourth is written over.
        assert_eq!(fenced, regs(0..6));
        assert_eq!(settled, regs(0..3));
        for (text, says) in [
            ("mov.b32 {0}, {1};", "it takes two halves"),
            ("mov.b32 {0.4}, {1};", "`{0.4}` stands for nothing"),
            ("mov.b32 {1.1}, {1};", "`{1.1}` stands for nothing"),
            (
                "mov.b32 {0.0}, {1}; mov.b32 {0.1}, {1}; mov.b32 {0.2}, {1};",
                "the result {0.3} is never written",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.what.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn names_numbers_and_spaces_are_as_people_write_them() {
        use Class::*;
        let program = read(
            "{ .reg .b32 t<2>, %x; .reg .pred p;
               mov.b64 {t0,t1} , { 1 };           // a list, and an operand
               add.f32 %x, t0, -1.5e+0;
               setp.lt.u32 p, t1, 0xff;
               @!p add.u32 %x , %x, 017;
               ld.shared.b32 t0, [ {2} - 0x10 ];
               mov.u32 t1, %tid.x;
               selp.b32 {0}, %x, t0, p; }",
            [B32, B64, B32],
        )
        .unwrap();
        let names: Vec<&str> = program
            .statements
            .iter()
            .map(|s| match s {
                Statement::Inst { inst, .. } => ROWS[inst.row()].name,
                Statement::Label(_) | Statement::Branch { .. } => "",
            })
            .collect();
        let expected = ["UnpackB64", "AddFloat", "Setp", "AddInt", "Ld", "MovSpecial32", "Selp"];
        assert_eq!(names, expected);
        let imm = |i: usize| match &program.statements[i] {
            Statement::Inst {
                inst: Inst::AddFloat { b, .. } | Inst::AddInt { b, .. } | Inst::Setp { b, .. },
                ..
            } => b.imm(),
            other => panic!("{other:?}"),
        };
        assert_eq!(imm(1), Some(u64::from((-1.5f32).to_bits())));
        assert_eq!((imm(2), imm(3)), (Some(255), Some(15)));
        assert!(
            matches!(&program.statements[4], Statement::Inst { inst: Inst::Ld { addr, .. }, .. } if addr.offset == -16)
        );
    }

    #[test]
    fn every_mistake_has_its_error() {
        use Class::*;
        let cases = [
            ("mov.b32 {0}, {1}", "does not end with a semicolon"),
            ("mov.b32 {0}, {2};", "`{2}` stands for nothing"),
            ("mov.b32 {0}, x;", "`x` is not declared"),
            ("mov.b32 {0}, %y;", "`%y` is not declared"),
            ("move.b32 {0}, {1};", "no instruction of smalt's table"),
            ("add.f32 {0}, {1};", "no instruction of smalt's table"),
            ("popc.b64 {0}, {1};", "32"),
            ("bfind.u16 {0}, {1};", "type"),
            (".shared .b32 a; mov.b32 {0}, {1};", "a directive"),
            (".reg .b8 a; mov.b32 {0}, {1};", "registers of type `.b8`"),
            (".reg .b32 a, a; mov.b32 {0}, {1};", "declared twice"),
            (".reg .b32 3; mov.b32 {0}, {1};", "no name of a register"),
            ("@{1} mov.b32 {0}, {1};", "no predicate"),
            ("bra L; mov.b32 {0}, {1};", "the label `L` stands nowhere"),
            ("L: L: mov.b32 {0}, {1};", "stands twice"),
            ("{ mov.b32 {0}, {1};", "a `{` without its `}`"),
            ("mov.b32 {0}, {1}; }", "a `}` without its `{`"),
            ("mov.b32 {1}, {1};", "the result {0} is never written"),
            ("mov.b32 {0}, {1}; ret;", "`ret` in inline PTX"),
            (
                "mov.b32 {0}, {1}; wgmma.wait_group.sync.aligned 9;",
                "a wait for groups of wgmma",
            ),
            ("mov.b32 {0}, 0x1g;", "no number"),
            ("mov.u32 {0}, smalt_smem;", "`smalt_smem` is not declared"),
            (
                "mov.b32 {0}, {1}; setmaxnreg.inc.sync.aligned.u32 240;",
                "the compiler's",
            ),
        ];
        for (text, says) in cases {
            let error = read(text, [B32, B32]).expect_err(text);
            assert!(error.what.contains(says), "{text}: {error}");
            assert!(error.what.starts_with("inline PTX, line 1: "), "{error}");
        }
    }
}
