//! PTX text → flat form, for the subset that [`super::print`] writes (file tests, print → parse → print).
//!
//! Instructions are matched against the table's syntax; a wait loop folds back into its row. What PTX does not say
//! comes from comments: `// smalt.launch {json}` in front of the module, `// reconverge B5` behind a divergent branch, and the rows
//! that are comments.
use super::flat::*;
use super::inst::{Inst, Names, ROWS, RegMap};
use super::launch::{EntryParam, LaunchSpec};
use super::legal;
use super::operand::*;
use super::print::{PROFILE_DECLARATION, Piece, SYNTAX, local_declaration};
use crate::error::{Error, Fault, Loc};
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// Rows by the first word of what they print.
static BY_WORD: LazyLock<FxHashMap<String, Vec<usize>>> = LazyLock::new(|| {
    let mut map: FxHashMap<String, Vec<usize>> = FxHashMap::default();
    for (row, pieces) in SYNTAX.iter().enumerate() {
        let starts: Vec<String> = match &pieces[0] {
            Piece::Text(text) => vec![text.clone()],
            Piece::Field(i) => ROWS[row].choices[*i]().iter().map(|t| t.to_string()).collect(),
            Piece::Vector(_) | Piece::Length(_) => vec![],
        };
        for start in starts {
            let rows = map.entry(first_word(&start).to_string()).or_default();
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    map
});

/// Spellings that PTX has beside the one that is printed, of the modifiers of some rows: `(rows, [(spelling, printed)])`.
const SPELLINGS: &[(&[&str], &[(&str, &str)])] = &[
    // Bits are moved, whatever their type.
    (
        &[
            "LdCached",
            "LdNcCached",
            "StCached",
            "LdPolicy",
            "LdNcPolicy",
            "StPolicy",
            "Mov",
            "Selp",
            "Slct",
            "SlctFloat",
            "Ld",
            "LdNc",
            "St",
            "StAsync",
            "LdParam",
        ],
        &[
            ("b8", "u8"),
            ("u16", "b16"),
            ("s16", "b16"),
            ("f16", "b16"),
            ("bf16", "b16"),
            ("u32", "b32"),
            ("s32", "b32"),
            ("f32", "b32"),
            ("u64", "b64"),
            ("s64", "b64"),
            ("f64", "b64"),
        ],
    ),
    // Zeros come in from the left.
    (&["Shr"], &[("b16", "u16"), ("b32", "u32"), ("b64", "u64")]),
    // To nearest is the default. Our own rows say so, lest the assembler contract a product with a sum.
    (&["AddFloat", "SubFloat", "MulFloat", "FloatSat"], &[("", ".rn")]),
    (&["Ld", "St"], &[(".weak", ""), (".shared::cta", ".shared")]),
    (
        &[
            "Atom",
            "AtomCas",
            "Red",
            "RedVector",
            "AtomVector",
            "RedVectorF32",
            "AtomVectorF32",
        ],
        &[(".shared::cta", ".shared"), ("", ".relaxed"), ("", ".gpu")],
    ),
    (&["ClusterArrive", "ClusterArriveApart"], &[(".release", "")]),
    (&["MmaF64"], &[(".rn", "")]),
];

/// Opcodes that are another one's by definition.
const OPCODES: &[(&str, &str)] = &[
    ("membar.cta;", "fence.sc.cta;"),
    ("membar.gl;", "fence.sc.gpu;"),
    ("membar.sys;", "fence.sc.sys;"),
    ("bar.cta.sync ", "bar.sync "),
    ("bar.cta.arrive ", "bar.arrive "),
    ("barrier.sync.aligned ", "bar.sync "),
    ("barrier.cta.sync.aligned ", "bar.sync "),
    ("barrier.arrive.aligned ", "bar.arrive "),
    ("barrier.cta.arrive.aligned ", "bar.arrive "),
    ("barrier.red.popc.aligned.u32 ", "bar.red.popc.u32 "),
    ("barrier.red.and.aligned.pred ", "bar.red.and.pred "),
    ("barrier.red.or.aligned.pred ", "bar.red.or.pred "),
    ("barrier.cta.sync ", "barrier.sync "),
    ("barrier.cta.arrive ", "barrier.arrive "),
    ("cp.async.ca.shared::cta.", "cp.async.ca.shared."),
    ("cp.async.cg.shared::cta.", "cp.async.cg.shared."),
    (
        "red.async.relaxed.cluster.mbarrier::",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::",
    ),
    ("discard.L2 ", "discard.global.L2 "),
    // Addresses of global memory are generic ones.
    ("createpolicy.range.L2::", "createpolicy.range.global.L2::"),
    ("barrier.cluster.wait.aligned;", "barrier.cluster.wait.acquire.aligned;"),
    ("barrier.cluster.wait;", "barrier.cluster.wait.acquire;"),
];

/// A float among an instruction's operands as it is printed: of which type it is, the opcode's last type says.
pub fn printed_float(opcode: &str, value: f64) -> String {
    match opcode.ends_with(".f64") {
        true => format!("0d{:016X}", value.to_bits()),
        false => format!("0f{:08X}", (value as f32).to_bits()),
    }
}

/// The instruction at the start with its decimal floats (`1.5`) and capitals (`0F3FC00000`) as they are printed, and what is
/// left; `None`: it has none.
fn float_literals(text: &str) -> Option<(String, &str)> {
    if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let (statement, after) = text.split_at(text.find(';')? + 1);
    let (opcode, operands) = statement.split_at(statement.find(char::is_whitespace)?);
    if !operands.contains(['.', 'F', 'D']) {
        return None;
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '%' | '_' | '$');
    let mut printed = opcode.to_string();
    let mut changed = false;
    let mut left = operands;
    while let Some(c) = left.chars().next() {
        let len = left.find(|c| !is_word(c)).unwrap_or(left.len()).max(c.len_utf8());
        let (word, others) = left.split_at(len);
        left = others;
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let exact = word
            .strip_prefix("0F")
            .map(|hex| ("0f", hex))
            .or_else(|| Some(("0d", word.strip_prefix("0D")?)));
        if let Some((prefix, hex)) = exact {
            printed += prefix;
            printed += hex;
        } else if let (true, true, Ok(value)) = (is_number, word.contains('.'), word.parse::<f64>()) {
            let value = if printed.ends_with('-') { -value } else { value };
            printed.truncate(printed.trim_end_matches('-').len());
            printed += &printed_float(opcode, value);
        } else {
            printed += word;
            continue;
        }
        changed = true;
    }
    changed.then_some((printed, after))
}

/// A bulk copy as it is printed: tiles are what tensor copies move by default, and memory of the CTA is the cluster's.
fn tensor_copy(text: &str) -> Option<String> {
    if !text.starts_with("cp.async.bulk.") && !text.starts_with("cp.reduce.async.bulk.tensor.") {
        return None;
    }
    let (opcode, after) = text.split_at(text.find(char::is_whitespace)?);
    let mut printed = opcode.replacen(".shared::cta.global", ".shared::cluster.global", 1);
    if printed.contains(".tensor.") && !printed.contains(".tile") {
        let at = printed.find(".mbarrier::").or_else(|| printed.find(".bulk_group"));
        printed.insert_str(at.unwrap_or(printed.len()), ".tile");
    }
    (printed != opcode).then(|| printed + after)
}

/// A product of doubles whose rounding stands in front of its types, as it is printed.
fn rounded_product(text: &str) -> Option<String> {
    let types = ".f64.f64.f64.f64";
    let (shape, after) = text.strip_prefix("mma.sync.aligned.")?.split_once(".row.col.r")?;
    let (rounding, operands) = after.split_once(types)?;
    (rounding.len() == 1).then(|| format!("mma.sync.aligned.{shape}.row.col{types}.r{rounding}{operands}"))
}

fn spellings(row: usize) -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_row = SPELLINGS.iter().filter(move |(rows, _)| rows.contains(&ROWS[row].name));
    of_row.flat_map(|(_, spellings)| spellings.iter().copied())
}

fn first_word(text: &str) -> &str {
    let end = text
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    // Blocks start with their brace.
    &text[..end.max(1).min(text.len())]
}

struct FlatNames;

impl Names for FlatNames {
    type Reg = Reg;
    fn reg(&mut self, text: &str) -> Option<Reg> {
        let name = text.strip_prefix('%')?;
        Class::ALL.into_iter().find_map(|class| {
            let index = name.strip_prefix(class.prefix())?.parse().ok()?;
            Some(Reg { class, index })
        })
    }
    fn param(&mut self, text: &str) -> Option<ParamRef> {
        text.strip_prefix("smalt_p")?.parse().ok().map(ParamRef)
    }
}

/// The length of an operand at the start of `text`; `None` when there is none of that kind.
fn operand_len(kind: &str, text: &str) -> Option<usize> {
    let word = |t: &str| {
        t.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '%' | '_' | '-'))
            .unwrap_or(t.len())
    };
    let bracketed = |close: char| text.find(close).map(|end| end + 1);
    let len = match (kind, text.as_bytes().first()?) {
        ("addr", b'[') => bracketed(']')?,
        ("addr", _) => return None,
        ("defs" | "srcs" | "tied", b'{') => bracketed('}')?,
        ("def" | "reg", b'%') | ("defs" | "tied", b'%') => word(text),
        ("def" | "reg" | "defs" | "tied", _) => return None,
        ("src" | "srcs" | "number" | "param", _) => word(text),
        _ => return None,
    };
    (len > 0).then_some(len)
}

/// Matches `pieces` at the start of `text`; fills the fields' texts and gives what is left.
fn match_pieces<'t>(row: usize, pieces: &[Piece], text: &'t str, fields: &mut [&'t str]) -> Option<&'t str> {
    let Some((piece, rest)) = pieces.split_first() else {
        return Some(text);
    };
    match piece {
        Piece::Text(t) => match_pieces(row, rest, text.strip_prefix(t.as_str())?, fields),
        Piece::Vector(_) => {
            if let Some(after) = text.strip_prefix(".v") {
                let end = after.find(|c: char| !c.is_ascii_digit())?;
                if end > 0 {
                    return match_pieces(row, rest, &after[end..], fields);
                }
            }
            match_pieces(row, rest, text, fields)
        }
        Piece::Length(_) => {
            let end = text.find(|c: char| !c.is_ascii_digit())?;
            match_pieces(row, rest, &text[end..], fields)
        }
        Piece::Field(i) => {
            let kind = ROWS[row].fields[*i].0;
            if kind == "modifier" {
                // The longest first: `.b16x2` before `.b16`.
                let printed = ROWS[row].choices[*i]();
                let mut choices: Vec<(&str, &'static str)> = printed.iter().map(|c| (*c, *c)).collect();
                choices
                    .extend(spellings(row).filter(|(spelling, c)| printed.contains(c) && !printed.contains(spelling)));
                choices.retain(|(spelling, _)| text.starts_with(spelling));
                choices.sort_by_key(|(spelling, _)| std::cmp::Reverse(spelling.len()));
                choices.into_iter().find_map(|(spelling, c)| {
                    // A modifier that stands twice in the syntax stands for the same text.
                    fields[*i] = c;
                    match_pieces(row, rest, &text[spelling.len()..], fields)
                })
            } else {
                // A number that the opcode contains ends at its digits.
                let mut len = operand_len(kind, text)?;
                if kind == "number"
                    && matches!(rest.first(), Some(Piece::Text(t)) if t.starts_with('k') || t.starts_with('.'))
                {
                    len = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
                }
                fields[*i] = &text[..len];
                match_pieces(row, rest, &text[len..], fields)
            }
        }
    }
}

/// Cuts immediates to their slots.
struct Cut;

impl RegMap<Reg, Reg> for Cut {
    fn reg(&mut self, r: Reg, _: Slot) -> Reg {
        r
    }
    fn def(&mut self, r: Reg, _: Slot) -> Reg {
        r
    }
    fn imm(&mut self, bits: u64, slot: Slot) -> Src<Reg> {
        Src::Imm(bits & slot.class.mask())
    }
}

/// What is wrong with an instruction: registers that do not fit their slots, immediates where none may stand, a form that PTX lacks.
pub fn misfit(inst: &Inst<Reg>) -> Option<String> {
    if let Err(expected) = legal::check(inst) {
        return Some(format!("PTX has no such form: it takes {expected}"));
    }
    let mut found = None;
    let mut fits = |r: Reg, slot: Slot| {
        if r.class != slot.class {
            let (is, due) = (r.class.ptx_type(), slot.class.ptx_type());
            found.get_or_insert(format!("a `{is}` register where a `{due}` one is due"));
        }
    };
    inst.for_each_use(&mut fits);
    inst.for_each_def(&mut fits);
    let immediate = |slot: Slot, has: bool| {
        let no_place = has && slot.literal == LiteralStyle::None;
        no_place.then(|| "a number where a register is due".to_string())
    };
    found.or_else(|| {
        inst.fields().into_iter().find_map(|field| match field {
            Field::Src(src, slot) => immediate(slot, src.reg().is_none()),
            Field::Srcs(list, slot) => immediate(slot, list.iter().any(|s| s.reg().is_none())),
            _ => None,
        })
    })
}

/// One instruction without its guard at the start of `text`, and what is left. Of several rows that fit the text the
/// first legal one is meant; an illegal one is left for the verifier to name. What PTX spells in several ways may be
/// spelled in any.
pub fn parse_inst(text: &str) -> Option<(Inst<Reg>, &str)> {
    if let Some((printed, after)) = float_literals(text) {
        let (inst, rest) = parse_inst(&printed)?;
        return rest.is_empty().then_some((inst, after));
    }
    if let Some((opcode, spelled)) = OPCODES.iter().find(|(opcode, _)| text.starts_with(opcode)) {
        let after = &text[opcode.len()..];
        let printed = format!("{spelled}{after}");
        let (inst, rest) = parse_printed(&printed)?;
        return Some((inst, &after[after.len() - rest.len()..]));
    }
    if let Some(printed) = tensor_copy(text).or_else(|| rounded_product(text)) {
        let (inst, rest) = parse_printed(&printed)?;
        return Some((inst, &text[text.len() - rest.len()..]));
    }
    // `.shared` is `.shared::cta` where both may stand.
    if text.starts_with("mbarrier.") || text.starts_with("cp.async.mbarrier.") {
        let opcode = &text[..text.find(char::is_whitespace)?];
        if let Some(at) = opcode.find(".shared.") {
            let after = &text[at + ".shared".len()..];
            let printed = format!("{}.shared::cta{after}", &text[..at]);
            let (inst, rest) = parse_printed(&printed)?;
            return Some((inst, &after[after.len() - rest.len()..]));
        }
    }
    parse_printed(text)
}

fn parse_printed(text: &str) -> Option<(Inst<Reg>, &str)> {
    let mut illegal = None;
    for &row in BY_WORD.get(first_word(text))? {
        let mut fields = vec![""; ROWS[row].fields.len()];
        let Some(rest) = match_pieces(row, &SYNTAX[row], text, &mut fields) else {
            continue;
        };
        let Some(inst) = Inst::from_fields(row, &fields, &mut FlatNames) else {
            continue;
        };
        let inst = inst.map(&mut Cut);
        if misfit(&inst).is_none() {
            return Some((inst, rest));
        }
        illegal.get_or_insert((inst, rest));
    }
    illegal
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Parser<'t> {
    fn line_number(&self) -> usize {
        self.text[..self.at].matches('\n').count() + 1
    }
    fn error(&self, what: impl Into<String>) -> Error {
        let line = self.text[self.at..].lines().next().unwrap_or("");
        Error::new(
            Fault::InvalidKernel,
            format!("PTX line {}: {}", self.line_number(), what.into()),
        )
        .got(line.trim())
    }
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }
    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }
    /// The rest of the line, trimmed; moves to the next.
    fn line(&mut self) -> &'t str {
        let rest = self.rest();
        let end = rest.find('\n').unwrap_or(rest.len());
        self.at += (end + 1).min(rest.len());
        rest[..end].trim()
    }
    /// The next line that is not empty, without moving.
    fn peek(&mut self) -> &'t str {
        self.skip_space();
        let rest = self.rest();
        rest[..rest.find('\n').unwrap_or(rest.len())].trim()
    }
    fn expect(&mut self, prefix: &str) -> Result<&'t str, Error> {
        let line = self.peek();
        let Some(after) = line.strip_prefix(prefix) else {
            return Err(self.error("the module's header").expected(prefix));
        };
        self.line();
        Ok(after.trim())
    }
    fn numbers<T: std::str::FromStr>(&self, text: &str) -> Result<Vec<T>, Error> {
        let parsed: Option<Vec<T>> = text.split(',').map(|t| t.trim().parse().ok()).collect();
        parsed.ok_or_else(|| self.error("numbers").got(text))
    }
}

/// How a block ended in the text.
enum Ending {
    Open,
    Cond {
        guard: Guard,
        then: String,
        uniformity: Option<Option<String>>,
    },
    Done,
}

/// A module of one kernel, as [`super::print::print`] writes it.
pub fn parse(text: &str) -> Result<Flat, Error> {
    let mut p = Parser { text, at: 0 };
    let mut launch: Option<LaunchSpec> = None;
    while let line = p.peek()
        && line.starts_with("//")
    {
        if let Some(json) = line.strip_prefix("// smalt.launch ") {
            launch = Some(serde_json::from_str(json).map_err(|e| p.error(format!("smalt.launch: {e}")))?);
        }
        p.line();
    }
    p.expect(".version")?;
    let target = p.expect(".target")?.to_string();
    p.expect(".address_size 64")?;
    p.expect(".extern .shared")?;
    let entry = p.expect(".visible .entry")?.trim_end_matches('(').trim().to_string();
    let mut params = vec![];
    loop {
        let line = p.peek();
        if line == ")" {
            p.line();
            break;
        }
        if !line.starts_with(".param") {
            return Err(p.error("a parameter").expected(".param"));
        }
        params.push(line.contains(".align 64"));
        p.line();
    }
    let block = *p.numbers(p.clone_expect(".maxntid")?)?.first().unwrap_or(&1);
    p.expect(".maxntid")?;
    let mut min_ctas_per_sm = None;
    let mut cluster = [1, 1, 1];
    loop {
        let line = p.peek();
        if let Some(n) = line.strip_prefix(".minnctapersm") {
            min_ctas_per_sm = Some(n.trim().parse().map_err(|_| p.error("a number"))?);
        } else if let Some(dims) = line.strip_prefix(".reqnctapercluster") {
            let dims: Vec<u32> = p.numbers(dims)?;
            cluster = dims.try_into().map_err(|_| p.error("three cluster dimensions"))?;
        } else if line != ".explicitcluster" {
            break;
        }
        p.line();
    }
    p.expect("{")?;
    let mut registers = [0; 4];
    while let Some(decl) = p.peek().strip_prefix(".reg") {
        if p.peek() == PROFILE_DECLARATION {
            p.line();
            continue;
        }
        let parsed = Class::ALL.into_iter().find_map(|class| {
            let rest = decl.trim().strip_prefix(class.ptx_type())?.trim().strip_prefix('%')?;
            let count = rest
                .strip_prefix(class.prefix())?
                .strip_prefix('<')?
                .strip_suffix(">;")?;
            Some((class, count.parse().ok()?))
        });
        let (class, count): (Class, u32) = parsed.ok_or_else(|| p.error("a register declaration"))?;
        registers[class as usize] = count;
        p.line();
    }
    let too_small = p.error("less of the thread's own memory than is used");
    let mut declared = 0;
    if let Some(decl) = p.peek().strip_prefix(".local") {
        let count = decl.trim().strip_prefix(".align 16 .b8 smalt_local[");
        let count = count.and_then(|rest| rest.strip_suffix("];")?.parse().ok());
        declared = count.ok_or_else(|| p.error("a declaration").expected(local_declaration(16)))?;
        p.line();
    }
    let blocks = parse_blocks(&mut p)?;
    let launch = match launch {
        Some(launch) => launch,
        None => LaunchSpec {
            entry: entry.clone(),
            grid: cluster,
            cluster,
            params: params
                .iter()
                .enumerate()
                .map(|(i, map)| match map {
                    false => Ok(EntryParam::Pointer { buffer: i as u32 }),
                    true => Err(p.error("a tensor map needs a `// smalt.launch` comment")),
                })
                .collect::<Result<_, _>>()?,
            ..LaunchSpec::of_one_block(block)
        },
    };
    if launch.entry != entry
        || launch.block != block
        || launch.cluster != cluster
        || launch.params.len() != params.len()
    {
        return Err(p.error("smalt.launch and the module differ in entry, threads, cluster or parameters"));
    }
    let flat = Flat {
        launch,
        target,
        registers,
        blocks,
        min_ctas_per_sm,
    };
    let used = flat.local_bytes();
    if declared < used {
        return Err(too_small.expected(local_declaration(used)));
    }
    Ok(flat)
}

impl<'t> Parser<'t> {
    /// What follows `prefix` on the next line, without moving.
    fn clone_expect(&self, prefix: &str) -> Result<&'t str, Error> {
        Parser {
            text: self.text,
            at: self.at,
        }
        .expect(prefix)
    }
}

fn parse_guard(text: &str) -> Option<(Guard, &str)> {
    let rest = text.strip_prefix('@')?;
    let (negated, rest) = match rest.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let (name, rest) = rest.split_once(' ')?;
    let pred = FlatNames.reg(name)?;
    Some((Guard { pred, negated }, rest))
}

fn parse_blocks(p: &mut Parser<'_>) -> Result<Vec<Block>, Error> {
    let mut labels: FxHashMap<String, u32> = FxHashMap::default();
    let mut blocks: Vec<(Vec<FlatInst>, Ending, Option<String>, Loc)> = vec![];
    let mut loc = Loc::default();
    loop {
        let line = p.peek();
        if line == "}" {
            p.line();
            break;
        }
        if line.is_empty() {
            return Err(p.error("the kernel ends without `}`"));
        }
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label.to_string(), blocks.len() as u32);
            blocks.push((vec![], Ending::Open, None, loc));
            p.line();
            continue;
        }
        if let Some(comment) = line.strip_prefix("// ") {
            // Most comments say nothing to us; some rows are comments.
            let (guard, body) = match parse_guard(comment) {
                Some((guard, body)) => (Some(guard), body),
                None => (None, comment),
            };
            if let (Some((inst, _)), Some((insts, Ending::Open, ..))) =
                (parse_inst(&format!("// {body}")), blocks.last_mut())
            {
                insts.push(FlatInst { guard, inst, loc });
            }
            p.line();
            continue;
        }
        if let Some(rest) = line.strip_prefix(".loc 1 ") {
            let op = rest.split(' ').next().and_then(|n| n.parse().ok());
            loc = Loc(op.ok_or_else(|| p.error("a .loc of file 1"))?);
            p.line();
            continue;
        }
        if line.starts_with(".loc ") {
            let op = line.rsplit_once("// op").and_then(|(_, n)| n.trim().parse().ok());
            loc = Loc(op.ok_or_else(|| p.error("a .loc with its op as a comment"))?);
            p.line();
            continue;
        }
        let Some((insts, ending, jump, at)) = blocks.last_mut() else {
            return Err(p.error("a label before the first instruction"));
        };
        let (guard, body) = match parse_guard(line) {
            Some((guard, body)) => (Some(guard), body),
            None => (None, line),
        };
        if let Some(branch) = body.strip_prefix("bra") {
            let (uniform, branch) = match branch.strip_prefix(".uni ") {
                Some(b) => (true, b),
                None => (false, branch.trim_start()),
            };
            let (to, comment) = branch.split_once(';').ok_or_else(|| p.error("`;`"))?;
            let reconverge = comment
                .trim()
                .strip_prefix("// reconverge ")
                .map(|t| t.trim().to_string());
            *at = loc;
            match (guard, &ending) {
                (Some(guard), Ending::Open) => {
                    *ending = Ending::Cond {
                        guard,
                        then: to.trim().to_string(),
                        uniformity: if uniform { None } else { Some(reconverge) },
                    };
                }
                (None, Ending::Open) => {
                    *jump = Some(to.trim().to_string());
                    *ending = Ending::Done;
                }
                (None, Ending::Cond { .. }) if jump.is_none() => *jump = Some(to.trim().to_string()),
                _ => return Err(p.error("a block ends at its branch")),
            }
            p.line();
            continue;
        }
        if body == "ret;" {
            if !matches!(ending, Ending::Open) || guard.is_some() {
                return Err(p.error("a block ends at its branch"));
            }
            *ending = Ending::Done;
            *at = loc;
            p.line();
            continue;
        }
        if !matches!(ending, Ending::Open) {
            return Err(p.error("a block ends at its branch"));
        }
        // The instruction may span lines: it is matched against the text from here.
        let start = p.at + (line.len() - body.len());
        let Some((inst, rest)) = parse_inst(&p.text[start..]) else {
            return Err(p.error("no row of the instruction table prints this"));
        };
        p.at = p.text.len() - rest.len();
        let tail = p.line();
        if !tail.is_empty() && !tail.starts_with("//") {
            return Err(p.error(format!("`{tail}` after an instruction")));
        }
        insts.push(FlatInst { guard, inst, loc });
    }
    let count = blocks.len() as u32;
    let find = |label: &str| -> Result<BlockId, Error> {
        // A number that no block has is the verifier's to refuse.
        let number = || {
            label
                .strip_prefix('B')
                .and_then(|n| n.parse().ok())
                .filter(|n| *n >= count)
        };
        let b = labels.get(label).copied().or_else(number).ok_or_else(|| {
            Error::new(
                Fault::InvalidKernel,
                format!("a branch to `{label}`, which no block is called"),
            )
        })?;
        Ok(BlockId(b))
    };
    let mut out = vec![];
    for (b, (insts, ending, jump, loc)) in blocks.into_iter().enumerate() {
        let next = BlockId(b as u32 + 1);
        let falls = || {
            (next.0 < count).then_some(next).ok_or_else(|| {
                Error::new(
                    Fault::InvalidKernel,
                    format!("block {b} falls off the end of the kernel"),
                )
            })
        };
        let terminator = match (ending, jump) {
            (Ending::Open, _) => Terminator::Branch { to: falls()? },
            (Ending::Done, Some(to)) => Terminator::Branch { to: find(&to)? },
            (Ending::Done, None) => Terminator::Return,
            (
                Ending::Cond {
                    guard,
                    then,
                    uniformity,
                },
                jump,
            ) => {
                let otherwise = match jump {
                    Some(label) => find(&label)?,
                    None => falls()?,
                };
                Terminator::CondBranch {
                    guard,
                    then: find(&then)?,
                    otherwise,
                    uniformity: match uniformity {
                        None => Uniformity::Uniform,
                        Some(Some(label)) => Uniformity::Divergent {
                            reconverge: find(&label)?,
                        },
                        Some(None) => {
                            return Err(Error::new(
                                Fault::InvalidKernel,
                                format!("block {b}: a divergent branch needs `// reconverge`"),
                            ));
                        }
                    },
                }
            }
        };
        out.push(Block { insts, terminator, loc });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::generate::legal_instances;
    use super::super::print::write_inst;
    use super::*;

    #[test]
    fn every_instance_of_every_row_comes_back_from_its_text() {
        let mut count = 0;
        // Unchecked texts are not read here either.
        for (row, info) in ROWS.iter().enumerate().filter(|(_, info)| info.name != "Unchecked") {
            for inst in legal_instances(row, true)
                .into_iter()
                .chain(legal_instances(row, false))
            {
                let mut text = String::new();
                write_inst(&mut text, &inst);
                let (back, rest) = parse_inst(&text).unwrap_or_else(|| panic!("row {}: `{text}`", info.name));
                assert_eq!(rest, "", "row {}: `{text}`", info.name);
                assert_eq!(back, inst, "row {}: `{text}`", info.name);
                count += 1;
            }
        }
        assert!(count > 5000, "{count}");
    }
    #[test]
    fn what_ptx_spells_in_several_ways_is_printed_in_one() {
        for (spelled, printed) in [
            ("mov.f32 %r1, 0f3F800000;", "mov.b32 %r1, 0x3f800000;"),
            ("mov.u64 %d1, %d2;", "mov.b64 %d1, %d2;"),
            ("mov.u32 %r1, %tid.x;", "mov.u32 %r1, %tid.x;"),
            (
                "ld.global.v4.f32 {%r1, %r2, %r3, %r4}, [%d1+16];",
                "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d1+16];",
            ),
            ("ld.weak.shared::cta.u16 %h1, [%r1];", "ld.shared.b16 %h1, [%r1];"),
            ("st.global.f64 [%d1], %d2;", "st.global.b64 [%d1], %d2;"),
            ("selp.s32 %r1, 1, %r2, %p1;", "selp.b32 %r1, 1, %r2, %p1;"),
            ("shr.b32 %r1, %r2, 3;", "shr.u32 %r1, %r2, 3;"),
            ("add.f32 %r1, %r2, %r3;", "add.rn.f32 %r1, %r2, %r3;"),
            (
                "mul.ftz.f32 %r1, %r2, 0f40000000;",
                "mul.rn.ftz.f32 %r1, %r2, 0f40000000;",
            ),
            ("sub.bf16x2 %r1, %r2, %r3;", "sub.rn.bf16x2 %r1, %r2, %r3;"),
            ("membar.gl;", "fence.sc.gpu;"),
            (
                "fma.rn.f32 %r1, %r2, 0.5, -1.5;",
                "fma.rn.f32 %r1, %r2, 0f3F000000, 0fBFC00000;",
            ),
            (
                "mul.f64 %d1, %d2, 0D4000000000000000;",
                "mul.rn.f64 %d1, %d2, 0d4000000000000000;",
            ),
            (
                "setp.lt.f64 %p1, %d1, 0.1;",
                "setp.lt.f64 %p1, %d1, 0d3FB999999999999A;",
            ),
            (
                "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, %r3}], [%r4];",
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, %r3}], [%r4];",
            ),
            (
                "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d1, {%r2}], [%r1];",
                "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%d1, {%r2}], [%r1];",
            ),
            (
                "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%d1, {%r2}], [%r1];",
                "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%d1, {%r2}], [%r1];",
            ),
            (
                "cp.async.bulk.prefetch.tensor.1d.L2.global [%d1, {%r2}];",
                "cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%d1, {%r2}];",
            ),
            (
                "atom.global.add.u32 %r1, [%d1], 1;",
                "atom.relaxed.gpu.global.add.u32 %r1, [%d1], 1;",
            ),
            (
                "red.shared.add.f32 [%r1], %r2;",
                "red.relaxed.gpu.shared.add.f32 [%r1], %r2;",
            ),
            (
                "ld.global.cg.v2.f32 {%r1, %r2}, [%d1];",
                "ld.global.cg.v2.b32 {%r1, %r2}, [%d1];",
            ),
            (
                "cp.async.cg.shared::cta.global [%r1], [%d1], 16;",
                "cp.async.cg.shared.global [%r1], [%d1], 16;",
            ),
            (
                "mbarrier.arrive.shared.b64 _, [%r1], 2;",
                "mbarrier.arrive.shared::cta.b64 _, [%r1], 2;",
            ),
            ("barrier.sync.aligned 1, 128;", "bar.sync 1, 128;"),
        ] {
            let (inst, rest) = parse_inst(spelled).unwrap_or_else(|| panic!("`{spelled}`"));
            let mut text = String::new();
            write_inst(&mut text, &inst);
            assert_eq!((text.as_str(), rest), (printed, ""), "`{spelled}`");
        }
        // The rest of the text is the caller's own.
        for text in [
            "membar.sys; // more",
            "add.f32 %r1, %r2, 0.5; // more",
            "mbarrier.inval.shared.b64 [%r1]; // more",
        ] {
            assert_eq!(parse_inst(text).expect("an instruction").1, " // more");
        }
    }
    #[test]
    fn own_memory_is_declared_as_large_as_it_is_used() {
        let text = include_str!("../../tests/filetests/ptx/local.ptx");
        let declaration = local_declaration(32);
        assert!(parse(text).is_ok());
        for (other, what) in [
            ("", "less of the thread's own memory than is used"),
            (&local_declaration(16), "less of the thread's own memory than is used"),
            (".local .b8 own[32];", "a declaration"),
        ] {
            let error = parse(&text.replace(&declaration, other)).unwrap_err();
            assert!(error.what.ends_with(what), "{error}");
            assert!(
                error
                    .expected
                    .unwrap_or_default()
                    .starts_with(".local .align 16 .b8 smalt_local[")
            );
        }
    }
}
