//! Kernels for machines that there are not: what is compiled follows from a machine's row, and from nothing else.
use super::env::Checking;
use super::pipeline::CompileOptions;
use super::{Artifact, BufferRole, BufferSpec, HostBuffer, Locations, Schedule, compile, emulate_on_host_data};
use crate::error::{Error, Fault};
use crate::target::{Features, Target, fictitious};
use half::{bf16, f16};
use std::path::Path;
use std::sync::Arc;

/// Kernels of the corpus with copies, barriers, products, narrow types, sorts, changes of layout and atomics.
const KERNELS: [&str; 21] = [
    "add_bf16",
    "arithmetic_f16",
    "atomics",
    "convert_fp8",
    "convert_from_f32",
    "copies_to_peer",
    "copy_ring",
    "copy_through_smem",
    "copy_tiled_swizzled",
    "dot_general",
    "layouts",
    "mma_in_registers",
    "named_layouts",
    "narrow_integers",
    "narrow_types_through_smem",
    "pipeline",
    "programmatic_launch",
    "relu_bf16",
    "softmax_and_norm",
    "sort_and_scan",
    "wide_types",
];

/// Parts that smalt uses wherever a machine has them, and does without where it has not: those of some kernel.
const CHOSEN: [Features; 6] = [
    Features::FP8,
    Features::BF16,
    Features::STMATRIX,
    Features::ELECT,
    Features::TRANSACTIONS,
    Features::BULK_COPIES,
];

fn descriptor(name: &str) -> Option<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/golden/0.11.2");
    std::fs::read(folder.join(format!("{name}.pb"))).ok()
}

fn compiled(descriptor: &[u8], target: &str) -> Result<Arc<Artifact>, Error> {
    compile(descriptor, b"", &CompileOptions::for_target(target))
}

/// What its instructions need.
fn used(artifact: &Artifact) -> Features {
    let flat = artifact.compiled.flat.as_ref().expect("it was compiled here");
    let insts = flat.blocks.iter().flat_map(|block| &block.insts);
    insts.fold(Features::empty(), |used, fi| used | fi.inst.requires().features)
}

/// Numbers of its type, small enough that indices are inside and sums are no infinities.
fn numbers(spec: &BufferSpec) -> Vec<u8> {
    let small = |i: usize| (i * 7 % 5) as f32 / 4.0 - 0.5;
    let bytes = spec.bytes as usize;
    match spec.text.split('[').next() {
        _ if spec.role == BufferRole::Output => vec![0xff; bytes],
        Some("f16") => (0..bytes / 2)
            .flat_map(|i| f16::from_f32(small(i)).to_le_bytes())
            .collect(),
        Some("bf16") => (0..bytes / 2)
            .flat_map(|i| bf16::from_f32(small(i)).to_le_bytes())
            .collect(),
        Some("f32") => (0..bytes / 4).flat_map(|i| small(i).to_le_bytes()).collect(),
        Some("f64") => (0..bytes / 8).flat_map(|i| f64::from(small(i)).to_le_bytes()).collect(),
        Some(fp8) if fp8.starts_with("f8") => (0..bytes).map(|i| 0x30 + (i % 16) as u8).collect(),
        // Little-endian integers of 0 or 1.
        Some(integer) => {
            let size = integer[1..].parse::<usize>().unwrap_or(8).div_ceil(8);
            (0..bytes).map(|i| u8::from(i.is_multiple_of(3 * size))).collect()
        }
        None => unreachable!("split gives one"),
    }
}

/// What is in its buffers after a run.
fn results(artifact: &Artifact) -> Result<Vec<Vec<u8>>, Error> {
    let mut data: Vec<Vec<u8>> = artifact.compiled.buffers.iter().map(numbers).collect();
    let buffers: Vec<HostBuffer> = data
        .iter_mut()
        .map(|bytes| HostBuffer {
            address: bytes.as_mut_ptr(),
            bytes: bytes.len() as u64,
        })
        .collect();
    let schedule = Schedule {
        check: Some(Checking::Error),
        ..Schedule::default()
    };
    // SAFETY: the buffers are of the sizes that the artifact names, alive and nobody else's.
    unsafe { emulate_on_host_data(artifact, &Locations::default(), &buffers, &schedule) }?;
    Ok(data)
}

/// Each kernel on each machine: what is used of it, and the results, which are a real one's.
#[test]
fn a_machine_is_one_row() {
    let mut seen = vec![Features::empty(); fictitious().len()];
    let (mut on_ampere, mut on_hopper, mut ran) = (Features::empty(), Features::empty(), 0);
    for name in KERNELS {
        let descriptor = descriptor(name).unwrap_or_else(|| panic!("{name} is no kernel of the corpus"));
        let hopper = compiled(&descriptor, "sm_90").unwrap_or_else(|e| panic!("{name}: {e}"));
        on_hopper |= used(&hopper);
        on_ampere |= compiled(&descriptor, "sm_80").map_or(Features::empty(), |artifact| used(&artifact));
        let expected = results(&hopper).ok();
        for (machine, seen) in fictitious().iter().zip(&mut seen) {
            let artifact = match compiled(&descriptor, machine.name) {
                Ok(artifact) => artifact,
                // It says which part is missing, and that one is.
                Err(e) if e.fault == Fault::Unsupported => {
                    let has = |(name, _): &(&str, Features)| {
                        e.what
                            .contains(&format!("{}", Features::from_name(name).expect("its name")))
                    };
                    let missing = Features::all()
                        .iter_names()
                        .filter(has)
                        .any(|(_, part)| !machine.features.contains(part));
                    assert!(
                        missing && e.what.ends_with(machine.name),
                        "{name} on {}: {e}",
                        machine.name
                    );
                    continue;
                }
                Err(e) => panic!("{name} on {}: {e}", machine.name),
            };
            *seen |= used(&artifact);
            assert!(machine.features.contains(used(&artifact)), "{name} on {}", machine.name);
            assert!(artifact.compiled.ptx.contains(&format!(".target {}", machine.name)));
            if let Some(expected) = &expected {
                ran += 1;
                let got = results(&artifact).unwrap_or_else(|e| panic!("{name} on {}: {e}", machine.name));
                assert_eq!(&got, expected, "{name} on {}", machine.name);
            }
        }
    }
    for part in CHOSEN {
        assert!(on_hopper.contains(part) && !on_ampere.contains(part), "{part}");
        for (machine, seen) in fictitious().iter().zip(&seen) {
            // Bulk copies are what reports to barriers.
            let is_wanted = part != Features::TRANSACTIONS || machine.features.contains(Features::BULK_COPIES);
            assert!(
                !seen.contains(part) || machine.features.contains(part),
                "{part} on {}",
                machine.name
            );
            let is_missed = is_wanted && machine.features.contains(part) && !seen.contains(part);
            assert!(!is_missed, "{part} on {}", machine.name);
        }
    }
    assert!(ran > 400, "{ran} runs");
}

#[test]
fn a_row_is_found_by_its_name() {
    for machine in fictitious() {
        let target = Target::from_name(machine.name).expect("a row");
        assert_eq!((target.name, target.features), (machine.name, machine.features));
    }
}
