//! What an author may have meant.
use crate::ptx::inst::ROWS;
use std::collections::BTreeSet;

/// What is shown of a row's syntax: `shfl.sync.{mode}.b32 {d}, {a}, {b}, {c}, {mask}`.
fn syntax(row: usize) -> String {
    let text = ROWS[row].syntax.replace("{{", "{").replace("}}", "}");
    text.split(';').next().unwrap_or("").to_string()
}

/// The same, and what some of its modifiers may be.
fn explained(row: usize, says: impl Fn(usize) -> bool) -> String {
    let info = &ROWS[row];
    let mut text = format!("`{}`", syntax(row));
    for (i, (_, name)) in modifiers(row).filter(|(i, _)| says(*i)) {
        let choices = info.choices[i]().into_iter().map(|choice| match choice {
            "" => "nothing".into(),
            _ => format!("`{choice}`"),
        });
        text += &format!(", {{{name}}} one of {}", choices.collect::<Vec<String>>().join(" "));
    }
    text
}

fn modifiers(row: usize) -> impl Iterator<Item = (usize, (&'static str, &'static str))> {
    let fields = ROWS[row].fields.iter().copied().enumerate();
    fields.filter(|(_, (kind, _))| *kind == "modifier")
}

/// How many letters an opcode is away from what a row's may be. `any`: a modifier that may be whatever there is.
fn away(row: usize, opcode: &str, any: Option<usize>) -> usize {
    let info = &ROWS[row];
    // By letters of the opcode: how far those before are from what the row has so far.
    let mut costs: Vec<usize> = (0..=opcode.len()).collect();
    let mut rest = info.syntax.split([' ', ';']).next().unwrap_or("");
    while let Some(letter) = rest.chars().next() {
        let field = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let Some((name, behind)) = field else {
            spell(&mut costs, opcode, &rest[..letter.len_utf8()]);
            rest = &rest[letter.len_utf8()..];
            continue;
        };
        rest = behind;
        let i = info.fields.iter().position(|(_, field)| *field == name);
        let choices = i.map(|i| info.choices[i]()).unwrap_or_default();
        let is_digit = |j: usize| opcode.as_bytes()[j].is_ascii_digit();
        if choices.is_empty() || i == any {
            for j in 1..costs.len() {
                if i == any || is_digit(j - 1) {
                    costs[j] = costs[j].min(costs[j - 1]);
                }
            }
            continue;
        }
        let spelt = choices.iter().map(|choice| {
            let mut costs = costs.clone();
            spell(&mut costs, opcode, choice);
            costs
        });
        costs = spelt
            .reduce(|a, b| a.iter().zip(&b).map(|(a, b)| *a.min(b)).collect())
            .unwrap_or(costs);
    }
    costs[opcode.len()]
}

/// The costs with letters more: insertions, deletions and changes.
fn spell(costs: &mut [usize], text: &str, more: &str) {
    for letter in more.bytes() {
        let mut diagonal = costs[0];
        costs[0] += 1;
        for (j, there) in text.bytes().enumerate() {
            let changed = diagonal + usize::from(there != letter);
            diagonal = costs[j + 1];
            costs[j + 1] = changed.min(costs[j] + 1).min(diagonal + 1);
        }
    }
}

/// Whether a row is an instruction, and not a loop, a comment, or about what users' texts cannot name.
pub fn is_instruction(row: usize) -> bool {
    let info = &ROWS[row];
    let names_ours = ["smalt_smem", "smalt_local"]
        .iter()
        .any(|name| info.syntax.contains(name));
    let is_ours = names_ours || info.fields.iter().any(|(kind, _)| *kind == "param");
    !info.syntax.starts_with("{{") && !info.syntax.starts_with("//") && !is_ours
}

fn word(text: &str) -> &str {
    text.split(['.', ' ', '{']).next().unwrap_or("")
}

/// The first words that a row's text may have.
fn words(row: usize) -> Vec<String> {
    let info = &ROWS[row];
    let Some(rest) = info.syntax.strip_prefix('{') else {
        return vec![word(info.syntax).to_string()];
    };
    let field = rest.split('}').next().unwrap_or("");
    let i = info.fields.iter().position(|(_, name)| *name == field);
    let choices = i.map(|i| info.choices[i]()).unwrap_or_default();
    choices.iter().map(|text| word(text).to_string()).collect()
}

/// The forms of the instruction that an opcode is nearest to; where no instruction begins so, words that differ little.
pub fn forms(opcode: &str) -> String {
    let first = word(opcode);
    let rows: Vec<usize> = (0..ROWS.len()).filter(|row| is_instruction(*row)).collect();
    let is_of_word = |row: &usize| words(*row).iter().any(|w| w == first);
    let mut of_word: Vec<(usize, usize)> = rows
        .iter()
        .copied()
        .filter(is_of_word)
        .map(|row| (away(row, opcode, None), row))
        .collect();
    of_word.sort();
    match of_word[..] {
        [] => {}
        [(_, only)] => return explained(only, |_| true),
        [(least, _), ..] => {
            let nearest: Vec<String> = of_word
                .iter()
                .take_while(|(away, _)| *away == least)
                .take(SHOWN)
                .map(|&(_, row)| explained(row, |modifier| away(row, opcode, Some(modifier)) < least))
                .collect();
            let more = of_word.len() - nearest.len();
            let text = nearest.join(", or ");
            return match more {
                0 => text,
                1 => format!("{text}; `{first}` has one other form"),
                _ => format!("{text}; `{first}` has {more} other forms"),
            };
        }
    }
    let all: BTreeSet<String> = rows.iter().flat_map(|r| words(*r)).collect();
    let distance = |word: &str| {
        let mut costs: Vec<usize> = (0..=first.len()).collect();
        spell(&mut costs, first, word);
        costs[first.len()]
    };
    let mut near: Vec<(usize, &String)> = all.iter().map(|w| (distance(w), w)).collect();
    near.sort();
    let near: Vec<String> = near.iter().take(SHOWN).map(|(_, w)| format!("`{w}`")).collect();
    format!("an instruction of the table; near that are {}", near.join(", "))
}

/// Forms, or words, that are shown where several are as near.
const SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as a page: `UPDATE_EXPECT=1 cargo test --lib inline` writes it.
    #[test]
    fn the_page_of_instructions_is_the_table() {
        let mut page = "# Instructions\n\nWhat `smalt.inline_ptx` takes, and what smalt itself emits: the instruction table, printed by a test. `{ty}` and the\n\
            like in an opcode stand for one of the modifiers that follow. Spellings that PTX has beside these (`mov.u32`, `add.f32`) are read, too.\n"
            .to_string();
        for row in (0..ROWS.len()).filter(|row| is_instruction(*row)) {
            let info = &ROWS[row];
            page += &format!("\n* `{}`", syntax(row).trim());
            if !info.doc.trim().is_empty() {
                page += &format!(":{}", info.doc.replace("[`Inst::", "[`").trim_end());
            }
            for (i, (kind, name)) in info.fields.iter().enumerate() {
                if *kind == "modifier" {
                    let texts = info.choices[i]();
                    let shown: Vec<String> = texts
                        .iter()
                        .map(|t| if t.is_empty() { "–".into() } else { format!("`{t}`") })
                        .collect();
                    page += &format!("\n  * `{name}`: {}", shown.join(" "));
                }
            }
        }
        page.push('\n');
        expect_test::expect_file!["../../docs/INSTRUCTIONS.md"].assert_eq(&page);
    }

    #[test]
    fn an_opcode_has_its_nearest_forms_or_its_word_has_neighbours() {
        assert_eq!(forms("popc.b16"), "`popc.{ty} {d}, {a}`, {ty} one of `b32` `b64`");
        assert!(forms("poppc.b32").contains("`popc`"));
        assert!(forms("min.s8").starts_with("`{op}.{ty} {d}, {a}, {b}`, {ty} one of "));
        // What is wrong about it is said, and no more.
        let said = forms("mma.sync.aligned.m8n8k8.row.col.f64.f64.f64.f64");
        assert!(
            said.starts_with(
                "`mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64{rnd} {d}, {a}, {b}, {c}`, {shape} one of `m8n8k4` "
            ),
            "{said}"
        );
        assert!(
            said.ends_with("; `mma` has 4 other forms") && !said.contains("{rnd} one of"),
            "{said}"
        );
        // An opcode that is right: its operands are not.
        let said = forms("shfl.sync.up.b32");
        assert!(
            said.starts_with("`shfl.sync.{mode}.b32 ") && !said.contains("one of"),
            "{said}"
        );
        // Numbers within an opcode are not counted.
        assert!(
            forms("wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16")
                .starts_with("`wgmma.mma_async.sync.aligned.m64n{n}k16.")
        );
    }

    #[test]
    fn every_spelling_of_every_opcode_is_no_letter_away() {
        for row in (0..ROWS.len()).filter(|row| is_instruction(*row)) {
            let info = &ROWS[row];
            for number in 0..200 {
                let mut opcode = info.syntax.split([' ', ';']).next().unwrap_or("").to_string();
                for (i, (kind, name)) in info.fields.iter().enumerate() {
                    let choices = info.choices[i]();
                    let text = match *kind {
                        "modifier" => choices[number * (i + 7) % choices.len()],
                        _ => "16",
                    };
                    opcode = opcode.replace(&format!("{{{name}}}"), text);
                }
                assert_eq!(away(row, &opcode, None), 0, "{opcode}");
            }
        }
    }
}
