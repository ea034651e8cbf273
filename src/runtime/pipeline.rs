//! The compiler: one function, a list of passes.
use super::artifact::Phase;
use super::buffers::{self, BufferSpec};
use super::host::HostBuffer;
use super::unit_functions::UnitFunctions;
use crate::descriptor;
use crate::error::Error;
use crate::kernel_ir::{self, FpContract, Kernel, OpKind};
use crate::layout::{self, Assignment, Reason, Subject};
use crate::lower::{self, Target};
use crate::ptx::launch::LaunchSpec;
use crate::ptx::out_of_ssa::Shell;
use crate::ptx::{self, Flat};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What changes generated code and is not in the descriptor; part of the artifact's key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct CompileOptions {
    /// `sm_90a`, …
    pub target: String,
    /// Print real files and lines instead of op ids. The artifact then depends on the debug table too.
    #[serde(default)]
    pub line_info: bool,
}

/// What the passes make of a descriptor.
pub struct Compiled {
    /// The kernel's name, for reports.
    pub name: String,
    /// The program; absent for a kernel that was given as PTX text.
    pub flat: Option<Flat>,
    pub ptx: String,
    pub launch: LaunchSpec,
    /// Operands, then results, then scratch: the buffers in the launch's numbering.
    pub buffers: Vec<BufferSpec>,
    /// What passes wish to report: chosen layouts and transforms, with their reasons.
    pub notes: serde_json::Value,
    /// A test's stand-in for the emulator.
    pub host: Option<fn(&[HostBuffer]) -> Result<(), Error>>,
}

/// Times the passes and, if somebody wants it, collects the kernel's text after each.
#[derive(Default)]
pub struct Observer {
    pub phases: Vec<Phase>,
    /// Pass and text, in order.
    pub shown: Option<Vec<(&'static str, String)>>,
}

impl Observer {
    /// Runs a pass.
    pub fn pass<T>(&mut self, name: &'static str, pass: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let start = Instant::now();
        let result = pass();
        let micros = start.elapsed().as_micros() as u64;
        self.phases.push(Phase { name, micros });
        result
    }

    /// Shows the kernel as it is after `pass`; `text` is made only if somebody looks.
    pub fn after(&mut self, pass: &'static str, text: impl FnOnce() -> String) {
        if let Some(shown) = &mut self.shown {
            shown.push((pass, text()));
        }
    }
}

/// Descriptor → artifact's contents. `debug` is the table of locations: used only where `options.line_info` says so.
pub fn compile(
    descriptor: &[u8],
    debug: &[u8],
    options: &CompileOptions,
    observer: &mut Observer,
) -> Result<Compiled, Error> {
    super::capability(&options.target)?;
    #[cfg(feature = "test-handlers")]
    if let Some(compiled) = super::artifact::test_kernel(descriptor) {
        return compiled;
    }
    let _ = debug;
    let mut kernel = observer.pass("import", || descriptor::import(descriptor))?;
    observer.after("import", || kernel.to_string());
    let target = target_of(&kernel, options)?;

    observer.pass("normalize", || kernel_ir::normalize::run(&mut kernel, &mut |_, _| {}))?;
    observer.after("normalize", || kernel.to_string());
    let assignment = observer.pass("infer_layouts", || layout::infer::run(&kernel))?;
    let allocation = observer.pass("allocate", || {
        let scratch = lower::relayout::scratch_bytes(&kernel, &assignment);
        let limits = lower::allocate::Limits {
            smem_bytes: target.max_smem_bytes,
        };
        lower::allocate::run(&kernel, scratch, limits)
    })?;
    observer.pass("insert_barriers", || {
        lower::insert_barriers::run(&mut kernel, &assignment, &allocation)
    })?;
    observer.after("insert_barriers", || kernel.to_string());

    let (ssa, launch) = observer.pass("lower", || lower::run(&kernel, &assignment, &allocation, &target))?;
    let ssa = observer.pass("optimize", || {
        let contract = kernel.compiler_params.fp_contract == FpContract::On;
        let options = ptx::optimize::Options {
            contract,
            functions: Box::new(UnitFunctions),
        };
        ptx::optimize::run(ssa, options, |_, _| {})
    })?;
    let flat = observer.pass("out_of_ssa", || {
        let min_ctas_per_sm = uses_register_counts(&kernel).then_some(1);
        ptx::out_of_ssa::run(
            &ssa,
            Shell {
                launch: launch.clone(),
                target: target.name.clone(),
                min_ctas_per_sm,
            },
        )
    })?;
    observer.pass("verify", || match ptx::verify_flat::run(&flat) {
        broken if broken.is_empty() => Ok(()),
        broken => Err(ptx::verify::into_error("ptx::Flat", &broken)),
    })?;
    let ptx = observer.pass("print", || Ok(ptx::print::print(&flat)))?;
    observer.after("print", || ptx.clone());

    let buffers = buffers::of_kernel(&kernel, &launch)?;
    Ok(Compiled {
        name: kernel.name.clone(),
        flat: Some(flat),
        ptx,
        launch,
        buffers,
        notes: notes(&kernel, &assignment),
        host: None,
    })
}

/// The machine to compile for: the kernel's own choice, else the caller's.
fn target_of(kernel: &Kernel, options: &CompileOptions) -> Result<Target, Error> {
    let own = kernel.compiler_params.target.as_str();
    let name = if own.is_empty() { options.target.as_str() } else { own };
    Target::from_name(name).ok_or_else(|| {
        Error::unsupported(format!("the target {name}"))
            .expected("sm_90a")
            .remedy("leave CompilerParams.target empty, or set it to sm_90a")
    })
}

/// Whether any warpgroup changes its register count: that needs `.minnctapersm`.
fn uses_register_counts(kernel: &Kernel) -> bool {
    let mut found = false;
    kernel.for_each_op(&mut |op| found |= matches!(kernel.ops[op].kind, OpKind::SetMaxRegisters { .. }));
    found
}

/// Chosen layouts and transforms, with their reasons.
fn notes(kernel: &Kernel, assignment: &Assignment) -> serde_json::Value {
    let row = |r: &Reason| {
        let (subject, ty) = match r.subject {
            Subject::Value(v) => (v.to_string(), kernel.ty(v).to_string()),
            Subject::Alloc(a) => (a.to_string(), format!("{:?}", kernel.allocs[a].shape.as_slice())),
        };
        serde_json::json!({"what": subject, "type": ty, "choice": r.choice, "why": r.why})
    };
    serde_json::json!({"layouts": assignment.report.iter().map(row).collect::<Vec<_>>()})
}
