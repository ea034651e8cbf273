//! Reads what [`print`](super::print) writes: kernels as text, for tests of passes.
//!
//! Printing a kernel that was read gives its text back. Scalar constants, which have no line of their own, are ops at the start of
//! the kernel's body; lines that begin with `//` are left out.
use super::kernel::{bits_int, int_bits};
use super::*;
use crate::dtype::DType;
use crate::error::Loc;
use cranelift_entity::{EntityRef, EntitySet};
use rustc_hash::FxHashMap;
use std::fmt;

mod op;

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

type Result<T> = std::result::Result<T, ParseError>;

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
    };
    parser.kernel()?;
    Ok(parser.kernel)
}

struct Parser<'a> {
    text: &'a str,
    /// The byte that is read next.
    at: usize,
    kernel: Kernel,
    defined: EntitySet<Value>,
    /// Uses and where they are, for those of values that nothing defines.
    used: Vec<(Value, usize)>,
    constants: FxHashMap<(DType, u64), Value>,
    constant_ops: Vec<Op>,
}

// ------------------------------------------------------------ characters and words
impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error_at<T>(&self, at: usize, message: impl Into<String>) -> Result<T> {
        let before = &self.text[..at];
        Err(ParseError {
            line: before.matches('\n').count() + 1,
            column: before.chars().rev().take_while(|c| *c != '\n').count() + 1,
            message: message.into(),
        })
    }

    /// What was expected, and what is there.
    fn expected<T>(&self, what: impl fmt::Display) -> Result<T> {
        let found = self.rest().lines().next().unwrap_or_default().trim_end();
        let found: String = found.chars().take(24).collect();
        let found = match found.as_str() {
            "" if self.rest().is_empty() => "the end of the text".to_string(),
            "" => "the end of the line".to_string(),
            _ => format!("`{found}`"),
        };
        self.error_at(self.at, format!("expected {what}, got {found}"))
    }

    fn blanks(&mut self) {
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
    fn eat(&mut self, word: &str) -> bool {
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

    fn expect(&mut self, word: &str) -> Result<()> {
        match self.eat(word) {
            true => Ok(()),
            false => self.expected(format!("`{word}`")),
        }
    }

    /// Letters, digits, `_`.
    fn word(&mut self, what: &str) -> Result<&'a str> {
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
    fn name<T>(&mut self, what: &str, from_name: impl Fn(&str) -> Option<T>) -> Result<T> {
        self.blanks();
        let at = self.at;
        let word = self.word(what)?;
        match from_name(word) {
            Some(found) => Ok(found),
            None => self.error_at(at, format!("`{word}` is no {what}")),
        }
    }

    /// Digits with a sign.
    fn number<T: std::str::FromStr>(&mut self) -> Result<T> {
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

    /// `(a,b)`, with blanks or without.
    fn numbers<T: std::str::FromStr>(&mut self) -> Result<Vec<T>> {
        self.expect("(")?;
        self.numbers_until(")")
    }

    fn numbers_until<T: std::str::FromStr>(&mut self, end: &str) -> Result<Vec<T>> {
        self.list(end, Self::number)
    }

    /// What `item` reads, between commas, up to `end`.
    fn list<T>(&mut self, end: &str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
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
    fn quoted(&mut self) -> Result<String> {
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

    fn axis(&mut self) -> Result<Axis> {
        self.blanks();
        let start = self.at;
        let axis = self.id("axis", "an axis")?;
        match self.kernel.axes.is_valid(axis) {
            true => Ok(axis),
            false => self.error_at(start, format!("there is no {axis}")),
        }
    }

    fn axes(&mut self) -> Result<Vec<Axis>> {
        self.expect("(")?;
        self.list(")", Self::axis)
    }

    fn alloc(&mut self) -> Result<Alloc> {
        self.blanks();
        let start = self.at;
        let alloc = self.id("alloc", "an allocation")?;
        match self.kernel.allocs.is_valid(alloc) {
            true => Ok(alloc),
            false => self.error_at(start, format!("there is no {alloc}")),
        }
    }
}

// ------------------------------------------------------------ types and values
impl Parser<'_> {
    fn dtype(&mut self) -> Result<DType> {
        self.name("element type", DType::from_short)
    }

    /// `[64,128]`, or nothing.
    fn shape(&mut self) -> Result<Shape> {
        match self.rest().starts_with('[') {
            true => {
                self.at += 1;
                Ok(self.numbers_until::<u64>("]")?.into())
            }
            false => Ok(Shape::new()),
        }
    }

    fn ty(&mut self) -> Result<Type> {
        let acc = self.eat("acc");
        let dtype = self.dtype()?;
        let shape = self.shape()?;
        Ok(match acc {
            true => Type::Acc { dtype, shape },
            false => Type::of(dtype, shape),
        })
    }

    /// ` per warp`, or nothing.
    fn group(&mut self, usual: Group) -> Result<Group> {
        match self.eat("per") {
            true => self.group_name(),
            false => Ok(usual),
        }
    }

    fn group_name(&mut self) -> Result<Group> {
        let of = |name: &str| {
            [Group::Warp, Group::Warpgroup, Group::Block]
                .into_iter()
                .find(|g| g.to_string() == name)
        };
        self.name("group", of)
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
        self.define(start, v, ty, group)?;
        Ok(v)
    }

    fn define(&mut self, at: usize, v: Value, ty: Type, group: Group) -> Result<()> {
        if !self.defined.insert(v) {
            return self.error_at(at, format!("{v} is defined twice"));
        }
        let facts = match ty.is_scalar() {
            true => Facts::of_dtype(ty.dtype()),
            false => Facts::UNKNOWN,
        };
        let def = None.into();
        self.kernel.values[v] = ValueData { ty, group, facts, def };
        Ok(())
    }

    /// Whether a value comes next.
    fn at_value(&mut self) -> bool {
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
    fn value(&mut self) -> Result<Value> {
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

    fn values(&mut self) -> Result<Vec<Value>> {
        let mut values = vec![];
        if self.at_value() {
            values.push(self.value()?);
            while self.eat(",") {
                values.push(self.value()?);
            }
        }
        Ok(values)
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
        let typed = self
            .rest()
            .strip_prefix(':')
            .is_some_and(|r| r.starts_with(|c: char| c.is_ascii_alphabetic()));
        let dtype = match typed {
            true => {
                self.at += 1;
                self.dtype()?
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
        self.kernel.stage = self.name("stage", |name| match name {
            "imported" => Some(Stage::Imported),
            "normalized" => Some(Stage::Normalized),
            _ => None,
        })?;
        self.expect(",")?;
        self.kernel.num_warpgroups = self.number()?;
        self.expect("warpgroup(s),")?;
        self.kernel.semantics.lowering = self.name("lowering", |name| match name {
            "lane" => Some(LoweringSemantics::Lane),
            "warpgroup" => Some(LoweringSemantics::Warpgroup),
            _ => None,
        })?;
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
            let data = self.alloc_data()?;
            self.kernel.allocs.push(data);
            self.lines();
        }
        self.bind_params(params)?;
        let body = self.kernel.body;
        self.region_into(body)?;
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

    fn flag(&mut self) -> Result<bool> {
        self.name("flag", |name| match name {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        })
    }

    fn options(&mut self) -> Result<()> {
        loop {
            self.blanks();
            let start = self.at;
            match self.word("an option")? {
                "false_predicate_suppresses_arrival" => {
                    self.kernel.semantics.false_predicate_suppresses_arrival = self.flag()?;
                }
                "tensor_core_barrier_tracks_copies" => {
                    self.kernel.semantics.tensor_core_barrier_tracks_copies = self.flag()?;
                }
                "leader_tracked_last_axis_only" => {
                    self.kernel.semantics.leader_tracked_last_axis_only = self.flag()?;
                }
                "approx_math" => self.kernel.compiler_params.approx_math = self.flag()?,
                "accumulate_products" => self.kernel.compiler_params.accumulate_products = self.flag()?,
                "unsafe_no_auto_barriers" => self.kernel.compiler_params.unsafe_no_auto_barriers = self.flag()?,
                "reduction_scratch_bytes" => self.kernel.compiler_params.reduction_scratch_bytes = self.number()?,
                "skip_device_barrier" => self.kernel.compiler_params.skip_device_barrier = self.flag()?,
                "is_multi_process" => self.kernel.compiler_params.is_multi_process = self.flag()?,
                "fp_contract" => {
                    self.kernel.compiler_params.fp_contract = self.name("contraction", |name| match name {
                        "on" => Some(FpContract::On),
                        "off" => Some(FpContract::Off),
                        _ => None,
                    })?;
                }
                "quotients" => {
                    self.kernel.compiler_params.quotients = self.name("rounding of quotients", |name| match name {
                        "full" => Some(Quotients::Full),
                        "rounded" => Some(Quotients::Rounded),
                        _ => None,
                    })?;
                }
                "target" => self.kernel.compiler_params.target = self.quoted()?,
                "wait_timeout_ns" => self.kernel.compiler_params.wait_timeout_ns = self.number()?,
                "profile_space" => self.kernel.compiler_params.profile_space = self.number()?,
                "profile_scope" => {
                    self.kernel.compiler_params.profile_scope = self.name("scope of a profile", |name| match name {
                        "warpgroup" => Some(ProfileScope::Warpgroup),
                        "warp" => Some(ProfileScope::Warp),
                        _ => None,
                    })?;
                }
                "every_lane_arrives" => self.kernel.compiler_params.every_lane_arrives = self.flag()?,
                other => return self.error_at(start, format!("there is no option `{other}`")),
            }
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
        let kind = match self.word("a kind of axis")? {
            "grid" => AxisKind::Grid(self.number()?),
            "cluster" => AxisKind::Cluster(self.number()?),
            "thread" => AxisKind::Thread,
            "warp" => AxisKind::Warp,
            "device" => {
                self.expect("mesh")?;
                AxisKind::DeviceMesh(self.number()?)
            }
            other => return self.error_at(start, format!("`{other}` is no kind of axis")),
        };
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
            let start = self.at;
            self.at += "param".len();
            if self.number::<usize>()? != params.len() {
                return self.error_at(start, format!("expected param{}", params.len()));
            }
            self.expect(":")?;
            let role = match self.word("a role")? {
                "input" => ParamRole::Input,
                "scalar" => ParamRole::Scalar,
                "mutable" => ParamRole::Mutable,
                "output" => {
                    let mut alias_of = None;
                    if self.eat("(is") {
                        alias_of = Some(self.param_number()?);
                        self.expect(")")?;
                    }
                    ParamRole::Output { alias_of }
                }
                other => return self.error_at(start, format!("`{other}` is no role of a parameter")),
            };
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

    fn alloc_data(&mut self) -> Result<AllocData> {
        self.blanks();
        let start = self.at;
        let mut shape = Shape::new();
        let kind = match self.word("a kind of allocation")? {
            "gmem" => {
                let dtype = self.dtype()?;
                shape = self.shape()?;
                let origin = self.origin()?;
                AllocKind::Gmem { dtype, origin }
            }
            "smem" => {
                let dtype = self.dtype()?;
                shape = self.shape()?;
                let transforms = self.transforms()?;
                AllocKind::Smem { dtype, transforms }
            }
            "smem_union" => {
                shape.push(self.number()?);
                self.expect("bytes")?;
                AllocKind::SmemUnion
            }
            "tmem" => {
                let dtype = self.dtype()?;
                shape = self.shape()?;
                self.blanks();
                let plain = |p: &str| {
                    ["collective", "in ", "\n", ")", "//"]
                        .into_iter()
                        .any(|w| p.starts_with(w))
                        || p.is_empty()
                };
                let layout = match plain(self.rest()) {
                    true => None,
                    false => Some(self.layout()?),
                };
                let collective_mma = self.eat("collective_mma");
                AllocKind::Tmem {
                    dtype,
                    layout,
                    collective_mma,
                }
            }
            "tmem_union" => {
                shape.extend([128, self.number()?]);
                self.expect("columns")?;
                AllocKind::TmemUnion
            }
            "barrier" => {
                shape = self.shape()?;
                self.expect("arrivals")?;
                let num_arrivals = self.number()?;
                let orders_tensor_core = self.eat("orders_tensor_core");
                let cluster = match self.eat("cluster") {
                    true => {
                        let mut collective_axes = vec![];
                        while self.rest().starts_with('(') {
                            collective_axes.push(self.axes()?);
                        }
                        let leader_tracked = self.eat("leader_tracked");
                        Some(ClusterBarrier {
                            collective_axes,
                            leader_tracked,
                        })
                    }
                    false => None,
                };
                AllocKind::Barrier {
                    num_arrivals,
                    orders_tensor_core,
                    cluster,
                }
            }
            "semaphore" => {
                shape = self.shape()?;
                let origin = self.origin()?;
                AllocKind::Semaphore { origin }
            }
            of @ ("accumulator" | "register") => {
                let dtype = self.dtype()?;
                shape = self.shape()?;
                let accumulator = of == "accumulator";
                AllocKind::Register { dtype, accumulator }
            }
            other => return self.error_at(start, format!("`{other}` is no kind of allocation")),
        };
        let mut within = None;
        if self.eat("in") {
            let union = self.id("alloc", "an allocation")?;
            self.expect("at")?;
            let offset = self.number()?;
            self.expect("group")?;
            let group = self.number()?;
            within = Some(Within { union, offset, group });
        }
        let collective = self.eat("collective") || matches!(kind, AllocKind::Gmem { .. });
        Ok(AllocData {
            kind,
            shape,
            collective,
            within,
            loc: Loc::CALL_SITE,
        })
    }

    fn origin(&mut self) -> Result<GmemOrigin> {
        if self.eat("global") {
            return Ok(GmemOrigin::Scratch { global: true });
        }
        if self.eat("per") {
            self.expect("block")?;
            return Ok(GmemOrigin::Scratch { global: false });
        }
        Ok(GmemOrigin::Param(self.param_number()?))
    }

    fn param_number(&mut self) -> Result<u32> {
        self.blanks();
        if !self.rest().starts_with("param") {
            return self.expected("a parameter");
        }
        self.at += "param".len();
        self.number()
    }

    fn transforms(&mut self) -> Result<Option<SmemTransforms>> {
        let tiled = self.eat("tile");
        let tiling = match tiled {
            true => self.numbers::<u64>()?.into(),
            false => Shape::new(),
        };
        if !self.eat("swizzle") {
            return match tiled {
                true => self.expected("`swizzle`"),
                false => Ok(None),
            };
        }
        self.expect("(")?;
        let swizzle_bytes = self.number()?;
        self.expect(")")?;
        Ok(Some(SmemTransforms { tiling, swizzle_bytes }))
    }

    /// `"WGMMA"=TILED(…)`, `WG_SPLAT(…)`.
    fn layout(&mut self) -> Result<LayoutSpec> {
        self.blanks();
        if self.rest().starts_with('"') {
            let given = self.quoted()?;
            self.expect("=")?;
            let at = self.at;
            let mut layout = self.layout()?;
            let LayoutSpec::Tiled { name, .. } = &mut layout else {
                return self.error_at(at, "only tiled layouts have names");
            };
            *name = given;
            return Ok(layout);
        }
        let kind = self.word("a layout")?;
        self.expect("(")?;
        match kind {
            "TILED" => {
                let mut tiling = vec![];
                while self.eat("(") {
                    tiling.push(self.numbers_until(")")?);
                }
                let mut dims = [vec![], vec![]];
                for (what, dims) in ["warp", "lane"].into_iter().zip(&mut dims) {
                    self.expect(what)?;
                    loop {
                        self.blanks();
                        if self.rest().starts_with('R') {
                            self.at += 1;
                            dims.push(LayoutDim::Replicated(self.number()?));
                        } else if self.rest().starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
                            dims.push(LayoutDim::Dim(self.number()?));
                        } else {
                            break;
                        }
                    }
                }
                self.expect("vec")?;
                let vector_dim = self.number()?;
                self.expect(")")?;
                let [warp_dims, lane_dims] = dims;
                Ok(LayoutSpec::Tiled {
                    name: String::new(),
                    tiling,
                    warp_dims,
                    lane_dims,
                    vector_dim,
                })
            }
            "WG_STRIDED" => {
                let shape = self.numbers_until::<u64>(";")?.into();
                let vec = self.number()?;
                self.expect(")")?;
                Ok(LayoutSpec::Strided { shape, vec })
            }
            "WG_SPLAT" => Ok(LayoutSpec::Splat {
                shape: self.numbers_until::<u64>(")")?.into(),
            }),
            name => {
                let args = self.list(")", |p| {
                    let key = p.word("an argument's name")?.to_string();
                    p.expect("=")?;
                    Ok((key, p.layout_arg()?))
                })?;
                let name = name.to_string();
                Ok(LayoutSpec::Named { name, args })
            }
        }
    }

    fn layout_arg(&mut self) -> Result<LayoutArg> {
        let (start, rest) = (self.at, self.rest());
        if rest.starts_with('"') {
            let text = self.quoted()?;
            if !self.rest().starts_with('=') {
                return Ok(LayoutArg::Text(text));
            }
            self.at = start;
            return Ok(LayoutArg::Layout(Box::new(self.layout()?)));
        }
        if rest.starts_with('(') {
            return Ok(LayoutArg::Ints(self.numbers()?));
        }
        if rest.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
            return Ok(LayoutArg::Int(self.number()?));
        }
        for (text, flag) in [("true", true), ("false", false)] {
            if self.eat(text) {
                return Ok(LayoutArg::Bool(flag));
            }
        }
        self.word("an argument")?;
        let is_layout = self.rest().starts_with('(');
        self.at = start;
        match is_layout {
            true => Ok(LayoutArg::Layout(Box::new(self.layout()?))),
            false => Ok(LayoutArg::DType(self.dtype()?)),
        }
    }
}
