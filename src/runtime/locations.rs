//! From ops to the user's lines.
use crate::descriptor::DebugTable;
use crate::error::{Error, Loc};
use crate::ptx::print::{SourceLine, SourceLines};
use serde::Serialize;

/// The locations of a kernel's ops at one call site.
#[derive(Clone, Debug, Default)]
pub struct Locations {
    table: DebugTable,
}

/// One place in the user's source, as it crosses the C API.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Frame {
    pub file: String,
    pub function: String,
    pub line: u32,
    pub column: u32,
}

/// An error with its frames, as it crosses the C API.
#[derive(Clone, Debug, Serialize)]
pub struct LocatedError {
    pub fault: &'static str,
    pub message: String,
    pub what: String,
    pub expected: Option<String>,
    pub got: Option<String>,
    pub remedy: Option<String>,
    pub op: Option<u32>,
    /// Innermost first: the user's line, helpers, callers.
    pub frames: Vec<Frame>,
}

impl Locations {
    /// Empty bytes: no locations. Locations are a help: damaged ones are dropped, not an error.
    pub fn decode(debug: &[u8]) -> Locations {
        Locations {
            table: DebugTable::decode(debug).unwrap_or_default(),
        }
    }

    /// Where launches leave their profiles, if anywhere.
    pub fn profile_dir(&self) -> Option<&str> {
        Some(self.table.profile_dir()).filter(|dir| !dir.is_empty())
    }

    /// The frames of an op, innermost first; those of the call site where the op has none.
    pub fn frames(&self, loc: Loc) -> Vec<Frame> {
        let mut frames = self.table.locate(loc);
        if frames.is_empty() {
            frames = self.table.locate(Loc::CALL_SITE);
        }
        let own = |frame: &crate::descriptor::Frame<'_>| Frame {
            file: frame.file.to_owned(),
            function: frame.function.to_owned(),
            line: frame.line,
            column: frame.column,
        };
        frames.iter().map(own).collect()
    }

    /// `file:line` of an op.
    pub fn line(&self, loc: Loc) -> Option<String> {
        self.frames(loc)
            .first()
            .map(|frame| format!("{}:{}", frame.file, frame.line))
    }

    /// The line of each op below `count`: its innermost frame, else the call site's.
    pub fn source_lines(&self, count: u32) -> SourceLines {
        let mut files = indexmap::IndexSet::new();
        let mut by_op = Vec::new();
        for op in 0..count {
            let frame = self.frames(Loc(op)).into_iter().next();
            by_op.push(frame.filter(|frame| frame.line > 0).map(|frame| SourceLine {
                file: files.insert_full(frame.file).0 as u32,
                line: frame.line,
                column: frame.column,
            }));
        }
        SourceLines {
            files: files.into_iter().collect(),
            by_op,
        }
    }

    /// A text with the lines of the ops in it, and with what the user calls references.
    pub fn resolve(&self, text: &str) -> String {
        self.table.resolve(text)
    }

    pub fn locate(&self, error: &Error) -> LocatedError {
        let part = |text: &Option<String>| text.as_deref().map(|text| self.resolve(text));
        LocatedError {
            fault: error.fault.name(),
            message: self.describe(error),
            what: self.resolve(&error.what),
            expected: part(&error.expected),
            got: part(&error.got),
            remedy: part(&error.remedy),
            op: error.loc.map(|loc| loc.0),
            frames: self.frames(error.loc.unwrap_or(Loc::CALL_SITE)),
        }
    }

    /// The error's text with the user's lines.
    pub fn describe(&self, error: &Error) -> String {
        format!("smalt: {}", self.table.render(error))
    }
}
