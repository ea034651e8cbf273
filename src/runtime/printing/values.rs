//! A number as Python's `format` writes it, by its bits and type.
//!
//! By default a float has the fewest digits that distinguish it from its type's other numbers, as NumPy's scalars do.
use crate::dtype::DType;
use crate::kernel_ir::text_format::{Align, Field, Sign, Spec};

/// The value of these low bits, as a field wants it.
pub fn format(field: &Field, dtype: DType, bits: u64) -> String {
    let spec = &field.spec;
    if field.as_text || spec.is_empty {
        let text = plain(dtype, bits);
        return if spec.is_empty { text } else { padded_text(spec, &text) };
    }
    match spec.kind {
        _ if dtype.is_float() => float(spec, dtype, bits),
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
            float(spec, DType::F64, (integer(dtype, bits) as f64).to_bits())
        }
        Some('c') => {
            let c = u32::try_from(integer(dtype, bits)).ok().and_then(char::from_u32);
            padded_text(spec, &c.unwrap_or(char::REPLACEMENT_CHARACTER).to_string())
        }
        _ => whole(spec, integer(dtype, bits)),
    }
}

/// As `str` has it.
fn plain(dtype: DType, bits: u64) -> String {
    match dtype {
        DType::Bool => if bits & 1 == 1 { "True" } else { "False" }.into(),
        _ if dtype.is_float() => shortest(dtype, bits),
        _ => integer(dtype, bits).to_string(),
    }
}

fn integer(dtype: DType, bits: u64) -> i128 {
    let width = dtype.bits();
    let shift = 64 - width;
    match dtype {
        DType::Bool => i128::from(bits & 1),
        _ if dtype.is_signed_int() => i128::from((bits << shift) as i64 >> shift),
        _ => i128::from(bits << shift >> shift),
    }
}

/// How a narrow float is made: bits of exponent and mantissa, the exponent's bias, and what its highest codes are.
struct Narrow {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    special: Special,
}

enum Special {
    /// The highest exponent is infinity and NaNs.
    Ieee,
    /// Only the highest code of all is NaN.
    HighestIsNan,
    /// Only minus zero is NaN.
    MinusZeroIsNan,
    /// None is.
    Finite,
}

fn narrow(dtype: DType) -> Option<Narrow> {
    let (exponent, mantissa, bias, special) = match dtype {
        DType::F16 => (5, 10, 15, Special::Ieee),
        DType::BF16 => (8, 7, 127, Special::Ieee),
        DType::F8E5M2 => (5, 2, 15, Special::Ieee),
        DType::F8E4M3 => (4, 3, 7, Special::Ieee),
        DType::F8E3M4 => (3, 4, 3, Special::Ieee),
        DType::F8E4M3FN => (4, 3, 7, Special::HighestIsNan),
        DType::F8E4M3FNUZ => (4, 3, 8, Special::MinusZeroIsNan),
        DType::F8E5M2FNUZ => (5, 2, 16, Special::MinusZeroIsNan),
        DType::F8E4M3B11FNUZ => (4, 3, 11, Special::MinusZeroIsNan),
        DType::F4E2M1FN => (2, 1, 1, Special::Finite),
        DType::F6E2M3FN => (2, 3, 1, Special::Finite),
        DType::F6E3M2FN => (3, 2, 3, Special::Finite),
        DType::F32
        | DType::F64
        | DType::F8E8M0FNU
        | DType::Bool
        | DType::I2
        | DType::I4
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U2
        | DType::U4
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64 => return None,
    };
    Some(Narrow {
        exponent,
        mantissa,
        bias,
        special,
    })
}

/// The number, exactly.
pub fn decode(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::F64 => return f64::from_bits(bits),
        DType::F32 => return f64::from(f32::from_bits(bits as u32)),
        DType::F8E8M0FNU if bits & 0xff == 0xff => return f64::NAN,
        DType::F8E8M0FNU => return 2f64.powi((bits & 0xff) as i32 - 127),
        _ => {}
    }
    let Some(narrow) = narrow(dtype) else { return f64::NAN };
    let magnitude_bits = narrow.exponent + narrow.mantissa;
    let negative = bits >> magnitude_bits & 1 == 1;
    let magnitude = bits & ((1 << magnitude_bits) - 1);
    let (exponent, mantissa) = (magnitude >> narrow.mantissa, magnitude & ((1 << narrow.mantissa) - 1));
    let highest = exponent == (1 << narrow.exponent) - 1;
    let special = match narrow.special {
        Special::Ieee if highest => Some(if mantissa == 0 { f64::INFINITY } else { f64::NAN }),
        Special::HighestIsNan if magnitude == (1 << magnitude_bits) - 1 => Some(f64::NAN),
        Special::MinusZeroIsNan if negative && magnitude == 0 => Some(f64::NAN),
        Special::Ieee | Special::HighestIsNan | Special::MinusZeroIsNan | Special::Finite => None,
    };
    let number = special.unwrap_or_else(|| {
        let one = if exponent == 0 { 0 } else { 1 << narrow.mantissa };
        let scale = exponent.max(1) as i32 - narrow.bias - narrow.mantissa as i32;
        (one + mantissa) as f64 * 2f64.powi(scale)
    });
    if negative { -number } else { number }
}

/// `d.ddd…e±x` as digits and exponent.
fn scientific(text: &str) -> (String, i32) {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    (digits.replace(['.', '-'], ""), exponent.parse().unwrap_or(0))
}

/// The fewest digits between which and the next numbers of the type there is nothing else.
fn digits(dtype: DType, bits: u64) -> (String, i32) {
    let number = decode(dtype, bits).abs();
    match dtype {
        DType::F64 => return scientific(&format!("{number:e}")),
        DType::F32 => return scientific(&format!("{:e}", number as f32)),
        _ => {}
    }
    let magnitude = match narrow(dtype) {
        Some(narrow) => bits & ((1 << (narrow.exponent + narrow.mantissa)) - 1),
        None => bits & 0xff,
    };
    let below = if magnitude == 0 {
        0.0
    } else {
        decode(dtype, magnitude - 1).abs()
    };
    let above = Some(decode(dtype, magnitude + 1).abs()).filter(|n| n.is_finite() && *n > number);
    let low = f64::midpoint(below, number);
    let high = above.map_or(2.0 * number - low, |above| f64::midpoint(number, above));
    for places in 0..17 {
        let text = format!("{number:.places$e}");
        let near: f64 = text.parse().unwrap_or(number);
        if near == number || low < near && near < high {
            return scientific(&text);
        }
    }
    scientific(&format!("{number:e}"))
}

fn shortest(dtype: DType, bits: u64) -> String {
    let number = decode(dtype, bits);
    let sign = if number.is_sign_negative() && !number.is_nan() {
        "-"
    } else {
        ""
    };
    format!("{sign}{}", magnitude_text(dtype, bits))
}

/// Without its sign.
fn magnitude_text(dtype: DType, bits: u64) -> String {
    let number = decode(dtype, bits);
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return "inf".into();
    }
    if number == 0.0 {
        return "0.0".into();
    }
    let (digits, exponent) = digits(dtype, bits);
    if !(-4..16).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        return format!("{first}{point}{rest}e{}", exponent_text(exponent));
    }
    positional(&digits, exponent)
}

fn exponent_text(exponent: i32) -> String {
    format!("{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// Digits with a point, and at least one digit on each side of it.
fn positional(digits: &str, exponent: i32) -> String {
    if exponent < 0 {
        return format!("0.{}{digits}", "0".repeat((-exponent - 1) as usize));
    }
    let before = exponent as usize + 1;
    if digits.len() <= before {
        return format!("{digits}{}.0", "0".repeat(before - digits.len()));
    }
    let (before, after) = digits.split_at(before);
    format!("{before}.{after}")
}

fn float(spec: &Spec, dtype: DType, bits: u64) -> String {
    let number = decode(dtype, bits);
    let kind = spec.kind.unwrap_or('\0');
    let upper = kind.is_ascii_uppercase();
    let size = number.abs();
    let mut text = if !number.is_finite() {
        magnitude_text(dtype, bits)
    } else {
        match (kind.to_ascii_lowercase(), spec.precision) {
            ('\0', None) => magnitude_text(dtype, bits),
            ('\0', Some(precision)) => general(size, precision.max(1), spec.alternate, true),
            ('f', precision) => fixed(size, precision.unwrap_or(6), spec.alternate),
            ('e', precision) => exponential(size, precision.unwrap_or(6), spec.alternate),
            ('%', precision) => fixed(size * 100.0, precision.unwrap_or(6), spec.alternate),
            (_, precision) => general(size, precision.unwrap_or(6).max(1), spec.alternate, false),
        }
    };
    let is_zero = number.is_finite() && !text.bytes().any(|b| (b'1'..=b'9').contains(&b));
    let negative = number.is_sign_negative() && !number.is_nan() && !(spec.no_negative_zero && is_zero);
    if kind == '%' {
        text.push('%');
    }
    if upper {
        text = text.to_ascii_uppercase();
    }
    // Digits before the point are grouped.
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    number_text(spec, negative, "", digits, rest, 3)
}

fn fixed(size: f64, precision: usize, alternate: bool) -> String {
    let point = if alternate && precision == 0 { "." } else { "" };
    format!("{size:.precision$}{point}")
}

fn exponential(size: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let point = if alternate && precision == 0 { "." } else { "" };
    format!("{digits}{point}e{}", exponent_text(exponent.parse().unwrap_or(0)))
}

/// `g`: as many significant digits, no zeros behind them. `pointed`: a point in any case, as `repr` has it.
fn general(size: f64, precision: usize, alternate: bool, pointed: bool) -> String {
    let places = precision - 1;
    let text = format!("{size:.places$e}");
    let (_, exponent) = scientific(&text);
    let trimmed = |text: &str| match (alternate, text.contains('.')) {
        (true, true) => text.to_string(),
        (true, false) => format!("{text}."),
        (false, true) => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        (false, false) => text.to_string(),
    };
    let highest = precision as i32 - i32::from(pointed);
    if (-4..highest.max(1)).contains(&exponent) || size == 0.0 {
        let places = (precision as i32 - 1 - exponent).max(0) as usize;
        let text = trimmed(&format!("{size:.places$}"));
        return if pointed && !text.contains('.') {
            format!("{text}.0")
        } else {
            text
        };
    }
    let digits = trimmed(text.split('e').next().unwrap_or_default());
    format!("{digits}e{}", exponent_text(exponent))
}

fn whole(spec: &Spec, number: i128) -> String {
    let size = number.unsigned_abs();
    let (digits, prefix, group) = match spec.kind {
        Some('b') => (format!("{size:b}"), "0b", 4),
        Some('o') => (format!("{size:o}"), "0o", 4),
        Some('x') => (format!("{size:x}"), "0x", 4),
        Some('X') => (format!("{size:X}"), "0X", 4),
        _ => (size.to_string(), "", 3),
    };
    let prefix = if spec.alternate { prefix } else { "" };
    number_text(spec, number < 0, prefix, &digits, "", group)
}

/// Sign, prefix, digits in groups, what follows; padded.
fn number_text(spec: &Spec, negative: bool, prefix: &str, digits: &str, rest: &str, group: usize) -> String {
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Sign::Always) => "+",
        (false, Sign::Space) => " ",
        (false, Sign::Negative) => "",
    };
    let inside = spec.align == Some(Align::Inside);
    let others = sign.len() + prefix.len() + rest.chars().count();
    let mut digits = digits.to_string();
    let mut shown = grouped(&digits, spec.grouping, group);
    // Zeros in front are grouped, too.
    while inside && spec.fill == '0' && spec.grouping.is_some() && others + shown.len() < spec.width {
        digits.insert(0, '0');
        shown = grouped(&digits, spec.grouping, group);
    }
    let length = others + shown.len();
    let padding = spec.width.saturating_sub(length);
    let fill = |n: usize| std::iter::repeat_n(spec.fill, n).collect::<String>();
    match spec.align {
        Some(Align::Inside) => format!("{sign}{prefix}{}{shown}{rest}", fill(padding)),
        Some(Align::Left) => format!("{sign}{prefix}{shown}{rest}{}", fill(padding)),
        Some(Align::Middle) => {
            let left = padding / 2;
            format!("{}{sign}{prefix}{shown}{rest}{}", fill(left), fill(padding - left))
        }
        Some(Align::Right) | None => format!("{}{sign}{prefix}{shown}{rest}", fill(padding)),
    }
}

fn grouped(digits: &str, separator: Option<char>, group: usize) -> String {
    let Some(separator) = separator else {
        return digits.into();
    };
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(group) {
            out.push(separator);
        }
        out.push(c);
    }
    out
}

/// A text: left-aligned, cut to its precision.
fn padded_text(spec: &Spec, text: &str) -> String {
    let text: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    let padding = spec.width.saturating_sub(text.chars().count());
    let fill = |n: usize| std::iter::repeat_n(spec.fill, n).collect::<String>();
    match spec.align {
        Some(Align::Right) => format!("{}{text}", fill(padding)),
        Some(Align::Middle) => format!("{}{text}{}", fill(padding / 2), fill(padding - padding / 2)),
        Some(Align::Left | Align::Inside) | None => format!("{text}{}", fill(padding)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_ir::text_format::{Piece, parse};

    fn text(format_: &str, dtype: DType, bits: u64) -> String {
        match parse(format_, 1).unwrap().as_slice() {
            [Piece::Field(field)] => format(field, dtype, bits),
            other => panic!("{other:?}"),
        }
    }
    fn f32(format: &str, x: f32) -> String {
        text(format, DType::F32, u64::from(x.to_bits()))
    }

    #[test]
    fn floats_have_the_fewest_digits_of_their_type() {
        let cases = [
            (0.1, "0.1"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (16_777_216.0, "16777216.0"),
            (f32::MAX, "3.4028235e+38"),
            (f32::NAN, "nan"),
            (f32::NEG_INFINITY, "-inf"),
        ];
        for (x, expected) in cases {
            assert_eq!(f32("{}", x), expected);
        }
        for (dtype, bits, expected) in [
            (DType::F16, 0x2e66, "0.1"),
            (DType::F16, 0x7bff, "65500.0"),
            (DType::F16, 1, "6e-08"),
            (DType::BF16, 0x3dcd, "0.1"),
            (DType::BF16, 0x7f80, "inf"),
            (DType::F8E4M3FN, 0x7e, "450.0"),
            (DType::F8E4M3FN, 0x7f, "nan"),
            (DType::F8E5M2, 0x3e, "1.5"),
            (DType::F8E5M2, 0x7c, "inf"),
            (DType::F8E4M3FNUZ, 0x80, "nan"),
            (DType::F4E2M1FN, 0xf, "-6.0"),
            (DType::F8E8M0FNU, 0x80, "2.0"),
            (DType::F64, 0x3fb9_9999_9999_999a, "0.1"),
        ] {
            assert_eq!(text("{}", dtype, bits), expected, "{dtype:?} {bits:#x}");
        }
    }

    /// Every code of the narrow types is read back as itself.
    #[test]
    fn the_fewest_digits_are_enough() {
        for dtype in [
            DType::F16,
            DType::BF16,
            DType::F8E4M3FN,
            DType::F8E5M2,
            DType::F4E2M1FN,
            DType::F8E4M3B11FNUZ,
        ] {
            let codes = 0..1u64 << dtype.bits();
            let numbers: Vec<f64> = codes.clone().map(|bits| decode(dtype, bits)).collect();
            let mut ordered: Vec<f64> = numbers.iter().copied().filter(|n| n.is_finite()).collect();
            ordered.sort_by(f64::total_cmp);
            for (bits, number) in codes.zip(&numbers).filter(|(_, n)| n.is_finite()) {
                let read: f64 = text("{}", dtype, bits).parse().unwrap();
                let after = ordered.partition_point(|n| *n < read);
                let near = ordered[after.saturating_sub(1)..ordered.len().min(after + 1)].iter();
                let nearest = near.min_by(|a, b| (*a - read).abs().total_cmp(&(*b - read).abs()));
                assert_eq!(nearest, Some(number), "{dtype:?} {bits:#x}");
            }
        }
    }

    #[test]
    fn narrow_floats_are_decoded() {
        for bits in 0..=0xffffu16 {
            let (a, b) = (decode(DType::F16, bits.into()), half::f16::from_bits(bits).to_f64());
            assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{bits:#x}");
            let (a, b) = (decode(DType::BF16, bits.into()), half::bf16::from_bits(bits).to_f64());
            assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{bits:#x}");
        }
    }

    /// The right sides are Python's.
    #[test]
    fn specifications_are_pythons() {
        for (format, x, expected) in [
            ("{:.3f}", 2.0f32 / 3.0, "0.667"),
            ("{:8.2f}|", -1.5, "   -1.50|"),
            ("{:+.1e}", 12345.0, "+1.2e+04"),
            ("{:g}", 1e-7, "1e-07"),
            ("{:g}", 100_000.0, "100000"),
            ("{:g}", 1e6, "1e+06"),
            ("{:.3}", 1234.0, "1.23e+03"),
            ("{:.3}", 10.0, "10.0"),
            ("{:.2}", 10.0, "1e+01"),
            ("{:%}", 0.5, "50.000000%"),
            ("{:.0%}", 0.25, "25%"),
            ("{:010.3f}", -3.25, "-00003.250"),
            ("{:,.1f}", 1_234_567.0, "1,234,567.0"),
            ("{:>6}", 1.5, "   1.5"),
            ("{:<6}|", 1.5, "1.5   |"),
            ("{:^7}|", 1.5, "  1.5  |"),
            ("{:F}", f32::INFINITY, "INF"),
            ("{:08}", f32::NAN, "00000nan"),
            ("{:z.1f}", -0.01, "0.0"),
            ("{:.1f}", -0.01, "-0.0"),
            ("{:#.0f}", 3.0, "3."),
            ("{:.2f}", 2.675, "2.67"),
            ("{!s:>5}", 1.5, "  1.5"),
            ("{!s:.2}", 1.5, "1."),
            ("{:G}", 1e-10, "1E-10"),
        ] {
            let (before, after) = format.split_at(format.find('}').unwrap() + 1);
            assert_eq!(f32(before, x) + after, expected, "{format}");
        }
        for (format, x, expected) in [
            ("{:x}", 255i64, "ff"),
            ("{:#x}", -255, "-0xff"),
            ("{:#010X}", 48879, "0X0000BEEF"),
            ("{:b}", 5, "101"),
            ("{:_b}", 1000, "11_1110_1000"),
            ("{:,}", -1_234_567, "-1,234,567"),
            ("{:08,}", 1234, "0,001,234"),
            ("{:+d}", 3, "+3"),
            ("{: d}", 3, " 3"),
            ("{:5d}", 42, "   42"),
            ("{:05d}", -42, "-0042"),
            ("{:*^7d}", 42, "**42***"),
            ("{:.2f}", 3, "3.00"),
            ("{:e}", 12345, "1.234500e+04"),
            ("{:c}", 65, "A"),
            ("{}", i64::MIN, "-9223372036854775808"),
        ] {
            assert_eq!(text(format, DType::I64, x as u64), expected, "{format}");
        }
        assert_eq!(text("{}", DType::U64, u64::MAX), "18446744073709551615");
        assert_eq!(text("{}", DType::I4, 0xf), "-1");
        assert_eq!(text("{}", DType::U4, 0xff), "15");
        assert_eq!(text("{}", DType::Bool, 1), "True");
        assert_eq!(text("{:d}", DType::Bool, 1), "1");
        assert_eq!(text("{!s:>6}", DType::Bool, 0), " False");
    }
}
