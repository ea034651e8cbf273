//! Mutated descriptors: any byte string gives a kernel or a clean error.
//!
//! Each round takes a golden descriptor, damages it (bytes, or fields of the decoded wire format, whose lengths are then put right
//! again), and runs it through import, verifier and normalisation; one in `SMALT_FUZZ_COMPILE` (default 20) of those that are
//! kernels is compiled to PTX. Nothing may panic, hang, or end in an internal error.
//! `SMALT_FUZZ_N` is the number of rounds (default 20,000), `SMALT_FUZZ_SEED` the first seed; a failure names its seed, and
//! `SMALT_FUZZ_N=1 SMALT_FUZZ_SEED=…` repeats it.
use smalt::descriptor::{self, DebugTable};
use smalt::error::Fault;
use smalt::kernel_ir::{normalize, verify};
use smalt::runtime::{CompileOptions, pipeline};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A field of the wire format. What parses as a message is taken for one.
#[derive(Clone)]
enum Field {
    Varint(u32, u64),
    Fixed64(u32, [u8; 8]),
    Fixed32(u32, [u8; 4]),
    Bytes(u32, Vec<u8>),
    Message(u32, Vec<Field>),
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut x = 0u64;
    for shift in (0..64).step_by(7) {
        let (&b, rest) = bytes.split_first()?;
        *bytes = rest;
        x |= u64::from(b & 0x7f) << shift;
        if b < 0x80 {
            return Some(x);
        }
    }
    None
}

fn write_varint(out: &mut Vec<u8>, mut x: u64) {
    while x >= 0x80 {
        out.push(x as u8 | 0x80);
        x >>= 7;
    }
    out.push(x as u8);
}

fn parse(mut bytes: &[u8], depth: u32) -> Option<Vec<Field>> {
    let mut fields = vec![];
    while !bytes.is_empty() {
        let tag = read_varint(&mut bytes)?;
        let number = u32::try_from(tag >> 3).ok().filter(|&n| n > 0 && n < 64)?;
        fields.push(match tag & 7 {
            0 => Field::Varint(number, read_varint(&mut bytes)?),
            1 => {
                let (x, rest) = bytes.split_first_chunk::<8>()?;
                bytes = rest;
                Field::Fixed64(number, *x)
            }
            2 => {
                let n = usize::try_from(read_varint(&mut bytes)?).ok()?;
                let (x, rest) = bytes.split_at_checked(n)?;
                bytes = rest;
                // Readable text is text.
                let text = x.len() > 2 && x.iter().all(|b| (0x20..0x7f).contains(b));
                match if text || depth == 0 { None } else { parse(x, depth - 1) } {
                    Some(inner) if !x.is_empty() => Field::Message(number, inner),
                    _ => Field::Bytes(number, x.to_vec()),
                }
            }
            5 => {
                let (x, rest) = bytes.split_first_chunk::<4>()?;
                bytes = rest;
                Field::Fixed32(number, *x)
            }
            _ => return None,
        });
    }
    Some(fields)
}

fn write(fields: &[Field], out: &mut Vec<u8>) {
    for field in fields {
        let tag = |number: u32, wire: u64, out: &mut Vec<u8>| write_varint(out, u64::from(number) << 3 | wire);
        match field {
            Field::Varint(n, x) => {
                tag(*n, 0, out);
                write_varint(out, *x);
            }
            Field::Fixed64(n, x) => {
                tag(*n, 1, out);
                out.extend(x);
            }
            Field::Fixed32(n, x) => {
                tag(*n, 5, out);
                out.extend(x);
            }
            Field::Bytes(n, x) => {
                tag(*n, 2, out);
                write_varint(out, x.len() as u64);
                out.extend(x);
            }
            Field::Message(n, inner) => {
                tag(*n, 2, out);
                let mut body = vec![];
                write(inner, &mut body);
                write_varint(out, body.len() as u64);
                out.extend(body);
            }
        }
    }
}

/// A message somewhere in the tree.
fn pick<'a>(fields: &'a mut Vec<Field>, rng: &mut Rng) -> &'a mut Vec<Field> {
    let inner: Vec<usize> = fields
        .iter()
        .enumerate()
        .filter(|(_, f)| matches!(f, Field::Message(..)))
        .map(|(i, _)| i)
        .collect();
    if inner.is_empty() || rng.one_in(6) {
        return fields;
    }
    let i = inner[rng.below(inner.len())];
    match &mut fields[i] {
        Field::Message(_, inner) => pick(inner, rng),
        _ => unreachable!("only messages were collected"),
    }
}

/// A number that has caused trouble before.
fn number(rng: &mut Rng, old: u64) -> u64 {
    match rng.below(10) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => 1 << rng.below(64),
        4 => (1u64 << rng.below(64)).wrapping_sub(1),
        5 => old.wrapping_add(1),
        6 => old.wrapping_sub(1),
        7 => rng.next(),
        _ => rng.below(64) as u64,
    }
}

fn mutate_fields(fields: &mut Vec<Field>, other: &[Field], rng: &mut Rng) {
    for _ in 0..1 + rng.below(3) {
        let donor = {
            let mut other = other.to_vec();
            let from = pick(&mut other, rng);
            if from.is_empty() {
                None
            } else {
                Some(from[rng.below(from.len())].clone())
            }
        };
        let at = pick(fields, rng);
        if at.is_empty() {
            continue;
        }
        let i = rng.below(at.len());
        match rng.below(8) {
            0 => {
                at.remove(i);
            }
            1 => {
                let copy = at[i].clone();
                at.insert(i, copy);
            }
            2 => {
                let j = rng.below(at.len());
                at.swap(i, j);
            }
            3 => {
                if let Some(donor) = donor {
                    at[i] = donor;
                }
            }
            _ => match &mut at[i] {
                Field::Varint(n, x) => {
                    *x = number(rng, *x);
                    if rng.one_in(20) {
                        *n = 1 + rng.below(20) as u32;
                    }
                }
                Field::Bytes(_, bytes) => match bytes.len() {
                    0 => bytes.push(rng.next() as u8),
                    n => {
                        let i = rng.below(n);
                        bytes[i] = rng.next() as u8;
                        if rng.one_in(4) {
                            bytes.truncate(i);
                        }
                    }
                },
                Field::Fixed64(_, x) => x[rng.below(8)] = rng.next() as u8,
                Field::Fixed32(_, x) => x[rng.below(4)] = rng.next() as u8,
                Field::Message(n, _) => *n = 1 + rng.below(16) as u32,
            },
        }
    }
}

fn mutate_bytes(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let i = rng.below(bytes.len());
        match rng.below(5) {
            0 => bytes[i] ^= 1 << rng.below(8),
            1 => bytes[i] = rng.next() as u8,
            2 => {
                bytes.remove(i);
            }
            3 => bytes.insert(i, rng.next() as u8),
            _ => bytes.truncate(i),
        }
    }
}

/// What came of one descriptor.
enum Outcome {
    Kernel,
    /// Compiled to PTX, or refused by the compiler.
    Compiled,
    Refused,
}

fn run(bytes: &[u8], compile: bool) -> Result<Outcome, String> {
    let mut kernel = match descriptor::import(bytes) {
        Ok(kernel) => kernel,
        Err(e) if e.fault == Fault::Internal => return Err(format!("import: {e}")),
        Err(_) => return Ok(Outcome::Refused),
    };
    verify::run(&kernel).map_err(|e| format!("the imported kernel: {e}"))?;
    match normalize::run(&mut kernel, &mut |_, _| {}) {
        Ok(()) => {
            let _ = kernel.to_string();
            if !compile {
                return Ok(Outcome::Kernel);
            }
            let options = CompileOptions::for_target("sm_90a");
            match pipeline::compile(bytes, b"", &options, &mut pipeline::Observer::default()) {
                Err(e) if e.fault == Fault::Internal => Err(format!("compile: {e}")),
                Ok(_) | Err(_) => Ok(Outcome::Compiled),
            }
        }
        Err(e) if e.fault == Fault::Internal => Err(format!("normalize: {e}")),
        Err(_) => Ok(Outcome::Refused),
    }
}

fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

#[test]
fn mutated_descriptors_are_kernels_or_clean_errors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/golden");
    let mut files: Vec<_> = std::fs::read_dir(root)
        .expect("the corpus is there")
        .flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).into_iter().flatten())
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pb"))
        .collect();
    files.sort();
    let golden: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
    let trees: Vec<Vec<Field>> = golden
        .iter()
        .map(|g| parse(g, 64).expect("a descriptor is a message"))
        .collect();
    for (tree, bytes) in trees.iter().zip(&golden) {
        let mut again = vec![];
        write(tree, &mut again);
        assert_eq!(again, *bytes, "the mutator writes what it reads");
    }

    let (n, first) = (environment("SMALT_FUZZ_N", 20_000), environment("SMALT_FUZZ_SEED", 1));
    let every = environment("SMALT_FUZZ_COMPILE", 20).max(1);
    let (mut kernels, mut compiled, mut slowest) = (0u64, 0u64, Duration::ZERO);
    let mut failures = vec![];
    for seed in first..first + n {
        let mut rng = Rng(seed);
        let i = rng.below(golden.len());
        let mut bytes = golden[i].clone();
        if rng.one_in(4) {
            mutate_bytes(&mut bytes, &mut rng);
        } else {
            let mut tree = trees[i].clone();
            let other = rng.below(golden.len());
            mutate_fields(&mut tree, &trees[other], &mut rng);
            bytes.clear();
            write(&tree, &mut bytes);
        }
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _ = DebugTable::decode(&bytes);
            run(&bytes, seed % every == 0)
        }));
        let took = start.elapsed();
        slowest = slowest.max(took);
        let file = || files[i].file_name().unwrap_or_default().to_string_lossy().into_owned();
        match outcome {
            Ok(Ok(Outcome::Kernel)) => kernels += 1,
            Ok(Ok(Outcome::Compiled)) => {
                kernels += 1;
                compiled += 1;
            }
            Ok(Ok(Outcome::Refused)) => {}
            Ok(Err(text)) => failures.push(format!("seed {seed} ({}): {text}", file())),
            Err(_) => failures.push(format!("seed {seed} ({}): panic", file())),
        }
        if took > Duration::from_secs(10) {
            failures.push(format!("seed {seed} ({}): took {took:?}", file()));
        }
        if failures.len() > 10 {
            break;
        }
    }
    println!("{n} descriptors: {kernels} kernels, {compiled} of them compiled, slowest {slowest:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(
        n < 1000 || kernels > n / 100,
        "the mutations are too coarse to find anything: {kernels} kernels of {n}"
    );
}
