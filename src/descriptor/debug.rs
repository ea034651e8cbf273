//! The table of locations that travels beside a descriptor.
use super::proto;
use crate::error::{Error, Fault, Loc};
use prost::Message;
use serde::Serialize;

/// One place in the user's source.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Frame {
    pub file: String,
    pub function: String,
    pub line: u32,
    pub column: u32,
}

/// Op id → frames. Untrusted input: an index that is out of range is a frame that is not there.
#[derive(Clone, Debug, Default)]
pub struct DebugTable(proto::DebugTable);

impl DebugTable {
    pub fn decode(bytes: &[u8]) -> Result<DebugTable, Error> {
        let table = proto::DebugTable::decode(bytes)
            .map_err(|error| Error::new(Fault::InvalidDescriptor, format!("the debug table: {error}")))?;
        Ok(DebugTable(table))
    }

    /// The frames of `loc`, innermost first; empty if the table does not have it.
    pub fn frames(&self, loc: Loc) -> Vec<Frame> {
        let string = |index: u32| self.0.strings.get(index as usize).cloned().unwrap_or_default();
        let chain = self.0.op_frames.get(loc.0 as usize);
        let ids = chain.map(|chain| &chain.frames[..]).unwrap_or_default();
        let frames = ids.iter().filter_map(|&id| self.0.frames.get(id as usize));
        frames
            .map(|frame| Frame {
                file: string(frame.file),
                function: string(frame.function),
                line: frame.line,
                column: frame.column,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_by_op() {
        let table = proto::DebugTable {
            strings: vec!["".into(), "kernel.py".into(), "body".into(), "main.py".into()],
            frames: vec![
                proto::Frame::default(),
                proto::Frame {
                    file: 1,
                    function: 2,
                    line: 12,
                    column: 4,
                },
                proto::Frame {
                    file: 3,
                    function: 0,
                    line: 40,
                    column: 0,
                },
            ],
            op_frames: vec![
                proto::FrameChain { frames: vec![2] },
                proto::FrameChain { frames: vec![1, 2] },
                proto::FrameChain { frames: vec![9] },
            ],
        };
        let table = DebugTable::decode(&table.encode_to_vec()).unwrap();
        let lines = |op| {
            table
                .frames(Loc(op))
                .iter()
                .map(|f| format!("{}:{}", f.file, f.line))
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(0), ["main.py:40"]);
        assert_eq!(lines(1), ["kernel.py:12", "main.py:40"]);
        assert_eq!(lines(2), Vec::<String>::new(), "a frame out of range");
        assert_eq!(lines(3), Vec::<String>::new(), "an op out of range");
        assert_eq!(table.frames(Loc(1))[0].function, "body");
        assert!(DebugTable::decode(&[0xff]).is_err());
    }
}
