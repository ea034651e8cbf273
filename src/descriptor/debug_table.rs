//! Op ids → the user's lines.
use super::decode::{damaged, decode};
use super::proto;
use crate::error::{Error, Loc, Result};
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
}

impl DebugTable {
    /// Decodes and checks a table; empty bytes give an empty table.
    pub fn decode(bytes: &[u8]) -> Result<DebugTable> {
        let proto::DebugTable {
            strings,
            frames,
            op_frames,
            profile_dir,
        } = decode(bytes, "the debug table")?;
        for frame in &frames {
            for index in [frame.file, frame.function] {
                if index as usize >= strings.len() {
                    return Err(damaged("the debug table names a string that it does not have")
                        .expected(format!("an index below {}", strings.len()))
                        .got(index.to_string()));
                }
            }
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

    /// `op7` in a text becomes `op7, kernel.py:12`, as far as the table knows the op.
    fn name_ops(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("op") {
            let starts_word = !rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let (before, after) = rest.split_at(at + 2);
            out.push_str(before);
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = after.split_at(digits);
            out.push_str(number);
            if let (true, Ok(op)) = (starts_word, number.parse())
                && let Some(frame) = self.locate_or_call_site(Loc(op))
                && !tail.starts_with(|c: char| c.is_alphanumeric() || c == '_')
            {
                // Writing to a String cannot fail.
                let _ = write!(out, ", {}:{}", frame.file, frame.line);
            }
            rest = tail;
        }
        out + rest
    }

    /// The error's text followed by where it is: the op's frames, then the call site's.
    pub fn render(&self, error: &Error) -> String {
        let mut text = self.name_ops(&error.to_string());
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
            strings: ["", "kernel.py", "body", "main.py", "<module>"]
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
    }

    #[test]
    fn dangling_indices_are_refused() {
        let mut bad = table();
        bad.op_frames[1].frames[0] = 9;
        let e = DebugTable::decode(&bad.encode_to_vec()).unwrap_err();
        assert!(e.to_string().contains("frame that it does not have"), "{e}");
        let mut bad = table();
        bad.frames[1].file = 9;
        let e = DebugTable::decode(&bad.encode_to_vec()).unwrap_err();
        assert!(e.to_string().contains("string that it does not have"), "{e}");
    }
}
