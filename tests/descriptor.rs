//! Descriptors → kernels.
use smalt::descriptor;
use smalt::error::Fault;
use smalt::kernel_ir::{self, CompareOp, Kernel, MmaOperand, OpKind, RefUse, Value};
use smalt::passes;
use std::path::{Path, PathBuf};

/// The committed descriptors of every JAX version, in a fixed order.
fn golden() -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/golden");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&root)
        .expect("tests/corpus/golden is there")
        .flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pb"))
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|p| (p.clone(), std::fs::read(p).unwrap()))
        .collect()
}

/// Prints kernels as they are after each pass named in `SMALT_TEST_PRINT` ("import" for none), for those files whose path
/// contains `SMALT_TEST_KERNEL`.
fn printer(path: &Path) -> impl FnMut(&'static str, Option<&Kernel>) {
    let passes = std::env::var("SMALT_TEST_PRINT").unwrap_or_default();
    let name = path.to_string_lossy().into_owned();
    let wanted = name.contains(&std::env::var("SMALT_TEST_KERNEL").unwrap_or_default());
    move |pass, kernel| {
        if let Some(kernel) = kernel.filter(|_| wanted && passes.split(',').any(|p| p == pass)) {
            println!("---- {name} after {pass}\n{kernel}");
        }
    }
}

#[test]
fn golden_descriptors_import_and_normalize() {
    let files = golden();
    assert!(files.len() >= 12, "the corpus is there");
    let mut failures = vec![];
    let mut unsupported = std::collections::BTreeMap::<String, usize>::new();
    for (path, bytes) in files {
        let mut print = printer(&path);
        let mut fail = |what: String| failures.push(format!("{}: {what}", path.display()));
        let mut kernel = match descriptor::import(&bytes) {
            Ok(kernel) => kernel,
            // What we lack is an honest answer; anything else is not.
            Err(e) if e.fault == Fault::Unsupported => {
                *unsupported.entry(e.what).or_default() += 1;
                continue;
            }
            Err(e) => {
                fail(format!("{} {e}", e.loc.unwrap_or_default()));
                continue;
            }
        };
        print("import", Some(&kernel));
        if let Err(e) = kernel_ir::verify::run(&kernel) {
            fail(format!("{e}"));
            continue;
        }
        match passes::run(&mut kernel, &mut print) {
            Ok(()) => {}
            Err(e) if e.fault == Fault::Unsupported => *unsupported.entry(e.what).or_default() += 1,
            Err(e) => fail(format!("{} {e}", e.loc.unwrap_or_default())),
        }
    }
    for (what, n) in &unsupported {
        println!("{n:4} {what}");
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Kernels whose normal form is committed, `tests/filetests/kernel_ir/NAME.txt`. `SMALT_BLESS=1` writes what is.
const FLAGSHIPS: &[&str] = &[
    "accumulator_through_while",
    "attention_plain",
    "barrier_array_in_one_arm",
    "barrier_scoped_in_loop",
    "cluster_barrier",
    "hopper_matmul_bfloat16_cluster_n",
    "hopper_matmul_float16_basic",
    "loops_in_x64",
    "matmul_with_emit_pipeline",
    "pipeline_warp_specialized",
    "planar_snake",
    "queue_of_copies",
    "ref_union_of_groups",
    "scan_with_xs_and_ys",
    "three_buffers_no_wait",
    "transposed_operand_and_state",
    "two_accumulators",
    "vmap_of_vmap",
    "warp_region",
    "while_that_reads",
];

#[test]
fn normal_forms_are_the_committed_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let bless = std::env::var_os("SMALT_BLESS").is_some();
    let mut wrong = vec![];
    for name in FLAGSHIPS {
        let bytes = std::fs::read(root.join("corpus/golden/0.11.2").join(name).with_extension("pb")).unwrap();
        let mut kernel = descriptor::import(&bytes).unwrap();
        passes::run(&mut kernel, &mut |_, _| {}).unwrap();
        let text = kernel.to_string();
        let path = root.join("filetests/kernel_ir").join(name).with_extension("txt");
        if bless {
            std::fs::write(&path, &text).unwrap();
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            wrong.push(*name);
            println!("{text}");
        }
    }
    assert!(
        wrong.is_empty(),
        "normal forms differ from tests/filetests/kernel_ir (SMALT_BLESS=1 accepts): {wrong:?}"
    );
}

/// What DESIGN promises about the shipped matmul, for every configuration of the corpus and every JAX version.
#[test]
fn hopper_matmul_has_one_loop_per_role_and_one_wait_per_step() {
    let mut seen = 0;
    for (path, bytes) in golden() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("hopper_matmul_") {
            continue;
        }
        seen += 1;
        let mut kernel = descriptor::import(&bytes).unwrap();
        passes::run(&mut kernel, &mut |_, _| {}).unwrap();
        let (mut roles, mut deferred, mut wgmmas, mut waits, mut reads, mut wide) = (0, 0, 0, 0, 0, 0);
        let mut macs_per_element = 0;
        // A role, or a wait or a part of an epilogue that sank into the next tile or behind the last one.
        let is_role = |selector: Value| {
            let op = kernel.def_op(selector).expect("a selector is computed");
            !matches!(
                kernel.ops[op].kind,
                OpKind::Compare {
                    op: CompareOp::Gt | CompareOp::Lt,
                    ..
                }
            )
        };
        kernel.for_each_op(&mut |op| match &kernel.ops[op].kind {
            OpKind::For { body, .. } => {
                for &inner in &kernel.regions[*body].ops {
                    if let OpKind::Switch { selector, .. } = kernel.ops[inner].kind {
                        assert!(!is_role(selector), "{}\n{kernel}", path.display());
                    }
                }
            }
            OpKind::Switch { selector, arms } => {
                assert_eq!(arms.len(), 2);
                match is_role(*selector) {
                    true => roles += 1,
                    false => deferred += 1,
                }
            }
            OpKind::Wgmma { a, b, .. } => {
                wgmmas += 1;
                let MmaOperand::Smem(a) = a else {
                    panic!("an operand in registers")
                };
                let slot = |view: &RefUse| kernel.allocs[view.alloc].shape[1..].iter().product::<u64>();
                macs_per_element = slot(a) * slot(b) / a.shape[1] / (slot(a) + slot(b));
            }
            OpKind::WgmmaWait { n, .. } => {
                assert_eq!(*n, 0);
                waits += 1;
            }
            OpKind::AccRead { .. } => reads += 1,
            _ => {}
        });
        for value in kernel.values.values() {
            wide += usize::from(value.ty.dtype() == smalt::dtype::DType::I64);
        }
        assert_eq!(
            (roles, deferred, wgmmas, waits, reads, wide),
            match name.as_str() {
                // Several tiles for each block: its epilogue of four parts runs beside the next tile's first steps.
                "hopper_matmul_large.pb" => (1, 7, 5, 5, 1, 0),
                // Loads limit it.
                _ if macs_per_element < 58 => (1, 0, 1, 1, 1, 0),
                _ => (1, 2, 1, 1, 1, 0),
            },
            "{}\n{kernel}",
            path.display()
        );
    }
    assert!(seen >= 30, "{seen} configurations");
}

/// Time of import and of each pass on the largest kernels of the corpus; the verifier is not part of it.
#[test]
fn compile_time_of_the_front_half() {
    for name in ["hopper_matmul_large", "attention_backward.0", "forty_arrays"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/golden/0.11.2");
        let bytes = std::fs::read(root.join(format!("{name}.pb"))).unwrap();
        let mut best = std::time::Duration::MAX;
        for _ in 0..5 {
            let start = std::time::Instant::now();
            let mut kernel = descriptor::import(&bytes).unwrap();
            for (_, pass) in passes::all() {
                pass(&mut kernel).unwrap();
            }
            best = best.min(start.elapsed());
        }
        println!("{name}: {} bytes in {best:?}", bytes.len());
        // An unoptimised build on a busy machine; a release build takes about a tenth.
        assert!(best < std::time::Duration::from_millis(250), "{name}: {best:?}");
    }
}
