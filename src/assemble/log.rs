//! Reading the assembler's messages.
use super::Request;
use crate::error::{Error, Loc};
use crate::ptx::print::UNCHECKED;
use serde::Serialize;

/// An assembler's log, read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Log {
    /// Registers of one thread.
    pub registers: Option<u32>,
    pub stack_bytes: u32,
    pub spill_store_bytes: u32,
    pub spill_load_bytes: u32,
    /// Performance losses and warnings, in the log's order.
    pub warnings: Vec<Warning>,
    pub text: String,
}

/// One line of the log that the user should see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// `C7510`, … where the line has one.
    pub code: Option<String>,
    pub text: String,
    /// Line of the PTX text, from 1.
    pub ptx_line: Option<u32>,
    /// The op whose instructions stand at that line.
    #[serde(serialize_with = "serialize_op")]
    pub op: Option<Loc>,
}

fn serialize_op<S: serde::Serializer>(op: &Option<Loc>, serializer: S) -> Result<S::Ok, S::Error> {
    op.map(|op| op.0).serialize(serializer)
}

impl Log {
    pub fn parse(text: &str, ptx: &str) -> Log {
        let mut log = Log {
            text: text.trim_end_matches(['\0', '\n']).to_owned(),
            ..Log::default()
        };
        for line in log.text.clone().lines() {
            if let Some(count) = number_before(line, " bytes stack frame") {
                log.stack_bytes = log.stack_bytes.max(count);
            }
            if let Some(count) = number_before(line, " bytes spill stores") {
                log.spill_store_bytes += count;
            }
            if let Some(count) = number_before(line, " bytes spill loads") {
                log.spill_load_bytes += count;
            }
            // nvJitLink repeats the line in its own words ("used 10 registers").
            if let Some(count) = number_before(line, " registers") {
                log.registers = log.registers.max(Some(count));
            }
            let code = warning_code(line);
            if code.is_some() || line.contains("warning") || line.contains("Potential Performance Loss") {
                let ptx_line = ptx_line(line);
                log.warnings.push(Warning {
                    text: line.trim().to_owned(),
                    op: ptx_line.and_then(|line| op_at_line(ptx, line)),
                    ptx_line,
                    code,
                });
            }
        }
        log
    }

    /// Bytes that one thread spills.
    pub fn spills(&self) -> bool {
        self.spill_store_bytes + self.spill_load_bytes > 0
    }
}

/// The op of the last `.loc` at or before line `line` (from 1) of a PTX text. The printer gives every op its own line
/// of one synthetic file; where it names the user's lines, the op follows as a comment.
pub fn op_at_line(ptx: &str, line: u32) -> Option<Loc> {
    let lines = ptx.lines().take(line as usize).collect::<Vec<_>>();
    let op = |line: &&str| {
        let rest = line.trim_start().strip_prefix(".loc")?;
        if let Some((_, op)) = rest.rsplit_once("// op") {
            return op.trim().parse::<u32>().ok();
        }
        rest.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    lines.iter().rev().find_map(op).map(Loc)
}

/// PTX of ours that an assembler refuses is our fault: the error shows the lines.
pub(super) fn failure(name: &str, log: &str, request: &Request<'_>) -> Error {
    let mut error = Error::internal(format!("{name} refuses the PTX for {}", request.target));
    let first = log.lines().find(|line| line.contains("error"));
    if let Some((message, line)) = first.and_then(|message| Some((message, ptx_line(message)?)))
        && let Some(text) = unchecked_text(request.ptx, line)
    {
        let message = message.split_once(';').map_or(message, |(_, rest)| rest).trim();
        let error = Error::invalid("unchecked inline PTX: the assembler refuses it")
            .got(format!("`{}`: {message}", text.trim()))
            .remedy("mend the text; where it asks for a newer PTX ISA, say so (unchecked=\"8.6\")");
        return match op_at_line(request.ptx, line) {
            Some(op) => error.at(op),
            None => error,
        };
    }
    if let Some(line) = first.and_then(ptx_line) {
        if let Some(text) = request.ptx.lines().nth(line as usize - 1) {
            error.what += &format!("\n  line {line}: {}", text.trim());
        }
        if let Some(op) = op_at_line(request.ptx, line) {
            error = error.at(op);
        }
    }
    error.got(log.trim_end_matches(['\0', '\n']))
}

/// A line of a PTX text, if it is of a user's unchecked text.
fn unchecked_text(ptx: &str, line: u32) -> Option<&str> {
    let (begin, end) = UNCHECKED;
    let before: Vec<&str> = ptx.lines().take(line as usize).collect();
    let marks = before.iter().rev().map(|text| text.trim());
    let mark = marks.into_iter().find(|text| *text == begin || *text == end)?;
    (mark == begin).then(|| before[before.len() - 1])
}

/// `n` of "…n<what>…".
fn number_before(line: &str, what: &str) -> Option<u32> {
    let before = &line[..line.find(what)?];
    let digits = before.len() - before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    before[before.len() - digits..].parse().ok()
}

/// `C7510` of "… (C7510) …".
fn warning_code(line: &str) -> Option<String> {
    let start = line.find("(C")? + 1;
    let code = &line[start..start + line[start..].find(')')?];
    (code.len() > 1 && code[1..].bytes().all(|byte| byte.is_ascii_digit())).then(|| code.to_owned())
}

/// `33` of "ptxas kernel.ptx, line 33; …".
fn ptx_line(line: &str) -> Option<u32> {
    let rest = &line[line.find(", line ")? + ", line ".len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok().filter(|&line| line > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "\
.version 8.0
.entry k() {
.loc 1 4 0
wgmma.fence.sync.aligned;
.loc 1 9 0
wgmma.mma_async;
ret;
}";

    #[test]
    fn reads_ptxas() {
        let log = Log::parse(
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to \
             insufficient register resources for the wgmma pipeline in the function 'k'\n\
             ptxas kernel.ptx, line 6; info    : (C7514) Potential Performance Loss: x\n\
             ptxas info    : 0 bytes gmem\n\
             ptxas info    : Function properties for k\n    \
             16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
             ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size\n",
            PTX,
        );
        assert_eq!((log.registers, log.stack_bytes), (Some(168), 16));
        assert_eq!(
            (log.spill_store_bytes, log.spill_load_bytes, log.spills()),
            (8, 12, true)
        );
        let codes = log
            .warnings
            .iter()
            .map(|w| (w.code.as_deref(), w.ptx_line, w.op))
            .collect::<Vec<_>>();
        assert_eq!(
            codes,
            [(Some("C7510"), None, None), (Some("C7514"), Some(6), Some(Loc(9)))]
        );
    }

    #[test]
    fn reads_nvjitlink() {
        let log = Log::parse(
            "ptxas info    : Used 10 registers, used 0 barriers\n\
             info    : used 10 registers, used 0 barriers, 0 stack, 0 bytes smem, 544 bytes cmem[0], 0 bytes lmem\n\0",
            PTX,
        );
        assert_eq!((log.registers, log.spills(), log.warnings.len()), (Some(10), false, 0));
        assert!(log.text.ends_with("lmem"));
    }

    #[test]
    fn ops_are_those_of_the_last_loc() {
        assert_eq!(op_at_line(PTX, 2), None);
        assert_eq!(op_at_line(PTX, 4), Some(Loc(4)));
        assert_eq!(op_at_line(PTX, 7), Some(Loc(9)));
        assert_eq!(op_at_line(PTX, 700), Some(Loc(9)));
        assert_eq!(
            op_at_line(".loc 2 120 8 // op7\nret;\n", 2),
            Some(Loc(7)),
            "the user's line 120"
        );
    }

    #[test]
    fn a_refusal_names_line_and_op() {
        let request = Request {
            ptx: PTX,
            target: "sm_90a",
            line_info: false,
        };
        let error = failure(
            "ptxas 13.0",
            "ptxas k.ptx, line 6; error   : Unknown symbol 'x'\n",
            &request,
        );
        assert_eq!(error.loc, Some(Loc(9)));
        assert!(error.what.contains("line 6: wgmma.mma_async;"), "{error}");
        assert!(error.to_string().contains("Unknown symbol"), "{error}");
    }
}
