//! What somebody may have meant.
use crate::ptx::inst::ROWS;
use std::collections::BTreeSet;

/// What is shown of a row's syntax: `shfl.sync.{mode}.b32 {d}, {a}, {b}, {c}, {mask}`.
fn syntax(row: usize) -> String {
    let text = ROWS[row].syntax.replace("{{", "{").replace("}}", "}");
    text.split(';').next().unwrap_or("").to_string()
}

/// The same, and what its modifiers may be: of a form that is the only one.
fn explained(row: usize) -> String {
    let info = &ROWS[row];
    let mut text = format!("`{}`", syntax(row));
    for (i, (_, name)) in info
        .fields
        .iter()
        .enumerate()
        .filter(|(_, field)| field.0 == "modifier")
    {
        let choices: Vec<String> = info.choices[i]().iter().map(|c| format!("`{c}`")).collect();
        text += &format!(", {{{name}}} one of {}", choices.join(" "));
    }
    text
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

/// The forms of the instruction that begins as `text` does; where there is none, words that differ little.
pub fn forms(text: &str) -> String {
    let first = word(text);
    let rows: Vec<usize> = (0..ROWS.len()).filter(|row| is_instruction(*row)).collect();
    let of_word: Vec<usize> = rows
        .iter()
        .copied()
        .filter(|r| words(*r).iter().any(|w| w == first))
        .collect();
    if let [only] = of_word[..] {
        return explained(only);
    }
    if !of_word.is_empty() {
        let shown = of_word
            .iter()
            .take(6)
            .map(|row| format!("`{}`", syntax(*row)))
            .collect::<Vec<_>>()
            .join(", ");
        return match of_word.len() {
            1..=6 => shown,
            n => format!("{shown}, or one of {} other forms of `{first}`", n - 6),
        };
    }
    let all: BTreeSet<String> = rows.iter().flat_map(|r| words(*r)).collect();
    let mut near: Vec<(usize, &String)> = all.iter().map(|w| (distance(first, w), w)).collect();
    near.sort();
    let near: Vec<String> = near.iter().take(3).map(|(_, w)| format!("`{w}`")).collect();
    format!("an instruction of the table; near that are {}", near.join(", "))
}

/// Insertions, deletions and changes of letters between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

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
    fn a_word_has_its_forms_or_its_neighbours() {
        assert_eq!(forms("popc.b16"), "`popc.{ty} {d}, {a}`, {ty} one of `b32` `b64`");
        assert!(forms("poppc.b32").contains("`popc`"));
        assert!(forms("min.s8").contains("{op}.{ty} {d}, {a}, {b}"));
        assert_eq!(distance("shfl", "shl"), 1);
    }
}
