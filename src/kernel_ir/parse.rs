//! Reads what [`print`](super::print) writes: kernels as text, for tests of passes. How fields are read is in [`text`](super::text).
//!
//! Printing a kernel that was read gives its text back. Scalar constants, which have no line of their own, are ops at the start of
//! the kernel's body; lines that begin with `//` are left out.
use super::kernel::{bits_int, int_bits};
use super::print::options;
use super::text::Text;
use super::*;
use crate::dtype::DType;
use crate::error::Loc;
use cranelift_entity::{EntityRef, EntitySet};
use rustc_hash::FxHashMap;
use std::fmt;

/// What is wrong with a text, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for ParseError {}

pub(crate) type Result<T> = std::result::Result<T, ParseError>;

/// The largest number that an id may have: ids are indices of arenas.
const MAX_ID: usize = 1 << 20;

/// The kernel that a text describes. It is not verified.
pub fn parse(text: &str) -> Result<Kernel> {
    let mut parser = Parser {
        text,
        at: 0,
        kernel: Kernel::empty("", 1),
        defined: EntitySet::new(),
        used: vec![],
        constants: FxHashMap::default(),
        constant_ops: vec![],
        group: Group::Warpgroup,
    };
    parser.kernel()?;
    Ok(parser.kernel)
}

pub(crate) struct Parser<'a> {
    text: &'a str,
    /// The byte that is read next.
    at: usize,
    kernel: Kernel,
    defined: EntitySet<Value>,
    /// Uses and where they are, for those of values that nothing defines.
    used: Vec<(Value, usize)>,
    constants: FxHashMap<(DType, u64), Value>,
    constant_ops: Vec<Op>,
    /// Who executes the region that is read.
    group: Group,
}

// ------------------------------------------------------------ characters and words
impl<'a> Parser<'a> {
    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub fn error_at<T>(&self, at: usize, message: impl Into<String>) -> Result<T> {
        let before = &self.text[..at];
        Err(ParseError {
            line: before.matches('\n').count() + 1,
            column: before.chars().rev().take_while(|c| *c != '\n').count() + 1,
            message: message.into(),
        })
    }

    /// What was expected, and what is there.
    pub fn expected<T>(&self, what: impl fmt::Display) -> Result<T> {
        let found = self.rest().lines().next().unwrap_or_default().trim_end();
        let found: String = found.chars().take(24).collect();
        let found = match found.as_str() {
            "" if self.rest().is_empty() => "the end of the text".to_string(),
            "" => "the end of the line".to_string(),
            _ => format!("`{found}`"),
        };
        self.error_at(self.at, format!("expected {what}, got {found}"))
    }

    pub fn blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start_matches(' ').len();
    }

    /// Blanks, ends of lines, and lines that are comments.
    fn lines(&mut self) {
        loop {
            self.at = self.text.len() - self.rest().trim_start().len();
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// Whether this comes next, behind blanks; then it is read. A word must end there.
    pub fn eat(&mut self, word: &str) -> bool {
        self.blanks();
        let Some(rest) = self.rest().strip_prefix(word) else {
            return false;
        };
        let in_word = |c: char| c.is_alphanumeric() || c == '_';
        if word.ends_with(in_word) && rest.starts_with(in_word) {
            return false;
        }
        self.at += word.len();
        true
    }

    pub fn expect(&mut self, word: &str) -> Result<()> {
        match self.eat(word) {
            true => Ok(()),
            false => self.expected(format!("`{word}`")),
        }
    }

    /// Letters, digits, `_`.
    pub fn word(&mut self, what: &str) -> Result<&'a str> {
        self.blanks();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        if end == 0 {
            return self.expected(what);
        }
        self.at += end;
        Ok(&rest[..end])
    }

    /// One of a closed list of names.
    pub fn name<T>(&mut self, what: &str, from_name: impl Fn(&str) -> Option<T>) -> Result<T> {
        self.blanks();
        let at = self.at;
        let word = self.word(what)?;
        match from_name(word) {
            Some(found) => Ok(found),
            None => self.error_at(at, format!("`{word}` is no {what}")),
        }
    }

    /// Digits with a sign.
    pub fn number<T: std::str::FromStr>(&mut self) -> Result<T> {
        self.blanks();
        let rest = self.rest();
        let sign = usize::from(rest.starts_with('-'));
        let end = rest[sign..]
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len() - sign)
            + sign;
        match rest[..end].parse() {
            Ok(number) => {
                self.at += end;
                Ok(number)
            }
            Err(_) if end > sign => self.error_at(self.at, format!("the number {} does not fit", &rest[..end])),
            Err(_) => self.expected("a number"),
        }
    }

    /// What `item` reads, between commas, up to `end`.
    pub fn list<T>(&mut self, end: &str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = vec![];
        while !self.eat(end) {
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// A text in quotes, as `{:?}` writes it.
    pub fn quoted(&mut self) -> Result<String> {
        self.blanks();
        let start = self.at;
        if !self.eat("\"") {
            return self.expected("a text in quotes");
        }
        let mut text = String::new();
        let mut chars = self.rest().char_indices();
        loop {
            let Some((i, c)) = chars.next() else {
                return self.error_at(start, "a text in quotes has no end");
            };
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(text);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 'r')) => text.push('\r'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, '0')) => text.push('\0'),
                    Some((_, c @ ('"' | '\\' | '\''))) => text.push(c),
                    Some((j, 'u')) => {
                        let digits = self.rest()[j + 1..].strip_prefix('{').and_then(|r| r.split_once('}'));
                        let c = digits.and_then(|(d, _)| char::from_u32(u32::from_str_radix(d, 16).ok()?));
                        match c {
                            Some(c) => text.push(c),
                            None => return self.error_at(self.at + j, "no character has this number"),
                        }
                        chars.by_ref().find(|(_, c)| *c == '}');
                    }
                    _ => return self.error_at(self.at + i, "an escape that is none"),
                },
                _ => text.push(c),
            }
        }
    }

    /// The number behind a prefix: an id.
    fn id<T: EntityRef>(&mut self, prefix: &str, what: &str) -> Result<T> {
        self.blanks();
        let start = self.at;
        let starts = self
            .rest()
            .strip_prefix(prefix)
            .is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()));
        if !starts {
            return self.expected(what);
        }
        self.at += prefix.len();
        let number: usize = self.number()?;
        if number > MAX_ID {
            return self.error_at(start, format!("{what} with a number above {MAX_ID}"));
        }
        Ok(T::new(number))
    }

    /// The same of something that was defined before.
    pub fn known<T: EntityRef + fmt::Display>(
        &mut self,
        prefix: &str,
        what: &str,
        is_known: impl Fn(&Kernel, T) -> bool,
    ) -> Result<T> {
        self.blanks();
        let start = self.at;
        let id = self.id(prefix, what)?;
        match is_known(&self.kernel, id) {
            true => Ok(id),
            false => self.error_at(start, format!("there is no {id}")),
        }
    }

    /// The number of something that is counted from 0.
    pub fn numbered(&mut self, what: &str, expected: usize) -> Result<()> {
        let start = self.at;
        match self.number::<usize>()? == expected {
            true => Ok(()),
            false => self.error_at(start, format!("expected {what}{expected}")),
        }
    }

    /// Where what is read next begins.
    pub fn at(&self) -> usize {
        self.at
    }

    /// What was read from here on is read again.
    pub fn back_to(&mut self, at: usize) {
        self.at = at;
    }

    /// Whether this word comes next, behind blanks.
    pub fn is_next(&mut self, word: &str) -> bool {
        let start = self.at;
        let is_next = self.eat(word);
        self.at = start;
        is_next
    }

    /// Whether such a character comes next, behind blanks.
    pub fn starts_with(&mut self, is: impl Fn(char) -> bool) -> bool {
        self.blanks();
        self.rest().starts_with(is)
    }

    /// Whether this comes next, without blanks before it and whatever is behind it; then it is read.
    pub fn eat_prefix(&mut self, prefix: &str) -> bool {
        let is_next = self.rest().starts_with(prefix);
        self.at += if is_next { prefix.len() } else { 0 };
        is_next
    }

    /// Items between commas, as many as there are.
    pub fn operands<T>(
        &mut self,
        is_next: impl Fn(&mut Self) -> bool,
        item: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = vec![];
        self.blanks();
        if is_next(self) {
            items.push(item(self)?);
            while self.eat(",") {
                items.push(item(self)?);
            }
        }
        Ok(items)
    }
}

// ------------------------------------------------------------ types and values
impl Parser<'_> {
    /// `[64,128]`, or nothing.
    pub fn shape(&mut self) -> Result<Shape> {
        match self.rest().starts_with('[') {
            true => {
                self.at += 1;
                Ok(self.list("]", Self::number::<u64>)?.into())
            }
            false => Ok(Shape::new()),
        }
    }

    fn ty(&mut self) -> Result<Type> {
        let acc = self.eat("acc");
        let dtype = DType::parse(self)?;
        let shape = self.shape()?;
        Ok(match acc {
            true => Type::Acc { dtype, shape },
            false => Type::of(dtype, shape),
        })
    }

    /// ` per warp`, or nothing.
    fn group(&mut self, usual: Group) -> Result<Group> {
        match self.eat("per") {
            true => Group::parse(self),
            false => Ok(usual),
        }
    }

    /// The id of a value, which may not be defined yet.
    fn value_id(&mut self) -> Result<Value> {
        let v: Value = self.id("%v", "a value")?;
        while self.kernel.values.len() <= v.index() {
            self.kernel.new_value(Type::Scalar(DType::I32), Group::Warpgroup);
        }
        Ok(v)
    }

    /// `%v3: f32[128] per warp`: a result, or a region's parameter.
    fn definition(&mut self, usual: Group) -> Result<Value> {
        self.blanks();
        let start = self.at;
        let v = self.value_id()?;
        self.expect(":")?;
        let ty = self.ty()?;
        let group = self.group(usual)?;
        if !self.defined.insert(v) {
            return self.error_at(start, format!("{v} is defined twice"));
        }
        let facts = match ty.is_scalar() {
            true => Facts::of_dtype(ty.dtype()),
            false => Facts::UNKNOWN,
        };
        let def = None.into();
        self.kernel.values[v] = ValueData { ty, group, facts, def };
        Ok(v)
    }

    /// Whether a value comes next.
    pub fn at_value(&mut self) -> bool {
        self.blanks();
        let rest = self.rest();
        let word = |w: &str| {
            rest.strip_prefix(w)
                .is_some_and(|r| !r.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        rest.starts_with('%')
            || rest
                .strip_prefix('-')
                .unwrap_or(rest)
                .starts_with(|c: char| c.is_ascii_digit())
            || ["true", "false", "NaN", "inf", "-inf"].into_iter().any(word)
    }

    /// `%v3`, or a scalar constant.
    pub fn value(&mut self) -> Result<Value> {
        self.blanks();
        let start = self.at;
        if self.rest().starts_with('%') {
            let v = self.value_id()?;
            self.used.push((v, start));
            return Ok(v);
        }
        if !self.at_value() {
            return self.expected("a value");
        }
        let (dtype, bits) = self.literal()?;
        Ok(self.constant(dtype, bits))
    }

    pub fn values(&mut self) -> Result<Vec<Value>> {
        self.operands(Self::at_value, Self::value)
    }

    /// Whether the number that was just read has a type.
    pub fn is_typed(&self) -> bool {
        let ty = self.rest().strip_prefix(':');
        ty.is_some_and(|r| r.starts_with(|c: char| c.is_ascii_alphabetic()))
    }

    /// `3`, `-0.0:f32`, `0x7f:e5m2`, `true`.
    fn literal(&mut self) -> Result<(DType, u64)> {
        for (text, bits) in [("true", 1), ("false", 0)] {
            if self.eat(text) {
                return Ok((DType::Bool, bits));
            }
        }
        let start = self.at;
        let rest = self.rest();
        // A number ends before a range's dots.
        let mut end = 0;
        while let Some(c) = rest[end..].chars().next() {
            let dots = rest[end..].starts_with("..");
            let exponent =
                matches!(c, '+' | '-') && (end == 0 || rest[..end].ends_with('e') && !rest.starts_with("0x"));
            if dots || !(c.is_ascii_alphanumeric() || c == '.' || exponent) {
                break;
            }
            end += 1;
        }
        let text = &rest[..end];
        self.at += end;
        let dtype = match self.is_typed() {
            true => {
                self.at += 1;
                DType::parse(self)?
            }
            false => DType::I32,
        };
        let bits = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => match dtype {
                DType::F32 => text.parse().ok().map(|x: f32| u64::from(x.to_bits())),
                DType::F64 => text.parse().ok().map(f64::to_bits),
                DType::F16 => text.parse().ok().map(|x| u64::from(half::f16::from_f32(x).to_bits())),
                DType::BF16 => text.parse().ok().map(|x| u64::from(half::bf16::from_f32(x).to_bits())),
                _ => text.parse().ok().map(|x: i128| int_bits(dtype, x as i64)),
            },
        };
        match bits {
            Some(bits) => Ok((dtype, bits)),
            None => self.error_at(start, format!("`{text}` is no {dtype}")),
        }
    }

    /// The scalar with these bits, which an op at the start of the body is.
    fn constant(&mut self, dtype: DType, bits: u64) -> Value {
        if let Some(&v) = self.constants.get(&(dtype, bits)) {
            return v;
        }
        // Its number is given when those in the text are known.
        let kind = OpKind::Constant(Constant::Splat(bits));
        let op = self.kernel.new_op(kind, [], Group::Warpgroup, Loc::CALL_SITE);
        self.constant_ops.push(op);
        let v = Value::new(PLACEHOLDERS + self.constants.len());
        self.constants.insert((dtype, bits), v);
        v
    }
}

/// Constants have ids from here on while a text is read.
const PLACEHOLDERS: usize = 1 << 24;

// ------------------------------------------------------------ the kernel
impl Parser<'_> {
    fn kernel(&mut self) -> Result<()> {
        self.lines();
        self.expect("kernel")?;
        self.kernel.name = self.quoted()?;
        self.kernel.stage = Stage::parse(self)?;
        self.expect(",")?;
        self.kernel.num_warpgroups = self.number()?;
        self.expect("warpgroup(s),")?;
        self.kernel.semantics.lowering = LoweringSemantics::parse(self)?;
        self.expect("semantics")?;
        self.lines();
        if self.eat("options:") {
            self.options()?;
            self.lines();
        }
        while self.rest().starts_with("axis") {
            self.axis_line()?;
            self.lines();
        }
        let params = self.params()?;
        while self.rest().starts_with("alloc") {
            let start = self.at;
            let alloc: Alloc = self.id("alloc", "an allocation")?;
            if alloc != self.kernel.allocs.next_key() {
                return self.error_at(start, format!("expected {}", self.kernel.allocs.next_key()));
            }
            self.expect(":")?;
            let data = AllocData::parse(self)?;
            self.kernel.allocs.push(data);
            self.lines();
        }
        self.bind_params(params)?;
        let body = self.kernel.body;
        self.ops(body)?;
        self.lines();
        if !self.rest().is_empty() {
            return self.expected("the end of the text");
        }
        self.place_constants();
        match self.used.iter().find(|(v, _)| !self.defined.contains(*v)) {
            Some(&(v, at)) => self.error_at(at, format!("nothing defines {v}")),
            None => Ok(()),
        }
    }

    /// Puts the constants, which have their numbers now, first of all.
    fn place_constants(&mut self) {
        let mut constants: Vec<_> = self.constants.iter().map(|(&of, &v)| (v, of)).collect();
        constants.sort_unstable();
        let mut numbers = vec![];
        for (&op, &(_, (dtype, bits))) in self.constant_ops.iter().zip(&constants) {
            let v = self.kernel.new_value(Type::Scalar(dtype), Group::Warpgroup);
            self.kernel.values[v].def = op.into();
            if let Some(x) = bits_int(dtype, bits) {
                self.kernel.values[v].facts = Facts::constant(x);
            }
            self.kernel.ops[op].results.push(v);
            numbers.push(v);
        }
        let place = |v: &mut Value| {
            if let Some(i) = v.index().checked_sub(PLACEHOLDERS) {
                *v = numbers[i];
            }
        };
        for op in self.kernel.ops.values_mut() {
            visit::map_values(&mut op.kind, &mut |v| place(v));
        }
        for region in self.kernel.regions.values_mut() {
            region.results.iter_mut().for_each(place);
        }
        let body = self.kernel.body;
        self.kernel.regions[body].ops.splice(0..0, self.constant_ops.drain(..));
    }

    fn options(&mut self) -> Result<()> {
        loop {
            self.blanks();
            let start = self.at;
            let name = self.word("an option")?;
            macro_rules! read {
                ($($of:ident: $ty:ident { $($other:ident)* } $($name:ident)*;)*) => {
                    match name {
                        $($(stringify!($name) => self.kernel.$of.$name = Text::parse(self)?,)*)*
                        other => return self.error_at(start, format!("there is no option `{other}`")),
                    }
                };
            }
            options!(read);
            if !self.eat(",") {
                return Ok(());
            }
        }
    }

    /// `axis0: grid 0, size 4, "i"`.
    fn axis_line(&mut self) -> Result<()> {
        let start = self.at;
        let axis: Axis = self.id("axis", "an axis")?;
        if axis != self.kernel.axes.next_key() {
            return self.error_at(start, format!("expected {}", self.kernel.axes.next_key()));
        }
        self.expect(":")?;
        let kind = AxisKind::parse(self)?;
        self.expect(",")?;
        self.expect("size")?;
        let size = self.number()?;
        self.expect(",")?;
        let name = self.quoted()?;
        self.kernel.axes.push(AxisData { name, size, kind });
        let (list, position) = match kind {
            AxisKind::Grid(i) => (&mut self.kernel.grid, i),
            AxisKind::Cluster(i) => (&mut self.kernel.cluster, i),
            AxisKind::DeviceMesh(i) => (&mut self.kernel.device_mesh, i),
            AxisKind::Thread => {
                self.kernel.thread_axis = Some(axis);
                return Ok(());
            }
            AxisKind::Warp => return Ok(()),
        };
        let next = list.len();
        if position as usize != next {
            return self.error_at(start, format!("expected position {next} of its kind"));
        }
        list.push(axis);
        Ok(())
    }

    /// `param0: input alloc0`: roles, and the allocations that come later.
    fn params(&mut self) -> Result<Vec<(ParamRole, Option<(Alloc, usize)>)>> {
        let mut params = vec![];
        while self.rest().starts_with("param") {
            self.at += "param".len();
            self.numbered("param", params.len())?;
            self.expect(":")?;
            let role = ParamRole::parse(self)?;
            self.blanks();
            let at = self.at;
            if role == ParamRole::Scalar {
                let v = self.definition(Group::Warpgroup)?;
                let body = self.kernel.body;
                self.kernel.regions[body].params.push(v);
                params.push((role, None));
            } else {
                params.push((role, Some((self.id("alloc", "an allocation")?, at))));
            }
            self.lines();
        }
        Ok(params)
    }

    fn bind_params(&mut self, params: Vec<(ParamRole, Option<(Alloc, usize)>)>) -> Result<()> {
        let body = self.kernel.body;
        let mut scalars = self.kernel.regions[body].params.clone().into_iter();
        for (role, alloc) in params {
            let (binding, ty) = match alloc {
                Some((alloc, at)) => {
                    let Some(data) = self.kernel.allocs.get(alloc) else {
                        return self.error_at(at, format!("there is no {alloc}"));
                    };
                    let dtype = data.elem().dtype().unwrap_or(DType::I32);
                    (ParamBinding::Alloc(alloc), Type::of(dtype, data.shape.clone()))
                }
                None => {
                    let v = scalars.next().expect("a scalar has a value");
                    (ParamBinding::Scalar(v), self.kernel.ty(v).clone())
                }
            };
            self.kernel.params.push(ParamData { role, binding, ty });
        }
        Ok(())
    }
}

// ------------------------------------------------------------ regions and ops
impl Parser<'_> {
    /// `{`, ops, what it yields, `}`.
    fn ops(&mut self, region: Region) -> Result<()> {
        self.expect("{")?;
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
            let op = self.op()?;
            self.kernel.regions[region].ops.push(op);
        }
    }

    /// `per warp (%v1: i32) {`, ops, what it yields, `}`.
    pub fn region(&mut self) -> Result<Region> {
        let group = self.group(self.group)?;
        let outer = std::mem::replace(&mut self.group, group);
        let region = self.kernel.new_region(group);
        if self.eat("(") {
            self.kernel.regions[region].params = self.list(")", |p| p.definition(group))?;
        }
        self.ops(region)?;
        self.group = outer;
        Ok(region)
    }

    /// One line; with regions, more.
    fn op(&mut self) -> Result<Op> {
        let mut results = vec![];
        if self.rest().starts_with('%') {
            results.push(self.definition(Group::Warpgroup)?);
            while self.eat(",") {
                results.push(self.definition(Group::Warpgroup)?);
            }
            self.expect("=")?;
        }
        self.blanks();
        let kind = OpKind::parse(self)?;
        let op = self.kernel.new_op(kind, [], self.group, Loc::CALL_SITE);
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
}
