//! The expansions of transcendental functions, executed by the emulator, against f64.
use super::harness::{Buffer, KernelRun, one_block};
use smalt::dtype::DType;
use smalt::kernel_ir::{BinaryOp, OpKind, UnaryOp};

/// `f` of each of the numbers.
fn unary(op: UnaryOp, xs: &[f32]) -> Vec<f32> {
    let n = xs.len() as u64;
    let kernel = one_block(&[(DType::F32, &[n])], (DType::F32, &[n]), |b, v| {
        b.op1(OpKind::Unary { op, a: v[0] }, DType::F32, &[n])
    });
    KernelRun::of(kernel).run(&[Buffer::f32(xs)])[0].as_f32()
}

fn binary(op: BinaryOp, xs: &[f32], ys: &[f32]) -> Vec<f32> {
    let n = xs.len() as u64;
    let kernel = one_block(&[(DType::F32, &[n]), (DType::F32, &[n])], (DType::F32, &[n]), |b, v| {
        b.op1(OpKind::Binary { op, a: v[0], b: v[1] }, DType::F32, &[n])
    });
    KernelRun::of(kernel).run(&[Buffer::f32(xs), Buffer::f32(ys)])[0].as_f32()
}

/// The distance to the exact value in units of the last place of the f32 nearest to it.
fn ulps(got: f32, exact: f64) -> f64 {
    let want = exact as f32;
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if got == want {
        return 0.0;
    }
    if want.is_infinite() || got.is_infinite() {
        // Next to the largest number either will do.
        let (finite, infinite) = if want.is_infinite() { (got, want) } else { (want, got) };
        return if finite.abs() > 3.4028e38 && finite.signum() == infinite.signum() {
            1.0
        } else {
            f64::INFINITY
        };
    }
    let exponent = want.abs().max(f32::MIN_POSITIVE).log2().floor().max(-126.0) as i32;
    (f64::from(got) - exact).abs() / 2f64.powi(exponent - 23)
}

fn samples(seed: u64) -> impl Iterator<Item = u32> + Clone {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        Some((state >> 32) as u32)
    })
}

const SPECIAL: [f32; 26] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    1e-45,
    -1e-45,
    1.1754944e-38,
    1e-30,
    -1e-30,
    3.4028235e38,
    -3.4028235e38,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    88.72,
    -87.3,
    -103.9,
    128.0,
    0.99999994,
    1.0000001,
    105_616.0,
    1e30,
];

/// All bit patterns alike, and numbers from the range where the function is interesting.
fn inputs(low: f32, high: f32) -> Vec<f32> {
    let any = samples(1).take(974).map(f32::from_bits);
    let inside = samples(2)
        .take(1048)
        .map(|u| low + (high - low) * (u as f32 / 4294967296.0));
    SPECIAL.into_iter().chain(any).chain(inside).collect()
}

fn check(op: UnaryOp, range: (f32, f32), limit: f64, exact: impl Fn(f64) -> f64) {
    let xs = inputs(range.0, range.1);
    let mut worst = (0.0, 0.0, 0.0);
    for (&x, got) in xs.iter().zip(unary(op, &xs)) {
        let want = exact(f64::from(x));
        let error = ulps(got, want);
        if error > worst.0 {
            worst = (error, x, got);
        }
        if x == 0.0 && want == 0.0 {
            assert_eq!(got.to_bits(), (want as f32).to_bits(), "{op:?} of {x:?}");
        }
    }
    let (error, x, got) = worst;
    println!("{op:?}: {error:.2} ulp at {x:e}");
    assert!(
        error <= limit,
        "{op:?}({x:e}) = {got:e}, exact {:e}: {error:.2} ulp",
        exact(f64::from(x))
    );
}

fn erf(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x.abs() > 3.0 {
        x.signum() - x.signum() * erfc_tail(x.abs())
    } else {
        erf_series(x)
    }
}

fn erf_series(x: f64) -> f64 {
    if x == 0.0 {
        return x;
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// erfc for x ≥ 2, by its continued fraction.
fn erfc_tail(x: f64) -> f64 {
    let mut f = 0.0;
    for k in (1..=200).rev() {
        f = k as f64 / 2.0 / (x + f);
    }
    (-x * x).exp() / std::f64::consts::PI.sqrt() / (x + f)
}

fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x > 2.0 {
        erfc_tail(x)
    } else if x < -2.0 {
        2.0 - erfc_tail(-x)
    } else {
        1.0 - erf_series(x)
    }
}

#[test]
fn exponentials_and_logarithms() {
    check(UnaryOp::Exp, (-105.0, 90.0), 2.5, f64::exp);
    check(UnaryOp::Exp2, (-150.0, 129.0), 2.5, f64::exp2);
    check(UnaryOp::Expm1, (-3.0, 3.0), 2.5, f64::exp_m1);
    check(UnaryOp::Log, (0.3, 3.0), 1.5, f64::ln);
    check(UnaryOp::Log2, (0.3, 3.0), 2.5, f64::log2);
    check(UnaryOp::Log1p, (-0.9, 3.0), 2.5, f64::ln_1p);
    check(UnaryOp::Logistic, (-105.0, 20.0), 4.0, |x| 1.0 / (1.0 + (-x).exp()));
    check(UnaryOp::Cbrt, (-30.0, 30.0), 2.5, f64::cbrt);
}

#[test]
fn hyperbolic_functions() {
    check(UnaryOp::Tanh, (-3.0, 3.0), 2.5, f64::tanh);
    check(UnaryOp::Sinh, (-5.0, 5.0), 4.5, f64::sinh);
    check(UnaryOp::Cosh, (-5.0, 5.0), 3.5, f64::cosh);
    check(UnaryOp::Asinh, (-5.0, 5.0), 4.0, f64::asinh);
    check(UnaryOp::Acosh, (1.0, 5.0), 4.0, f64::acosh);
    check(UnaryOp::Atanh, (-1.0, 1.0), 4.0, f64::atanh);
}

#[test]
fn trigonometric_functions() {
    check(UnaryOp::Sin, (-20.0, 20.0), 2.0, f64::sin);
    check(UnaryOp::Cos, (-20.0, 20.0), 2.0, f64::cos);
    check(UnaryOp::Tan, (-20.0, 20.0), 4.0, f64::tan);
    // Where the long way begins, and quarters of turns there.
    check(UnaryOp::Sin, (100_000.0, 110_000.0), 2.0, f64::sin);
    check(UnaryOp::Cos, (-110_000.0, -100_000.0), 2.0, f64::cos);
    check(UnaryOp::Asin, (-1.0, 1.0), 3.0, f64::asin);
    check(UnaryOp::Acos, (-1.0, 1.0), 3.0, f64::acos);
    check(UnaryOp::Atan, (-5.0, 5.0), 3.0, f64::atan);
}

/// Functions call nothing: what is correctly rounded by instructions with a slow path would do so for each element. Of those that networks are made of, so many instructions an element (128 elements: one a thread).
#[test]
fn functions_call_nothing_and_are_short() {
    let text = |f: Option<UnaryOp>| {
        let kernel = one_block(&[(DType::F32, &[128])], (DType::F32, &[128]), |b, v| match f {
            Some(op) => b.op1(OpKind::Unary { op, a: v[0] }, DType::F32, &[128]),
            None => v[0],
        });
        smalt::ptx::print::print(&KernelRun::of(kernel).flat)
    };
    let lines = |text: &str| text.lines().filter(|l| l.ends_with(';') && !l.contains(".reg")).count();
    let nothing = lines(&text(None));
    use UnaryOp::*;
    for op in [
        Exp, Expm1, Log, Log1p, Log2, Cbrt, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh, Acosh, Atanh,
        Erf, Erfc, ErfInv, Logistic,
    ] {
        let text = text(Some(op));
        for slow in ["rcp.rn.f32", "div.rn.f32", "sqrt.rn.f32"] {
            assert!(!text.contains(slow), "{op:?}: {slow}\n{text}");
        }
        // Angles of many turns are rare, and taken apart by whole warps.
        let may_branch = matches!(op, Sin | Cos | Tan);
        assert!(may_branch || !text.contains("bra"), "{op:?} branches\n{text}");
    }
    for (op, most) in [(Exp, 10), (Expm1, 21), (Logistic, 11), (Tanh, 21), (Erf, 29)] {
        let count = lines(&text(Some(op))) - nothing;
        assert!(count <= most, "{op:?}: {count} instructions\n{}", text(Some(op)));
    }
}

#[test]
fn error_functions() {
    check(UnaryOp::Erf, (-4.0, 4.0), 2.5, erf);
    check(UnaryOp::Erfc, (-4.0, 10.0), 6.0, erfc);
    // The inverse is held against erf: at y = erf⁻¹(x), erf(y) differs from x by the error of y times erf's slope.
    let inside = |x: f32| if x.abs() < 1.0 && x.abs() > 1e-30 { x } else { 0.25 };
    let xs: Vec<f32> = inputs(-1.0, 1.0).into_iter().map(inside).collect();
    for (&x, y) in xs.iter().zip(unary(UnaryOp::ErfInv, &xs)) {
        let y = f64::from(y);
        let slope = 2.0 / std::f64::consts::PI.sqrt() * (-y * y).exp();
        let far = x.abs() > 0.9;
        let residual = if far {
            (1.0 - f64::from(x.abs())) - erfc(y.abs())
        } else {
            erf(y) - f64::from(x)
        };
        let error = (residual / slope / y).abs() * 8_388_608.0;
        assert!(error < 6.0, "erf_inv({x:e}) = {y:e}: {error:.2} ulp");
    }
    let ends = unary(UnaryOp::ErfInv, &[1.0, -1.0, 1.5, 0.0]);
    assert_eq!(&ends[..2], &[f32::INFINITY, f32::NEG_INFINITY]);
    assert!(ends[2].is_nan() && ends[3] == 0.0);
}

#[test]
fn powers() {
    let xs = samples(3).map(|u| f32::from_bits(0x3000_0000 + (u & 0x1fff_ffff)));
    let ys = samples(4).map(|u| (u as f32 / 4294967296.0 - 0.5) * 60.0);
    let others: Vec<f32> = SPECIAL.into_iter().chain([3.0, -3.0, 1.5, 4.0, -1.5, 0.1]).collect();
    let special = SPECIAL.into_iter().flat_map(|x| others.iter().map(move |&y| (x, y)));
    let pairs: Vec<(f32, f32)> = special.chain(xs.zip(ys)).take(2048).collect();
    let (xs, ys): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let mut worst = 0f64;
    for (&(x, y), got) in pairs.iter().zip(binary(BinaryOp::Pow, &xs, &ys)) {
        let exact = f64::from(x).powf(f64::from(y));
        let error = ulps(got, exact);
        worst = worst.max(error);
        assert!(
            error <= 2.5,
            "pow({x:e}, {y:e}) = {got:e}, exact {exact:e}: {error:.2} ulp"
        );
        assert!(
            got != 0.0 || got.is_sign_negative() == exact.is_sign_negative(),
            "pow({x:e}, {y:e}) = {got:e}"
        );
    }
    println!("pow: {worst:.2} ulp");
}

#[test]
fn angles_of_vectors() {
    let random = samples(5).map(|u| (u as f32 / 4294967296.0 - 0.5) * 8.0);
    let special = SPECIAL
        .into_iter()
        .flat_map(|y| SPECIAL.into_iter().map(move |x| (y, x)));
    let pairs: Vec<(f32, f32)> = special
        .chain(random.clone().zip(random.skip(5000)))
        .take(2048)
        .collect();
    let (ys, xs): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    for (&(y, x), got) in pairs.iter().zip(binary(BinaryOp::Atan2, &ys, &xs)) {
        let exact = f64::from(y).atan2(f64::from(x));
        // A quotient that is subnormal has lost bits.
        let limit = if exact.abs() < 1e-37 { 16.0 } else { 3.0 };
        assert!(
            ulps(got, exact) <= limit,
            "atan2({y:e}, {x:e}) = {got:e}, exact {exact:e}"
        );
        assert!(
            got.is_nan() || got.is_sign_negative() == exact.is_sign_negative(),
            "atan2({y:e}, {x:e}) = {got:e}"
        );
    }
}

#[test]
fn remainders_are_exact() {
    let any = samples(6).map(f32::from_bits);
    let special = SPECIAL
        .into_iter()
        .flat_map(|y| SPECIAL.into_iter().map(move |x| (y, x)));
    let pairs: Vec<(f32, f32)> = special.chain(any.clone().zip(any.skip(5000))).take(1024).collect();
    let (xs, ys): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    for (&(x, y), got) in pairs.iter().zip(binary(BinaryOp::Rem, &xs, &ys)) {
        let want = x % y;
        assert!(
            got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
            "{x:e} rem {y:e} = {got:e}, not {want:e}"
        );
    }
}
