//! Instances of every row, for tests: every combination of modifiers, with list lengths and numbers of each row's kind.
use super::flat::Reg;
use super::inst::{Inst, Names, ROWS, RegMap};
use super::modifier::{MmaBitShape, MmaF64Shape, MmaFragments, MmaShape, Modifier, TmemShape};
use super::operand::*;

/// Registers of one class each row may name; enough that operands differ.
const REGISTERS: u32 = 160;

struct AnyReg;

impl Names for AnyReg {
    type Reg = Reg;
    fn reg(&mut self, _: &str) -> Option<Reg> {
        Some(Reg {
            class: Class::B32,
            index: 0,
        })
    }
    fn param(&mut self, _: &str) -> Option<ParamRef> {
        Some(ParamRef(0))
    }
}

/// Numbers that a field of this name takes in some row.
fn numbers(row: &str, field: &str) -> Vec<i64> {
    match field {
        "mask" => vec![0xffff_ffff],
        "lut" => vec![0x96, 0xe8],
        "ns" => vec![1_000_000],
        "flag" => vec![0, 70_000],
        "threads" => vec![128, 1024],
        "bytes" if row == "PrintReserve" => vec![16, 4096],
        "tag" if row == "ProfileMark" => vec![0, 0x8000_0001],
        "marks" => vec![2, 1 << 20],
        "bytes" => vec![4, 8, 16],
        "version" => vec![80, 83],
        "offset" => vec![0, 120],
        "at" => vec![0, 16, 1020],
        "size" | "extent" | "dim" | "place" => vec![0, 70_000],
        "neg_a" | "neg_b" => vec![1, -1],
        "trans_a" | "trans_b" => vec![0, 1],
        "sel" => vec![0, 1],
        "k" if row.starts_with("WgmmaSparse") => vec![16, 64],
        "k" => vec![8, 32],
        "selector" => vec![0, 1, 2, 3],
        "times" => vec![1, 8, 32],
        "n" => match row {
            "SetMaxReg" => vec![24, 240],
            "BulkWait" | "WgmmaWait" | "CopyWait" => vec![0, 1, 7],
            // Of wgmma: the number of columns. (Of sparse ones with operands among 128 accumulators, ptxas runs out of registers.)
            _ if row.starts_with("WgmmaSparse") => vec![24, 128],
            _ => vec![24, 256],
        },
        _ => panic!("row {row}: a number `{field}` that the generator does not know"),
    }
}

/// Lengths of a list field.
fn lengths(row: &str, field: &str, numbers: &[(&str, i64)], modifiers: &[(&str, &str)]) -> Vec<usize> {
    let n = numbers.iter().find(|(f, _)| *f == "n").map(|(_, n)| *n as usize);
    match (row, field) {
        ("PackB32" | "UnpackB32" | "PackB64" | "UnpackB64", _) => vec![2],
        ("PackQuarters" | "UnpackQuarters", _) => vec![4],
        ("LdCached" | "LdNcCached" | "StCached" | "LdPolicy" | "LdNcPolicy" | "StPolicy", _) => vec![1, 2, 4],
        ("AtomVector" | "AtomVectorF32" | "RedVectorF32", _) => vec![2, 4],
        ("Ld" | "LdNc" | "LdLocal" | "St" | "StLocal" | "StAsync" | "Ldmatrix" | "Stmatrix", _) => vec![1, 2, 4],
        ("RedVector", _) => vec![1, 2, 4],
        (_, "coords") => vec![1, 2, 3, 4, 5],
        ("WgmmaWait", _) => vec![0, 1, 8],
        ("WgmmaFence", _) => vec![1, 8],
        (_, "acc") => {
            let packed = modifiers.contains(&("acc_ty", "f16"));
            vec![n.expect("a shape") / if packed { 4 } else { 2 }]
        }
        ("MmaQuads", "a" | "b") => vec![2],
        ("MmaQuads", _) => vec![4, 8],
        ("MmaSync" | "MmaBits" | "MmaF64" | "MmaSparse", _) => {
            let of = mma_fragments(row, modifiers);
            vec![match field {
                "a" => of.a,
                "b" => of.b,
                _ => of.acc,
            }]
        }
        ("TmemLoad" | "TmemStore", _) => {
            let (_, shape) = modifiers.iter().find(|(f, _)| *f == "shape").expect("a modifier");
            let (shape, _) = TmemShape::parse_prefix(shape).expect("its text");
            let (_, times) = numbers.iter().find(|(f, _)| *f == "times").expect("a number");
            vec![*times as usize * shape.once().0]
        }
        (_, "a" | "c" | "d") => vec![4],
        _ => panic!("row {row}: a list `{field}` that the generator does not know"),
    }
}

/// What `mma` of these modifiers takes, if there is such a form.
fn mma_fragments(row: &str, modifiers: &[(&str, &str)]) -> MmaFragments {
    fn of<M: Modifier>(modifiers: &[(&str, &str)], field: &str) -> M {
        let (_, text) = modifiers.iter().find(|(f, _)| *f == field).expect("a modifier");
        M::parse_prefix(text).expect("its text").0
    }
    match row {
        "MmaBits" => of::<MmaBitShape>(modifiers, "shape").fragments(),
        "MmaF64" => of::<MmaF64Shape>(modifiers, "shape").fragments(),
        "MmaSparse" => of::<MmaShape>(modifiers, "shape").sparse_fragments(of(modifiers, "ty")),
        _ => of::<MmaShape>(modifiers, "shape").fragments(of(modifiers, "ty")),
    }
}

/// Gives every operand a register of its slot's class, and sources an immediate now and then.
struct Assign<'a> {
    next: &'a mut u32,
    immediates: bool,
}

impl Assign<'_> {
    fn fresh(&mut self, class: Class) -> Reg {
        *self.next = self.next.wrapping_mul(1_103_515_245).wrapping_add(12345);
        Reg {
            class,
            index: (*self.next >> 8) % REGISTERS,
        }
    }
}

impl RegMap<Reg, Reg> for Assign<'_> {
    fn reg(&mut self, _: Reg, slot: Slot) -> Reg {
        self.fresh(slot.class)
    }
    fn def(&mut self, _: Reg, slot: Slot) -> Reg {
        self.fresh(slot.class)
    }
    fn src(&mut self, _: Reg, slot: Slot) -> Src<Reg> {
        let r = self.fresh(slot.class);
        if self.immediates && slot.literal != LiteralStyle::None && r.index.is_multiple_of(2) {
            let bits = u64::from(*self.next) << 17 ^ u64::from(*self.next);
            return Src::Imm(match slot.literal {
                LiteralStyle::F32 => u64::from((r.index as f32).to_bits()),
                LiteralStyle::F64 => f64::from(r.index).to_bits(),
                LiteralStyle::Integer | LiteralStyle::None => bits & slot.class.mask(),
            });
        }
        Src::Reg(r)
    }
    fn addr(&mut self, _: Addr<Reg>, slot: Slot) -> Addr<Reg> {
        let base = self.fresh(slot.class);
        Addr {
            base,
            offset: (base.index % 3) as i32 * 16 - 16 * (base.index % 2) as i32,
        }
    }
}

/// Every combination of `row`'s modifiers, numbers and lengths, legal or not.
pub fn instances(row: usize, immediates: bool) -> Vec<Inst<Reg>> {
    let info = &ROWS[row];
    // Modifiers and numbers first, then the lists, whose lengths follow from them.
    let mut partial: Vec<Vec<String>> = vec![vec![String::new(); info.fields.len()]];
    let expand = |partial: Vec<Vec<String>>, i: usize, texts: Vec<String>| -> Vec<Vec<String>> {
        let with = |p: &Vec<String>, t: &String| {
            let mut p = p.clone();
            p[i].clone_from(t);
            p
        };
        partial
            .iter()
            .flat_map(|p| texts.iter().map(move |t| with(p, t)))
            .collect()
    };
    for (i, (kind, name)) in info.fields.iter().enumerate() {
        match *kind {
            "modifier" => {
                let texts = info.choices[i]().into_iter().map(String::from).collect();
                partial = expand(partial, i, texts);
            }
            "number" => {
                let texts = numbers(info.name, name).iter().map(i64::to_string).collect();
                partial = expand(partial, i, texts);
            }
            "def" | "reg" | "src" => partial = expand(partial, i, vec!["%r0".into()]),
            "addr" => partial = expand(partial, i, vec!["[%r0]".into()]),
            "param" => partial = expand(partial, i, vec!["smalt_p0".into()]),
            "text" => partial = expand(partial, i, vec![String::new()]),
            "defs" | "srcs" | "tied" => {}
            other => panic!("unknown kind `{other}`"),
        }
    }
    for (i, (kind, name)) in info.fields.iter().enumerate() {
        if !matches!(*kind, "defs" | "srcs" | "tied") {
            continue;
        }
        let mut out = vec![];
        for p in partial {
            let of = |kind: &str| {
                let fields = info
                    .fields
                    .iter()
                    .zip(&p)
                    .filter(|((k, _), _)| *k == kind)
                    .collect::<Vec<_>>();
                fields
                    .into_iter()
                    .map(|((_, f), t)| (*f, t.clone()))
                    .collect::<Vec<_>>()
            };
            let numbers: Vec<(&str, i64)> = of("number")
                .into_iter()
                .map(|(f, t)| (f, t.parse().expect("a number")))
                .collect();
            let modifiers = of("modifier");
            let modifiers: Vec<(&str, &str)> = modifiers.iter().map(|(f, t)| (*f, t.as_str())).collect();
            for n in lengths(info.name, name, &numbers, &modifiers) {
                let mut p = p.clone();
                p[i] = format!("{{{}}}", vec!["%r0"; n].join(", "));
                out.push(p);
            }
        }
        partial = out;
    }
    let mut seed = row as u32 + 1;
    partial
        .iter()
        .map(|texts| {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let inst = Inst::from_fields(row, &texts, &mut AnyReg);
            let inst = inst.unwrap_or_else(|| panic!("row {}: {texts:?}", info.name));
            let mut inst = inst.map(&mut Assign {
                next: &mut seed,
                immediates,
            });
            // ptxas takes a list of different registers alone.
            if let Inst::TmemLoad { d, .. } = &mut inst {
                for (i, r) in d.iter_mut().enumerate() {
                    r.index = i as u32;
                }
            }
            if let Inst::TmemStore { a, .. } = &mut inst {
                for (i, s) in a.iter_mut().enumerate() {
                    let Src::Reg(r) = s else { continue };
                    r.index = i as u32;
                }
            }
            // Accumulators are different registers, the same in and out.
            if let Some(t) = inst.tied_mut() {
                for (i, r) in t.output.iter_mut().enumerate() {
                    r.index = i as u32;
                }
                t.input.clone_from(&t.output);
            }
            inst
        })
        .collect()
}

/// The instances that [`super::legal`] allows.
pub fn legal_instances(row: usize, immediates: bool) -> Vec<Inst<Reg>> {
    let mut all = instances(row, immediates);
    all.retain(|inst| super::legal::check(inst).is_ok());
    all
}

pub mod tests {
    use super::super::print::write_inst;
    use super::*;
    use crate::target::{MACHINES, Machine};
    use rayon::prelude::*;
    use std::fmt::Write;
    use std::process::Command;

    /// The assembler: `SMALT_PTXAS`, or the one of a Python environment that `VIRTUAL_ENV` names, or the path's.
    pub fn ptxas() -> Option<std::path::PathBuf> {
        let named = std::env::var_os("SMALT_PTXAS").map(std::path::PathBuf::from);
        let in_venv = std::env::var_os("VIRTUAL_ENV").and_then(|venv| {
            let lib = std::path::Path::new(&venv).join("lib");
            let python = std::fs::read_dir(lib).ok()?.flatten().next()?.path();
            Some(python.join("site-packages/nvidia/cu13/bin/ptxas"))
        });
        let found = [named, in_venv, Some("ptxas".into())].into_iter().flatten();
        found.into_iter().find(|p| {
            Command::new(p)
                .arg("--version")
                .output()
                .is_ok_and(|o| o.status.success())
        })
    }

    #[test]
    fn every_row_has_legal_instances() {
        for (row, info) in ROWS.iter().enumerate() {
            assert!(!legal_instances(row, false).is_empty(), "row {}", info.name);
        }
    }

    /// One instance in PTX.
    fn text_of(inst: &Inst<Reg>) -> String {
        let mut text = String::new();
        write_inst(&mut text, inst);
        // Where a warp leaves to is in another row's text.
        if text.contains("smalt_leaves") {
            let to = match text.contains("smalt_leaves:") {
                true => "",
                false => "smalt_leaves:\n",
            };
            text = format!("{{\n{text}\n{to}bar.warp.sync 0xffffffff;\n}}");
        }
        text
    }

    /// Which of the texts the assembler takes, with its message where it does not.
    fn refused(
        ptxas: &std::path::Path,
        target: &str,
        isa: u16,
        texts: &[&str],
    ) -> std::collections::BTreeMap<usize, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rows.ptx");
        let mut refused = std::collections::BTreeMap::new();
        // It tells of a few dozen, then no more.
        loop {
            let mut ptx = format!(
                ".version {}.{}\n.target {target}\n.address_size 64\n.extern .shared .align 1024 .b8 smalt_smem[];\n",
                isa / 10,
                isa % 10
            );
            let (mut line_of, mut line, mut counted) = (vec![], 0, 0);
            let left: Vec<usize> = (0..texts.len()).filter(|i| !refused.contains_key(i)).collect();
            // It dies of one function with thousands of unrelated instructions, and wants one number of CTAs of all `tcgen05` of a function.
            let (pairs, others): (Vec<usize>, Vec<usize>) =
                left.iter().partition(|i| texts[**i].contains("cta_group::2"));
            for (k, some) in others.chunks(100).chain(pairs.chunks(100)).enumerate() {
                let _ = writeln!(
                    ptx,
                    ".visible .entry kernel{k}(.param .align 64 .b8 smalt_p0[128])\n.maxntid 128, 1, 1\n\
                    .minnctapersm 1\n{{\n.local .align 16 .b8 smalt_local[1024];"
                );
                ptx.push_str(super::super::print::PROFILE_DECLARATION);
                for class in Class::ALL {
                    let _ = writeln!(ptx, ".reg {} %{}<{REGISTERS}>;", class.ptx_type(), class.prefix());
                }
                line += ptx[counted..].matches('\n').count();
                for &i in some {
                    line_of.push((line + 1, i));
                    line += texts[i].matches('\n').count() + 1;
                    ptx.push_str(texts[i]);
                    ptx.push('\n');
                }
                counted = ptx.len();
                ptx.push_str("ret;\n}\n");
            }
            std::fs::write(&file, &ptx).unwrap();
            let out = Command::new(ptxas)
                .arg(format!("-arch={target}"))
                .args(["--opt-level=0", "-o"])
                .arg(dir.path().join("rows.cubin"))
                .arg(&file)
                .output()
                .unwrap();
            let log = String::from_utf8_lossy(&out.stderr);
            let before = refused.len();
            for line in log.lines().filter(|l| l.contains("error")) {
                let number = line.split("line ").nth(1).and_then(|t| t.split(';').next());
                let Some(number) = number.and_then(|n| n.trim().parse::<usize>().ok()) else {
                    continue;
                };
                if let Some((_, i)) = line_of.iter().rev().find(|(start, _)| *start <= number) {
                    refused.entry(*i).or_insert_with(|| line.to_owned());
                }
            }
            if out.status.success() {
                return refused;
            }
            assert!(refused.len() > before, "{target}, PTX ISA {isa}: {log}");
        }
    }

    /// Every legal combination, for every machine, in one module per ISA version that it claims to need: the assembler takes exactly what the
    /// machine has the parts for.
    #[test]
    fn machines_have_what_ptxas_accepts() {
        let Some(ptxas) = ptxas() else {
            eprintln!("SKIPPED: no ptxas; set SMALT_PTXAS");
            return;
        };
        let mut by_isa: std::collections::BTreeMap<u16, Vec<(Inst<Reg>, String)>> = Default::default();
        for row in 0..ROWS.len() {
            for inst in legal_instances(row, true)
                .into_iter()
                .chain(legal_instances(row, false))
            {
                let text = text_of(&inst);
                by_isa.entry(inst.requires().isa).or_default().push((inst, text));
            }
        }
        let of_machine = |machine: &Machine| {
            let mut wrong: std::collections::BTreeMap<String, (usize, String)> = Default::default();
            let mut modules: std::collections::BTreeMap<u16, Vec<&(Inst<Reg>, String)>> = Default::default();
            for (isa, some) in &by_isa {
                modules.entry((*isa).max(machine.isa)).or_default().extend(some);
            }
            for (isa, some) in modules {
                let texts: Vec<&str> = some.iter().map(|(_, text)| text.as_str()).collect();
                let refused = refused(&ptxas, machine.name, isa, &texts);
                for (i, (inst, text)) in some.iter().enumerate() {
                    let lacks = inst.requires().features.difference(machine.features);
                    let what = match (lacks.is_empty(), refused.get(&i)) {
                        (true, Some(message)) => format!("refused: {}", message.split("error").nth(1).unwrap_or("")),
                        (false, None) => format!("taken, though it lacks {lacks}"),
                        _ => continue,
                    };
                    let key = format!("{} {}", machine.name, ROWS[inst.row()].name);
                    let one = wrong.entry(key).or_insert((0, format!("{text}  {what}")));
                    one.0 += 1;
                }
            }
            wrong
        };
        let wrong: Vec<_> = MACHINES.par_iter().flat_map_iter(of_machine).collect();
        let report: Vec<String> = wrong
            .iter()
            .map(|(key, (n, first))| format!("{key}: {n}, e.g. {first}"))
            .collect();
        assert!(report.is_empty(), "{}", report.join("\n"));
    }
}
