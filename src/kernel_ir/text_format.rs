//! Formats of prints: Python's `str.format`, as far as a descriptor has it.
//!
//! A field is `{}` (the next argument), `{2}`, `{2:spec}` or `{2!s:spec}`; braces that mean themselves are doubled. What Python makes of
//! names, attributes and arguments that are known when the kernel is traced stands in the text already.
use crate::dtype::DType;
use crate::error::{Error, Result};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    Text(String),
    Field(Field),
}

/// A place for an argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    pub arg: usize,
    /// `!s`: the argument's text is formatted, not its number.
    pub as_text: bool,
    pub spec: Spec,
}

/// `[[fill]align][sign]["z"]["#"]["0"][width][grouping]["." precision][type]` (Python's format specification).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    pub fill: char,
    pub align: Option<Align>,
    pub sign: Sign,
    /// `z`: no negative zero.
    pub no_negative_zero: bool,
    pub alternate: bool,
    pub width: usize,
    pub grouping: Option<char>,
    pub precision: Option<usize>,
    pub kind: Option<char>,
    /// Nothing was asked for.
    pub is_empty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    Left,
    Right,
    Middle,
    /// `=`: between sign and digits.
    Inside,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    Negative,
    Always,
    Space,
}

/// Longest padding and precision.
const LIMIT: usize = 1000;

/// The pieces of a format that names `args` arguments at most.
pub fn parse(format: &str, args: usize) -> Result<Vec<Piece>> {
    let broken = |why: &str| {
        Error::invalid(format!("the format {format:?} of a print"))
            .expected("Python's format syntax: a {} for each argument, braces that mean themselves doubled")
            .got(why)
            .remedy("write each field as {} or {:spec}, and pass an argument for each")
    };
    let mut pieces = vec![];
    let mut text = String::new();
    let mut next = 0;
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' if chars.next_if_eq(&'{').is_some() => text.push('{'),
            '}' if chars.next_if_eq(&'}').is_some() => text.push('}'),
            '}' => return Err(broken("a } with no {")),
            '{' => {
                let mut inner = String::new();
                loop {
                    match chars.next() {
                        Some('}') => break,
                        Some('{') => return Err(broken("a field within a field")),
                        Some(c) => inner.push(c),
                        None => return Err(broken("a { with no }")),
                    }
                }
                let (name, spec) = inner.split_once(':').unwrap_or((&inner, ""));
                let (name, as_text) = match name.split_once('!') {
                    None => (name, false),
                    Some((name, "s")) => (name, true),
                    Some((_, conversion)) => return Err(broken(&format!("the conversion !{conversion}"))),
                };
                let arg = match name {
                    "" => next,
                    _ => name.parse().map_err(|_| broken(&format!("the field {name:?}")))?,
                };
                next = arg + 1;
                if arg >= args {
                    return Err(broken(&match args {
                        1 => "more fields than its argument".into(),
                        _ => format!("a field for argument {arg} of {args}"),
                    }));
                }
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                let spec = Spec::parse(spec).ok_or_else(|| broken(&format!("the specification {spec:?}")))?;
                pieces.push(Piece::Field(Field { arg, as_text, spec }));
            }
            _ => text.push(c),
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

impl Spec {
    fn parse(text: &str) -> Option<Spec> {
        let mut spec = Spec {
            fill: ' ',
            align: None,
            sign: Sign::Negative,
            no_negative_zero: false,
            alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
            is_empty: text.is_empty(),
        };
        let align = |c: char| match c {
            '<' => Some(Align::Left),
            '>' => Some(Align::Right),
            '^' => Some(Align::Middle),
            '=' => Some(Align::Inside),
            _ => None,
        };
        let chars: Vec<char> = text.chars().collect();
        let mut at = 0;
        if let Some(found) = chars.get(1).copied().and_then(align) {
            (spec.fill, spec.align, at) = (chars[0], Some(found), 2);
        } else if let Some(found) = chars.first().copied().and_then(align) {
            (spec.align, at) = (Some(found), 1);
        }
        let aligned = spec.align.is_some();
        let mut take = |one: &[char]| {
            let found = chars.get(at).copied().filter(|c| one.contains(c));
            at += usize::from(found.is_some());
            found
        };
        spec.sign = match take(&['+', '-', ' ']) {
            Some('+') => Sign::Always,
            Some(' ') => Sign::Space,
            Some(_) | None => Sign::Negative,
        };
        spec.no_negative_zero = take(&['z']).is_some();
        spec.alternate = take(&['#']).is_some();
        if take(&['0']).is_some() && !aligned {
            (spec.fill, spec.align) = ('0', Some(Align::Inside));
        }
        let digits = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'];
        let number = |take: &mut dyn FnMut(&[char]) -> Option<char>| {
            let mut number = None;
            while let Some(digit) = take(&digits) {
                let n = number.unwrap_or(0) * 10 + digit.to_digit(10)? as usize;
                number = Some(n.min(LIMIT + 1));
            }
            Some(number)
        };
        spec.width = number(&mut take)?.unwrap_or(0);
        spec.grouping = take(&[',', '_']);
        if take(&['.']).is_some() {
            spec.precision = Some(number(&mut take)??);
        }
        spec.kind = take(&[
            'b', 'c', 'd', 'e', 'E', 'f', 'F', 'g', 'G', 'n', 'o', 's', 'x', 'X', '%',
        ]);
        let sane = spec.width <= LIMIT && spec.precision.is_none_or(|n| n <= LIMIT);
        (at == chars.len() && sane).then_some(spec)
    }
}

impl Field {
    /// Refuses what Python refuses for a number of this type.
    pub fn check(&self, dtype: DType) -> Result<()> {
        let Spec {
            kind,
            precision,
            grouping,
            ..
        } = self.spec;
        let signed =
            self.spec.sign != Sign::Negative || self.spec.align == Some(Align::Inside) && self.spec.fill != '0';
        let (fits, expected) = if self.as_text {
            let plain = !signed && !self.spec.alternate && !self.spec.no_negative_zero && grouping.is_none();
            (
                matches!(kind, None | Some('s')) && plain,
                "what a text takes: fill, width, precision",
            )
        } else if dtype.is_float() {
            let float = matches!(kind, None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%'));
            let grouped = grouping.is_none() || kind != Some('n');
            (float && grouped, "one of e, E, f, F, g, G, n, % for a float")
        } else {
            let fits = match kind {
                None | Some('d' | 'n') => precision.is_none() && (grouping.is_none() || kind != Some('n')),
                Some('b' | 'o' | 'x' | 'X') => precision.is_none() && grouping != Some(','),
                Some('c') => precision.is_none() && grouping.is_none() && self.spec.sign == Sign::Negative,
                Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => true,
                Some(_) => false,
            };
            let fits =
                fits && (!self.spec.no_negative_zero || matches!(kind, Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')));
            (
                fits,
                "b, d, n, o, x, X, or a float's, for an integer; a precision for a float's only",
            )
        };
        if fits {
            return Ok(());
        }
        let kind = kind.map_or_else(String::new, String::from);
        Err(
            Error::invalid("a format specification of a print that does not fit its argument")
                .expected(expected)
                .got(format!(
                    "type {kind:?} for argument {} of type {}",
                    self.arg,
                    dtype.name()
                ))
                .remedy("convert the argument (x.astype), or specify what its type takes"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(format: &str) -> Field {
        match parse(format, 3).unwrap().as_slice() {
            [Piece::Field(field)] => field.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fields_and_braces() {
        let pieces = parse("a {{{}}} {1:>5} {0!s}", 2).unwrap();
        let args: Vec<_> = pieces
            .iter()
            .map(|p| match p {
                Piece::Text(text) => text.clone(),
                Piece::Field(f) => format!("<{} {} {}>", f.arg, f.as_text, f.spec.width),
            })
            .collect();
        assert_eq!(args, ["a {", "<0 false 0>", "} ", "<1 false 5>", " ", "<0 true 0>"]);
        assert_eq!(parse("", 0).unwrap(), []);
    }

    #[test]
    fn specifications() {
        let spec = field("{:*^+#12_.3e}").spec;
        assert_eq!(
            (spec.fill, spec.align, spec.sign),
            ('*', Some(Align::Middle), Sign::Always)
        );
        assert_eq!((spec.alternate, spec.width, spec.grouping), (true, 12, Some('_')));
        assert_eq!((spec.precision, spec.kind), (Some(3), Some('e')));
        let spec = field("{:08b}").spec;
        assert_eq!((spec.fill, spec.align, spec.width), ('0', Some(Align::Inside), 8));
    }

    #[test]
    fn what_is_no_format() {
        for wrong in [
            "{",
            "}",
            "{{}",
            "{3}",
            "{x}",
            "{!r}",
            "{:q}",
            "{:5000}",
            "{:.}",
            "{{}{}{}{}{}",
        ] {
            let error = parse(wrong, 3).unwrap_err().to_string();
            assert!(error.contains("expected: Python's format syntax"), "{error}");
        }
    }

    #[test]
    fn specifications_fit_types() {
        let check = |format: &str, dtype| field(format).check(dtype).is_ok();
        assert!(check("{:x}", DType::I8) && !check("{:x}", DType::F32));
        assert!(check("{:.3f}", DType::BF16) && check("{:.3f}", DType::I32) && !check("{:.3}", DType::I32));
        assert!(check("{!s:>9}", DType::F32) && !check("{!s:+}", DType::F32) && !check("{:s}", DType::I32));
        assert!(check("{:,}", DType::U64) && !check("{:,x}", DType::U64) && check("{:_x}", DType::U64));
    }
}
