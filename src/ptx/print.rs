//! Flat form → PTX text.
use super::flat::{Flat, FlatInst, Reg, Terminator, Uniformity};
use super::inst::{Inst, ROWS};
use super::launch::EntryParam;
use super::operand::*;
use crate::error::{Error, Loc};
use crate::target::Target;
use std::fmt::Write;
use std::sync::LazyLock;

/// A piece of a row's syntax.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Text(String),
    /// Field by position.
    Field(usize),
    /// `.v2`… by the field's length.
    Vector(usize),
    /// The field's length.
    Length(usize),
}

/// The syntax of every row, split at its placeholders.
pub(super) static SYNTAX: LazyLock<Vec<Vec<Piece>>> = LazyLock::new(|| ROWS.iter().map(split_syntax).collect());

fn split_syntax(row: &super::inst::RowInfo) -> Vec<Piece> {
    let mut pieces = vec![];
    let mut text = String::new();
    let mut chars = row.syntax.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' | '}' if chars.peek() == Some(&c) => {
                chars.next();
                text.push(c);
            }
            '{' => {
                let name: String = chars.by_ref().take_while(|c| *c != '}').collect();
                let bare = name.trim_start_matches(['#', '$']);
                let index = row.fields.iter().position(|(_, f)| *f == bare);
                // Every row is split by a test, so that this cannot fail in use.
                let index = index.unwrap_or_else(|| panic!("row {}: no field `{bare}`", row.name));
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                pieces.push(match name.as_bytes()[0] {
                    b'#' => Piece::Vector(index),
                    b'$' => Piece::Length(index),
                    _ => Piece::Field(index),
                });
            }
            _ => text.push(c),
        }
    }
    if !row.syntax.contains(';') {
        text.push(';');
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    pieces
}

fn field_len<R>(field: &Field<'_, R>) -> usize {
    match field {
        Field::Defs(list, _) => list.len(),
        Field::Srcs(list, _) => list.len(),
        Field::Tied(t, _) => t.output.len(),
        Field::Modifier(_)
        | Field::Def(..)
        | Field::Reg(..)
        | Field::Src(..)
        | Field::Addr(..)
        | Field::Number(_)
        | Field::Param(_)
        | Field::Text(_) => 1,
    }
}

fn write_src(out: &mut String, src: &Src<Reg>, slot: Slot) {
    match src {
        Src::Reg(r) => write_reg(out, *r),
        Src::Imm(bits) => write_imm(out, *bits, slot),
    }
}

fn write_reg(out: &mut String, r: Reg) {
    out.push('%');
    out.push_str(r.class.prefix());
    write_u32(out, r.index);
}

fn write_u32(out: &mut String, mut v: u32) {
    let mut buf = [0u8; 10];
    let mut at = buf.len();
    loop {
        at -= 1;
        buf[at] = b'0' + (v % 10) as u8;
        v /= 10;
        if v == 0 {
            break;
        }
    }
    // Digits are text.
    out.push_str(std::str::from_utf8(&buf[at..]).unwrap_or_default());
}

fn write_imm(out: &mut String, bits: u64, slot: Slot) {
    // A String never fails to grow as a writer.
    let _ = match slot.literal {
        LiteralStyle::F32 => write!(out, "0f{:08X}", bits as u32),
        LiteralStyle::F64 => write!(out, "0d{bits:016X}"),
        LiteralStyle::Integer | LiteralStyle::None => {
            let (signed, unsigned) = match slot.class {
                Class::Pred => (bits as i64, bits),
                Class::B16 => (i64::from(bits as i16), bits & 0xffff),
                Class::B32 => (i64::from(bits as i32), bits & 0xffff_ffff),
                Class::B64 => (bits as i64, bits),
            };
            if (-4096..=65536).contains(&signed) {
                write!(out, "{signed}")
            } else {
                write!(out, "0x{unsigned:x}")
            }
        }
    };
}

fn write_list<T>(out: &mut String, items: &[T], mut one: impl FnMut(&mut String, &T)) {
    if let [item] = items {
        return one(out, item);
    }
    out.push('{');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        one(out, item);
    }
    out.push('}');
}

/// The name of an entry parameter.
pub(super) fn param_name(p: ParamRef) -> String {
    format!("smalt_p{}", p.0)
}

/// Appends one instruction, `;` included, no newline.
pub fn write_inst(out: &mut String, inst: &Inst<Reg>) {
    if let Inst::Unchecked { code, d, a, .. } = inst {
        return write_unchecked(out, code, d, a);
    }
    let fields = inst.fields();
    for piece in &SYNTAX[inst.row()] {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Vector(i) => match field_len(&fields[*i]) {
                1 => {}
                n => {
                    let _ = write!(out, ".v{n}");
                }
            },
            Piece::Length(i) => write_u32(out, field_len(&fields[*i]) as u32),
            Piece::Field(i) => match &fields[*i] {
                Field::Modifier(text) => out.push_str(text),
                Field::Def(r, _) | Field::Reg(r, _) => write_reg(out, **r),
                Field::Src(src, slot) => write_src(out, src, *slot),
                Field::Addr(a, _) => {
                    out.push('[');
                    write_reg(out, a.base);
                    if a.offset != 0 {
                        let _ = write!(out, "+{}", a.offset);
                    }
                    out.push(']');
                }
                // Coordinates and matrices keep their braces also when they are one.
                Field::Defs(list, _) if list.len() == 1 && needs_braces(inst.row(), *i) => {
                    out.push('{');
                    write_reg(out, list[0]);
                    out.push('}');
                }
                Field::Defs(list, _) => write_list(out, list, |out, r| write_reg(out, *r)),
                Field::Srcs(list, slot) if list.len() == 1 && needs_braces(inst.row(), *i) => {
                    out.push('{');
                    write_src(out, &list[0], *slot);
                    out.push('}');
                }
                Field::Srcs(list, slot) => write_list(out, list, |out, a| write_src(out, a, *slot)),
                Field::Tied(t, _) => write_list(out, &t.output, |out, r| write_reg(out, *r)),
                Field::Number(n) => {
                    let _ = if (-4096..=65536).contains(n) {
                        write!(out, "{n}")
                    } else {
                        write!(out, "0x{n:x}")
                    };
                }
                Field::Param(p) => out.push_str(&param_name(*p)),
                Field::Text(text) => out.push_str(text),
            },
        }
    }
}

/// How the block of an unchecked text begins and ends: for errors of the assembler.
pub const UNCHECKED: (&str, &str) = ("{ // as written", "} // end of what is as written");

/// Such a text in a block of its own, on lines of its own.
fn write_unchecked(out: &mut String, code: &str, d: &[Reg], a: &[Src<Reg>]) {
    let (begin, end) = UNCHECKED;
    let _ = writeln!(out, "{begin}");
    for (name, n) in [("d", d.len()), ("a", a.len())] {
        if n > 0 {
            let _ = writeln!(out, "\t.reg .b64 smalt_{name}<{n}>;");
        }
    }
    for (i, a) in a.iter().enumerate() {
        let _ = write!(out, "\tmov.b64 smalt_a{i}, ");
        write_src(out, a, Slot::WIDE);
        out.push_str(";\n");
    }
    let _ = writeln!(out, "{code}");
    for (i, d) in d.iter().enumerate() {
        let _ = writeln!(out, "\tmov.b64 {d}, smalt_d{i};");
    }
    out.push_str(end);
}

/// Lists whose braces stay with one element: those of rows that print the list's length in the opcode, and fragments of `mma`.
fn needs_braces(row: usize, field: usize) -> bool {
    SYNTAX[row].contains(&Piece::Length(field))
        || ["mma.", "tcgen05."].iter().any(|of| ROWS[row].syntax.starts_with(of))
}

fn write_flat_inst(out: &mut String, fi: &FlatInst) {
    if fi.inst.is_comment() {
        out.push_str("// ");
    }
    if let Some(guard) = fi.guard {
        let _ = write!(out, "@{}{} ", if guard.negated { "!" } else { "" }, guard.pred);
    }
    let start = out.len();
    write_inst(out, &fi.inst);
    if fi.inst.is_comment() {
        // The guard, too, is behind the slashes.
        out.replace_range(start..start + "// ".len(), "");
    }
}

/// The PTX ISA version that the machine, the instructions and the parameters need, e.g. 80 for 8.0.
pub fn isa_version(flat: &Flat) -> u16 {
    let of_machine = Target::from_name(&flat.target).map_or(80, |target| target.isa);
    let of_insts = flat
        .blocks
        .iter()
        .flat_map(|b| &b.insts)
        .map(|i| i.inst.requires().isa)
        .max()
        .unwrap_or(80)
        .max(of_machine);
    let param_bytes = flat.launch.param_bytes();
    // Parameters above 4352 bytes need 8.1 (PTX ISA, "Kernel Function Parameters").
    of_insts.max(if param_bytes > 4352 { 81 } else { 80 })
}

/// The registers in which a thread keeps where it is in its profile.
pub const PROFILE_DECLARATION: &str = ".reg .b32 %profile_n; .reg .b64 %profile_at;";

/// Of so many bytes of memory of its own for each thread.
pub fn local_declaration(bytes: u32) -> String {
    format!(".local .align 16 .b8 smalt_local[{bytes}];")
}

/// The module behind a comment with the launch, which PTX does not say: what [`super::parse`] reads back whole.
pub fn print_with_launch(flat: &Flat) -> Result<String, Error> {
    let json = serde_json::to_string(&flat.launch).map_err(|e| Error::internal(format!("smalt.launch: {e}")))?;
    Ok(format!("// smalt.launch {json}\n{}", print(flat)))
}

/// Where ops come from, in the user's files: for profilers and compute-sanitizer.
#[derive(Clone, Default, Debug)]
pub struct SourceLines {
    pub files: Vec<String>,
    /// By op: a file of `files`, line and column from 1.
    pub by_op: Vec<Option<SourceLine>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceLine {
    pub file: u32,
    pub line: u32,
    pub column: u32,
}

/// The file that `.loc` names for ops without a place in the user's files: lines are ops.
const OPS_FILE: &str = "smalt.op";

/// The whole module. Every instruction carries `.loc` with its op as the line of one synthetic file.
pub fn print(flat: &Flat) -> String {
    print_with_lines(flat, &SourceLines::default())
}

/// The module with real files and lines, as far as `lines` knows the op, which then follows as a comment (`// op7`).
pub fn print_with_lines(flat: &Flat, lines: &SourceLines) -> String {
    let mut out = String::with_capacity(256 * 1024);
    let version = isa_version(flat);
    let _ = writeln!(out, ".version {}.{}", version / 10, version % 10);
    let _ = writeln!(out, ".target {}", flat.target);
    out.push_str(".address_size 64\n\n.extern .shared .align 1024 .b8 smalt_smem[];\n\n");
    let _ = writeln!(out, ".visible .entry {}(", flat.launch.entry);
    for (i, param) in flat.launch.params.iter().enumerate() {
        let name = param_name(ParamRef(i as u32));
        let comma = if i + 1 < flat.launch.params.len() { "," } else { "" };
        let _ = match param {
            EntryParam::Pointer { .. } | EntryParam::Row { .. } => writeln!(out, "\t.param .b64 {name}{comma}"),
            EntryParam::TensorMap(_) => writeln!(out, "\t.param .align 64 .b8 {name}[128]{comma}"),
        };
    }
    out.push_str(")\n");
    let _ = writeln!(out, ".maxntid {}, 1, 1", flat.launch.block);
    if let Some(n) = flat.min_ctas_per_sm {
        let _ = writeln!(out, ".minnctapersm {n}");
    }
    if flat.launch.cluster != [1, 1, 1] {
        let [x, y, z] = flat.launch.cluster;
        let _ = writeln!(out, ".explicitcluster\n.reqnctapercluster {x}, {y}, {z}");
    }
    out.push_str("{\n");
    for class in Class::ALL {
        let n = flat.registers[class as usize];
        if n > 0 {
            let _ = writeln!(out, "\t.reg {} %{}<{n}>;", class.ptx_type(), class.prefix());
        }
    }
    if flat.has_profile() {
        let _ = writeln!(out, "\t{PROFILE_DECLARATION}");
    }
    let local = flat.local_bytes();
    if local > 0 {
        let _ = writeln!(out, "\t{}", local_declaration(local));
    }
    // The line that `.loc` last named; op 0, the call site, is line 1 unless nothing was named yet.
    let mut line = Loc::default().0;
    for (b, block) in flat.blocks.iter().enumerate() {
        let _ = writeln!(out, "B{b}:");
        for inst in &block.insts {
            if inst.loc.0.max(line.min(1)) != line {
                line = inst.loc.0.max(1);
                let _ = match lines.by_op.get(inst.loc.0 as usize).copied().flatten() {
                    // File 1 is that of ops.
                    Some(at) => writeln!(out, "\t.loc {} {} {} // {}", at.file + 2, at.line, at.column, inst.loc),
                    None => writeln!(out, "\t.loc 1 {line} 0"),
                };
            }
            out.push('\t');
            write_flat_inst(&mut out, inst);
            out.push('\n');
        }
        let next = b as u32 + 1;
        match &block.terminator {
            Terminator::Branch { to } if to.0 == next => {}
            Terminator::Branch { to } => {
                let _ = writeln!(out, "\tbra.uni {to};");
            }
            Terminator::CondBranch {
                guard,
                then,
                otherwise,
                uniformity,
            } => {
                let uni = match uniformity {
                    Uniformity::Uniform => ".uni",
                    Uniformity::Divergent { .. } => "",
                };
                let neg = |n: bool| if n { "!" } else { "" };
                let (negated, to) = if then.0 == next {
                    (!guard.negated, otherwise)
                } else {
                    (guard.negated, then)
                };
                let _ = write!(out, "\t@{}{} bra{uni} {to};", neg(negated), guard.pred);
                if let Uniformity::Divergent { reconverge } = uniformity {
                    let _ = write!(out, " // reconverge {reconverge}");
                }
                out.push('\n');
                if then.0 != next {
                    if otherwise.0 != next {
                        let _ = writeln!(out, "\tbra.uni {otherwise};");
                    }
                }
            }
            Terminator::Return => out.push_str("\tret;\n"),
        }
    }
    let _ = writeln!(out, "}}\n.file 1 \"{OPS_FILE}\"");
    for (i, file) in lines.files.iter().enumerate() {
        // No assembler takes quotes or control characters in a file's name.
        let name: String = file.chars().filter(|c| !c.is_control() && *c != '"').collect();
        let _ = writeln!(out, ".file {} \"{name}\"", i + 2);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_syntax_that_names_all_its_fields() {
        for (row, pieces) in ROWS.iter().zip(SYNTAX.iter()) {
            for (i, (kind, field)) in row.fields.iter().enumerate() {
                assert!(
                    pieces.contains(&Piece::Field(i)),
                    "row {}: {kind} {field} is not in its syntax",
                    row.name
                );
            }
        }
    }

    #[test]
    fn row_names_are_unique() {
        let mut names: Vec<_> = ROWS.iter().map(|r| r.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }
}
