//! Descriptors as trees of fields, by the schema.
use std::collections::BTreeMap;
use std::path::Path;

/// A field of a message.
struct FieldType {
    name: String,
    /// A message's name, or a scalar type's.
    ty: String,
}

/// Messages by name, their fields by number.
pub struct Schema {
    messages: BTreeMap<String, BTreeMap<u32, FieldType>>,
}

#[derive(Clone)]
pub enum Content {
    Number(u64),
    /// A packed list of numbers.
    Numbers(Vec<u64>),
    /// Text, data, floating point: the wire type, and the bytes.
    Other(u32, Vec<u8>),
    Message(Vec<Field>),
}

#[derive(Clone)]
pub struct Field {
    pub number: u32,
    /// Message and field, e.g. `Axis.size`.
    pub name: String,
    pub content: Content,
}

const NUMBERS: [&str; 4] = ["uint32", "uint64", "int64", "bool"];

impl Schema {
    pub fn read(path: &Path) -> Schema {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let code: String = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default())
            .flat_map(|line| [line, " "])
            .collect();
        let mut messages: BTreeMap<String, BTreeMap<u32, FieldType>> = BTreeMap::new();
        // Names of the open blocks; of a oneof it is the message around it.
        let mut open: Vec<Option<String>> = vec![];
        let mut rest = code.as_str();
        while let Some(at) = rest.find(['{', '}', ';']) {
            let (statement, end) = (rest[..at].trim(), &rest[at..at + 1]);
            let words: Vec<&str> = statement.split_whitespace().collect();
            match end {
                "{" => open.push(match words[..] {
                    ["message", name] => {
                        messages.insert(name.to_owned(), BTreeMap::new());
                        Some(name.to_owned())
                    }
                    ["oneof", _] => open.last().cloned().flatten(),
                    _ => None,
                }),
                "}" => {
                    open.pop();
                }
                _ => {
                    if let (Some(Some(message)), [.., ty, name, "=", number]) = (open.last(), &words[..]) {
                        let field = FieldType {
                            name: (*name).to_owned(),
                            ty: (*ty).to_owned(),
                        };
                        let number = number.parse().expect("a field's number");
                        messages.get_mut(message).expect("it is open").insert(number, field);
                    }
                }
            }
            rest = &rest[at + 1..];
        }
        Schema { messages }
    }

    /// A message that is as the schema says.
    pub fn parse(&self, message: &str, mut bytes: &[u8]) -> Vec<Field> {
        let types = &self.messages[message];
        let mut fields = vec![];
        while !bytes.is_empty() {
            let tag = read_varint(&mut bytes);
            let number = (tag >> 3) as u32;
            let ty = &types[&number];
            let name = format!("{message}.{}", ty.name);
            let mut take = |n: usize| {
                let (x, rest) = bytes.split_at(n);
                bytes = rest;
                x
            };
            let content = match tag & 7 {
                0 => Content::Number(read_varint(&mut bytes)),
                1 => Content::Other(1, take(8).to_vec()),
                5 => Content::Other(5, take(4).to_vec()),
                _ => {
                    let n = read_varint(&mut bytes) as usize;
                    let (mut x, rest) = bytes.split_at(n);
                    bytes = rest;
                    if NUMBERS.contains(&ty.ty.as_str()) {
                        let mut numbers = vec![];
                        while !x.is_empty() {
                            numbers.push(read_varint(&mut x));
                        }
                        Content::Numbers(numbers)
                    } else if self.messages.contains_key(&ty.ty) {
                        Content::Message(self.parse(&ty.ty, x))
                    } else {
                        Content::Other(2, x.to_vec())
                    }
                }
            };
            fields.push(Field { number, name, content });
        }
        fields
    }
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut x = 0u64;
    for shift in (0..64).step_by(7) {
        let (&b, rest) = bytes.split_first().expect("a number");
        *bytes = rest;
        x |= u64::from(b & 0x7f) << shift;
        if b < 0x80 {
            break;
        }
    }
    x
}

fn write_varint(out: &mut Vec<u8>, mut x: u64) {
    while x >= 0x80 {
        out.push(x as u8 | 0x80);
        x >>= 7;
    }
    out.push(x as u8);
}

pub fn write(fields: &[Field]) -> Vec<u8> {
    let mut out = vec![];
    for field in fields {
        let (wire, body) = match &field.content {
            Content::Number(x) => {
                write_varint(&mut out, u64::from(field.number) << 3);
                write_varint(&mut out, *x);
                continue;
            }
            Content::Numbers(numbers) => {
                let mut body = vec![];
                numbers.iter().for_each(|x| write_varint(&mut body, *x));
                (2, body)
            }
            Content::Other(wire, bytes) => (*wire, bytes.clone()),
            Content::Message(inner) => (2, write(inner)),
        };
        write_varint(&mut out, u64::from(field.number) << 3 | u64::from(wire));
        if wire == 2 {
            write_varint(&mut out, body.len() as u64);
        }
        out.extend(body);
    }
    out
}
