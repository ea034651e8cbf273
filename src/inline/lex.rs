//! A text in pieces: statements, with the lines that they are on.

/// A statement, before anybody knows what its words mean.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// `{`, where no list begins.
    Open,
    Close,
    Label(String),
    /// Up to its semicolon, which is left out.
    Statement(String),
}

/// The pieces and their lines, from 1; or the line on which something is wrong, and what.
pub fn pieces(text: &str) -> Result<Vec<(Piece, u32)>, (u32, String)> {
    let text = without_comments(text)?;
    let mut out = vec![];
    let (mut line, mut current, mut began) = (1u32, String::new(), 1u32);
    let mut depth = 0u32;
    for c in text.chars() {
        let starts = current.trim().is_empty();
        match c {
            '{' if starts => {
                out.push((Piece::Open, line));
                current.clear();
            }
            '}' if starts && depth == 0 => {
                out.push((Piece::Close, line));
                current.clear();
            }
            ';' => {
                if !starts {
                    out.push((Piece::Statement(current.trim().to_string()), began));
                }
                current.clear();
                depth = 0;
            }
            ':' if is_name(current.trim()) => {
                out.push((Piece::Label(current.trim().to_string()), began));
                current.clear();
            }
            _ => {
                if starts && !c.is_whitespace() {
                    began = line;
                    current.clear();
                }
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => return Err((line, "a `}` without its `{`".into())),
                    '}' => depth -= 1,
                    _ => {}
                }
                current.push(c);
            }
        }
        line += u32::from(c == '\n');
    }
    if !current.trim().is_empty() {
        return Err((began, format!("`{}` does not end with a semicolon", current.trim())));
    }
    Ok(out)
}

/// Comments as spaces, lines kept.
pub fn without_comments(text: &str) -> Result<String, (u32, String)> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else {
            let line = 1 + out.matches('\n').count() as u32;
            let end = rest[2..]
                .find("*/")
                .ok_or((line, "a comment without its `*/`".to_string()))?;
            out.push(' ');
            out.extend(rest[..end + 4].chars().filter(|c| *c == '\n'));
            end + 4
        };
        rest = &rest[end..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether it can be the name of a register or label (PTX ISA, "Identifiers").
pub fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    let first = chars.next();
    let follows = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
    match first {
        Some(c) if c.is_ascii_alphabetic() => chars.all(follows),
        Some('_' | '$' | '%') => text.len() > 1 && chars.all(follows),
        Some(_) | None => false,
    }
}

/// The operands of an instruction: what stands between commas that are in no brackets.
pub fn operands(text: &str) -> Vec<&str> {
    let (mut out, mut depth, mut start) = (vec![], 0i32, 0);
    for (i, c) in text.char_indices() {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                out.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() || !out.is_empty() {
        out.push(text[start..].trim());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_at_semicolons_and_lists_are_no_scopes() {
        let text = "{ .reg .b32 a; // one\n mov.b64 {a, b}, {1};\n L: @p /* two\n */ bra L; }";
        let found = pieces(text).unwrap();
        let expected = [
            (Piece::Open, 1),
            (Piece::Statement(".reg .b32 a".into()), 1),
            (Piece::Statement("mov.b64 {a, b}, {1}".into()), 2),
            (Piece::Label("L".into()), 3),
            (Piece::Statement("@p  \n bra L".into()), 3),
            (Piece::Close, 4),
        ];
        assert_eq!(found, expected);
        assert_eq!(operands("{a, b}, [c+4], 5"), ["{a, b}", "[c+4]", "5"]);
        for (bad, line) in [("mov.b32 a, b", 1), ("x;\n y", 2), ("a }; ", 1), ("\n/* a", 2)] {
            assert_eq!(pieces(bad).unwrap_err().0, line, "{bad}");
        }
    }
}
