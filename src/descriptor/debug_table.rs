//! Op ids → the user's lines.
use super::decode::{damaged, decode};
use super::proto;
use crate::error::{Error, Loc, Result};
use rustc_hash::FxHashMap;
use std::fmt::{self, Write};

/// One frame of a traceback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    pub file: &'a str,
    pub function: &'a str,
    /// From 1; 0: unknown.
    pub line: u32,
    pub column: u32,
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({})", self.file, self.line, self.function)
    }
}

/// Where each op of a kernel comes from. Travels beside the descriptor and is never hashed.
#[derive(Clone, Debug, Default)]
pub struct DebugTable {
    strings: Vec<String>,
    frames: Vec<proto::Frame>,
    /// By op id; [`Loc::CALL_SITE`] is entry 0. Indices into `frames`, innermost first.
    chains: Vec<Vec<u32>>,
    profile_dir: String,
    /// By value id: what the user calls a reference, an index into `strings`.
    names: FxHashMap<u32, u32>,
}

impl DebugTable {
    /// Decodes and checks a table; empty bytes give an empty table.
    pub fn decode(bytes: &[u8]) -> Result<DebugTable> {
        let proto::DebugTable {
            strings,
            frames,
            op_frames,
            profile_dir,
            ref_names,
        } = decode(bytes, "the debug table")?;
        let named = ref_names.iter().map(|it| it.name);
        let used = frames
            .iter()
            .flat_map(|frame| [frame.file, frame.function])
            .chain(named);
        if let Some(index) = used.into_iter().find(|&index| index as usize >= strings.len()) {
            return Err(damaged("the debug table names a string that it does not have")
                .expected(format!("an index below {}", strings.len()))
                .got(index.to_string()));
        }
        let chains: Vec<Vec<u32>> = op_frames.into_iter().map(|chain| chain.frames).collect();
        if let Some(index) = chains.iter().flatten().find(|&&i| i as usize >= frames.len()) {
            return Err(damaged("the debug table names a frame that it does not have")
                .expected(format!("an index below {}", frames.len()))
                .got(index.to_string()));
        }
        Ok(DebugTable {
            strings,
            frames,
            chains,
            profile_dir,
            names: ref_names.into_iter().map(|it| (it.value, it.name)).collect(),
        })
    }

    /// Where launches leave their profiles; empty: nowhere.
    pub fn profile_dir(&self) -> &str {
        &self.profile_dir
    }

    /// The frames of an op, the user's line first; empty if the table does not know the op.
    pub fn locate(&self, loc: Loc) -> Vec<Frame<'_>> {
        let chain = self.chains.get(loc.0 as usize).map_or(&[][..], Vec::as_slice);
        chain
            .iter()
            .map(|&i| {
                let proto::Frame {
                    file,
                    function,
                    line,
                    column,
                } = self.frames[i as usize];
                Frame {
                    file: &self.strings[file as usize],
                    function: &self.strings[function as usize],
                    line,
                    column,
                }
            })
            .collect()
    }

    /// The innermost frame of an op that the table knows; the call site's where the op is the kernel's own.
    fn locate_or_call_site(&self, loc: Loc) -> Option<Frame<'_>> {
        let known = (loc.0 as usize) < self.chains.len();
        let frames = [loc, Loc::CALL_SITE].map(|loc| self.locate(loc).into_iter().next());
        frames.into_iter().flatten().next().filter(|_| known)
    }

    /// `op7` in a text becomes `op7, kernel.py:12`, as far as the table knows the op; `%ref5` (a [`RefId`](crate::error::RefId)) what
    /// the user calls that reference, and nothing, with the comma behind it, where that is not known.
    pub fn resolve(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(['o', '%']) {
            let (before, word) = rest.split_at(at);
            out.push_str(before);
            let starts_word = word.starts_with('%') || !out.ends_with(is_of_word);
            let numbered = ["op", "%ref"]
                .into_iter()
                .find_map(|kind| Some((kind, numbered(word, kind)?)));
            let Some((kind, (number, tail))) = numbered.filter(|_| starts_word) else {
                let (first, tail) = word.split_at(1);
                out.push_str(first);
                rest = tail;
                continue;
            };
            rest = tail;
            // Writing to a String cannot fail.
            match kind {
                "op" => {
                    let _ = write!(out, "op{number}");
                    if let Some(frame) = self.locate_or_call_site(Loc(number)) {
                        let _ = write!(out, ", {}:{}", frame.file, frame.line);
                    }
                }
                _ => match self.names.get(&number) {
                    Some(name) => {
                        let _ = write!(out, "`{}`", self.strings[*name as usize]);
                    }
                    None => rest = tail.strip_prefix(", ").unwrap_or(tail),
                },
            }
        }
        out + rest
    }

    /// The error's text followed by where it is: the op's frames, then the call site's.
    pub fn render(&self, error: &Error) -> String {
        let mut text = self.resolve(&error.to_string());
        let op = error.loc.filter(|&loc| loc != Loc::CALL_SITE);
        for (what, loc) in [("at", op), ("called from", Some(Loc::CALL_SITE))] {
            let frames = loc.map(|loc| self.locate(loc)).unwrap_or_default();
            for (i, frame) in frames.iter().enumerate() {
                let what = if i == 0 { what } else { "in" };
                // Writing to a String cannot fail.
                let _ = write!(text, "\n  {what} {frame}");
            }
        }
        text
    }
}

/// Whether a name goes on with it.
fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The number in a text that begins with a kind and a number (`op7`), and what comes behind.
fn numbered<'a>(text: &'a str, kind: &str) -> Option<(u32, &'a str)> {
    let after = text.strip_prefix(kind)?;
    let (number, tail) = after.split_at(after.bytes().take_while(u8::is_ascii_digit).count());
    Some((number.parse().ok()?, tail)).filter(|(_, tail)| !tail.starts_with(is_of_word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn table() -> proto::DebugTable {
        let frame = |file, function, line| proto::Frame {
            file,
            function,
            line,
            column: 0,
        };
        let chain = |frames: &[u32]| proto::FrameChain {
            frames: frames.to_vec(),
        };
        proto::DebugTable {
            profile_dir: "/profiles".into(),
            ref_names: vec![proto::RefName { value: 4, name: 5 }],
            strings: ["", "kernel.py", "body", "main.py", "<module>", "s['k']"]
                .map(String::from)
                .to_vec(),
            frames: vec![frame(0, 0, 0), frame(1, 2, 7), frame(3, 4, 40)],
            op_frames: vec![chain(&[2]), chain(&[1, 2])],
        }
    }

    #[test]
    fn errors_end_with_the_users_line() {
        let table = DebugTable::decode(&table().encode_to_vec()).unwrap();
        assert_eq!(table.profile_dir(), "/profiles");
        let error = Error::unsupported("`sort`").at(Loc(1));
        assert_eq!(
            table.render(&error),
            "not supported yet: `sort`\n  at kernel.py:7 (body)\n  in main.py:40 (<module>)\n  called from main.py:40 (<module>)"
        );
        assert!(table.locate(Loc(99)).is_empty());
        let text = "%ref4, a buffer (op1), of %ref5, argument 0; loop1 ref4, op99 %ref4b, %ref, 5%";
        assert_eq!(
            table.resolve(text),
            "`s['k']`, a buffer (op1, kernel.py:7), of argument 0; loop1 ref4, op99 %ref4b, %ref, 5%"
        );
    }

    #[test]
    fn dangling_indices_are_refused() {
        let mut bad = table();
        bad.op_frames[1].frames[0] = 9;
        let e = DebugTable::decode(&bad.encode_to_vec()).unwrap_err();
        assert!(e.to_string().contains("frame that it does not have"), "{e}");
        let mut bad = table();
        bad.ref_names[0].name = 9;
        let e = DebugTable::decode(&bad.encode_to_vec()).unwrap_err();
        assert!(e.to_string().contains("string that it does not have"), "{e}");
        let mut bad = table();
        bad.frames[1].file = 9;
        let e = DebugTable::decode(&bad.encode_to_vec()).unwrap_err();
        assert!(e.to_string().contains("string that it does not have"), "{e}");
    }
}
