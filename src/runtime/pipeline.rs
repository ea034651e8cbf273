//! The compiler: one function, a list of passes.
use super::artifact::Phase;
use super::buffers::{self, BufferSpec};
use super::host::HostBuffer;
use super::unit_functions::UnitFunctions;
use crate::descriptor;
use crate::error::{Error, Loc, RefId};
use crate::inline;
use crate::kernel_ir::{self, Alloc, AllocData, AllocKind, FpContract, Kernel, Note, Op, OpKind, Type, Value};
use crate::layout::{self, Assignment, Reason, Subject};
use crate::lower;
use crate::lower::Lowered;
use crate::lower::debug_print::Prints;
use crate::lower::profile::Ranges;
use crate::passes;
use crate::plan::traffic::Moves;
use crate::plan::{self, Allocation, Exchanges};
use crate::ptx::launch::LaunchSpec;
use crate::ptx::out_of_ssa::Shell;
use crate::ptx::{self, Flat};
use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

/// What changes generated code and is not in the descriptor; part of the artifact's key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompileOptions {
    /// `sm_90a`, …
    pub target: String,
    /// Print real files and lines instead of op ids. The artifact then depends on the debug table too.
    #[serde(default)]
    pub line_info: bool,
    /// Every lane arrives on mbarriers for itself, which costs time and is what compute-sanitizer's racecheck can follow.
    #[serde(default)]
    pub racecheck: bool,
    /// Accumulators that do not fit into registers are left to the assembler, which spills them, instead of parked (`plan::parked`).
    #[serde(default)]
    pub spill: bool,
    /// Leaves out one of the barriers that the compiler places, by its number, and reports what `plan::verify_order` finds:
    /// for tests of what finds a missing one.
    #[serde(default)]
    pub omit_barrier: Option<u32>,
}

impl CompileOptions {
    /// Nothing but the target.
    pub fn for_target(target: &str) -> CompileOptions {
        CompileOptions {
            target: target.into(),
            line_info: false,
            racecheck: false,
            spill: false,
            omit_barrier: None,
        }
    }
}

/// What the passes make of a descriptor.
pub struct Compiled {
    /// The kernel's name, for reports.
    pub name: String,
    /// The program; absent for a kernel that was given as PTX text.
    pub flat: Option<Flat>,
    pub ptx: String,
    pub launch: LaunchSpec,
    /// What the kernel prints.
    pub prints: Prints,
    /// Of its profile, if it has one.
    pub ranges: Option<Ranges>,
    /// Operands, then results, then scratch: the buffers in the launch's numbering.
    pub buffers: Vec<BufferSpec>,
    /// Chosen layouts and transforms, with their reasons.
    pub layouts: Vec<LayoutChoice>,
    /// What ops move between memories and registers.
    pub traffic: Vec<Moves>,
    /// What lies in a block's shared memory, by offset.
    pub smem: Vec<SmemPlace>,
    /// The ops before which a barrier of a warpgroup or the block was placed.
    pub barriers: Vec<Loc>,
    /// What is out of order when one of them is left out on purpose.
    pub out_of_order: Vec<String>,
    /// Passes' notes on loops that they might have rewritten, and left as they are.
    pub notes: Vec<Note>,
    /// What is moved to where accumulators are parked; `None`: none is.
    pub parked: Option<plan::parked::Moved>,
    /// The machine that it is for.
    pub target: Target,
    /// How long waits may last (`CompilerParams.wait_timeout_ns`); 0: unlimited.
    pub wait_timeout_ns: u64,
    /// A test's stand-in for the emulator.
    pub host: Option<fn(&[HostBuffer]) -> Result<(), Error>>,
}

/// What layout inference chose for one value or allocation. Text is made when the report is.
pub struct LayoutChoice {
    /// The op that it is a result of, `carried`, or `SMEM`.
    pub what: &'static str,
    pub ty: LaidOut,
    pub choice: layout::Choice,
    pub why: Cow<'static, str>,
    /// The op; 0: the kernel itself.
    pub op: u32,
}

/// The type of what has a layout.
pub enum LaidOut {
    Value(Type),
    /// As [`SmemPlace`] calls it.
    Alloc(String),
}

impl fmt::Display for LaidOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaidOut::Value(ty) => ty.fmt(f),
            LaidOut::Alloc(text) => f.write_str(text),
        }
    }
}

/// One allocation in a block's shared memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SmemPlace {
    pub offset: u32,
    pub bytes: u64,
    /// E.g. `f16[2, 64, 128]`, `4 barriers`.
    pub what: String,
    /// The op that allocates; 0: the kernel itself.
    pub op: u32,
    /// What it is in the descriptor, for messages.
    #[serde(skip)]
    pub of: RefId,
    /// Of barriers, how many arrivals of the machine's the author counts as one; else 0.
    #[serde(skip)]
    pub per_arrival: u32,
}

/// Times the passes and, if requested, collects the kernel's text after each.
#[derive(Default)]
pub struct Observer {
    /// The kernel's name, once imported.
    pub kernel: Option<String>,
    pub phases: Vec<Phase>,
    /// Pass and text, in order.
    pub shown: Option<Vec<(String, String)>>,
}

impl Observer {
    /// Runs a pass.
    pub fn pass<T, E>(&mut self, name: &str, pass: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = Instant::now();
        let result = pass();
        self.ran(name, start);
        result
    }

    /// A pass has run. One that runs again is `name_2`, and so on.
    fn ran(&mut self, name: &str, start: Instant) {
        let micros = start.elapsed().as_micros() as u64;
        let again = |phase: &&Phase| phase.name.strip_prefix(name).is_some_and(is_number);
        let name = match self.phases.iter().filter(again).count() {
            0 => name.to_owned(),
            before => format!("{name}_{}", before + 1),
        };
        self.phases.push(Phase { name, micros });
    }

    /// Shows the kernel as it is after the latest pass; `text` is made only if it is collected.
    pub fn after(&mut self, text: impl FnOnce() -> String) {
        if let (Some(shown), Some(pass)) = (&mut self.shown, self.phases.last()) {
            shown.push((pass.name.clone(), text()));
        }
    }

    /// For a list of passes that calls back before each, and after it with what it made.
    fn around<T: fmt::Display>(&mut self) -> impl FnMut(&'static str, Option<&T>) {
        let mut start = Instant::now();
        move |name, made| match made {
            None => start = Instant::now(),
            Some(made) => {
                self.ran(name, start);
                self.after(|| made.to_string());
            }
        }
    }
}

/// What stands behind a pass's name when it has run before: nothing, or `_2`.
fn is_number(rest: &str) -> bool {
    rest.is_empty()
        || rest
            .strip_prefix('_')
            .is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
}

/// Descriptor → artifact's contents. `debug` is the table of locations: used only with `options.line_info`.
pub fn compile(
    descriptor: &[u8],
    debug: &[u8],
    options: &CompileOptions,
    observer: &mut Observer,
) -> Result<Compiled, Error> {
    let device = super::target(&options.target)?;
    let verifies = super::env::get()?.verify;
    #[cfg(feature = "test-handlers")]
    if let Some(compiled) = super::artifact::test_kernel(descriptor) {
        return compiled;
    }
    let mut kernel = observer.pass("import", || descriptor::import(descriptor))?;
    kernel.compiler_params.every_lane_arrives = options.racecheck;
    observer.kernel = Some(kernel.name.clone());
    observer.after(|| kernel.to_string());
    observer.pass("check_inline_ptx", || inline::check::run(&mut kernel))?;
    kernel.target = target_of(&kernel, device)?;

    passes::run(&mut kernel, &mut observer.around())?;
    observer.pass("check_ops", || kernel_ir::legality::run(&kernel))?;
    let assignment = observer.pass("infer_layouts", || layout::infer::run(&mut kernel))?;
    #[cfg(feature = "test-handlers")]
    let assignment = match breaks(&kernel.name, "layouts") {
        true => without_a_layout(assignment),
        false => assignment,
    };
    observer.after(|| kernel.to_string());
    observer.pass("check_size", || plan::size::run(&kernel, &assignment))?;
    if verifies {
        observer.pass("verify_layouts", || {
            layout::verify_layouts::run(&kernel, &assignment.values)
        })?;
    }
    let (exchanges, mut allocation) = observer.pass("allocate", || plan::scratch::allocate(&kernel, &assignment))?;
    let parked = observer.pass("park_accumulators", || {
        plan::parked::run(&kernel, &assignment, &mut allocation, options.spill)
    })?;
    kernel.notes.extend(allocation.arrivals.notes.iter().cloned());
    kernel.notes.extend(parked);
    let accesses = observer.pass("plan_accesses", || plan::accesses::run(&kernel, &assignment))?;
    let traffic = plan::traffic::run(&kernel, &accesses);
    let barriers = observer.pass("insert_barriers", || {
        let placed = plan::insert_barriers::run(&mut kernel, &assignment, &allocation);
        #[cfg(feature = "test-handlers")]
        if breaks(&kernel.name, "order") {
            kernel.remove(placed[0]);
        }
        let mut locs: Vec<Loc> = placed.iter().map(|op| kernel.ops[*op].loc).collect();
        if let Some(omitted) = options.omit_barrier.and_then(|n| placed.get(n as usize)) {
            kernel.remove(*omitted);
            locs.remove(options.omit_barrier.unwrap_or(0) as usize);
        }
        Ok::<_, Error>(locs)
    })?;
    observer.after(|| kernel.to_string());
    // An independent checker holds the barriers to the definition.
    let mut out_of_order = vec![];
    if verifies || options.omit_barrier.is_some() {
        observer.pass("verify_order", || {
            let findings = plan::verify_order::run(&kernel, &assignment, &allocation);
            match options.omit_barrier {
                None => in_order(&findings),
                Some(_) => {
                    out_of_order = ours(&findings).map(plan::verify_order::Finding::to_string).collect();
                    Ok(())
                }
            }
        })?;
    }

    let Lowered {
        ssa,
        launch,
        prints,
        ranges,
    } = observer.pass("lower", || {
        lower::run(&kernel, &assignment, &allocation, &exchanges, &accesses)
    })?;
    observer.after(|| ssa.to_string());
    plan::size::check_parameters(&kernel, launch.param_bytes())?;
    let contract = kernel.compiler_params.fp_contract == FpContract::On;
    let choices = ptx::optimize::Options {
        contract,
        reassociate: kernel.compiler_params.approx_math,
        functions: Box::new(UnitFunctions),
        register_budget: Some(kernel.target.register_budget(launch.block)),
    };
    let ssa = ptx::optimize::run(ssa, choices, observer.around())?;
    #[cfg(feature = "test-handlers")]
    let ssa = match breaks(&kernel.name, "ssa") {
        true => without_an_instruction(ssa),
        false => ssa,
    };
    if verifies {
        observer.pass("verify_ssa", || match ptx::verify_ssa::run(&ssa) {
            broken if broken.is_empty() => Ok(()),
            broken => Err(ptx::verify::into_error("ptx::Ssa", &broken)),
        })?;
    }
    let (flat, peak) = observer.pass("out_of_ssa", || {
        let min_ctas_per_sm = passes::canonical::check_registers::resident_blocks(&kernel, launch.smem_bytes);
        ptx::out_of_ssa::run_measured(
            &ssa,
            Shell {
                launch: launch.clone(),
                target: kernel.target.name.into(),
                min_ctas_per_sm,
            },
            kernel.target.max_live_words,
        )
    })?;
    plan::size::check_live(&kernel, peak.words.into(), kernel.target.max_live_words, peak.loc)?;
    let flat = flat.ok_or_else(|| Error::internal("no program, and not too many values"))?;
    observer.after(|| ptx::print::print(&flat));
    observer.pass("check_machine", || ptx::requirements::check(&flat).map(drop))?;
    observer.pass("verify", || match ptx::verify_flat::run(&flat) {
        broken if broken.is_empty() => Ok(()),
        broken => Err(ptx::verify::into_error("ptx::Flat", &broken)),
    })?;
    let lines = if options.line_info {
        let ops = flat.blocks.iter().flat_map(|block| &block.insts).map(|inst| inst.loc.0);
        super::Locations::decode(debug).source_lines(ops.max().map_or(0, |last| last + 1))
    } else {
        ptx::print::SourceLines::default()
    };
    let ptx = observer.pass("print", || Ok::<_, Error>(ptx::print::print_with_lines(&flat, &lines)))?;
    observer.after(|| ptx.clone());

    let buffers = buffers::of_kernel(&kernel, &launch)?;
    Ok(Compiled {
        name: kernel.name.clone(),
        flat: Some(flat),
        ptx,
        launch,
        prints,
        ranges,
        buffers,
        layouts: layout_choices(&kernel, &assignment, &exchanges),
        traffic,
        smem: smem_places(&kernel, &allocation),
        barriers,
        out_of_order,
        target: kernel.target,
        parked: (allocation.parked.words > 0).then_some(allocation.parked.moved),
        wait_timeout_ns: kernel.compiler_params.wait_timeout_ns,
        notes: kernel.notes,
        host: None,
    })
}

/// Whether a test wants what a pass has made of its kernel to be broken, so that a verifier finds it: by the kernel's name.
#[cfg(feature = "test-handlers")]
fn breaks(kernel: &str, what: &str) -> bool {
    kernel.strip_prefix("smalt_test_broken_") == Some(what)
}

#[cfg(feature = "test-handlers")]
fn without_a_layout(mut assignment: Assignment) -> Assignment {
    let known = assignment.values.values_mut().find(|layout| layout.is_some());
    *known.expect("a value with a layout") = None;
    assignment
}

/// The first instruction of a line of the user's is gone, and its result is used.
#[cfg(feature = "test-handlers")]
fn without_an_instruction(mut ssa: ptx::Ssa) -> ptx::Ssa {
    let body = ssa.body.expect("a program has a body");
    let ops = &mut ssa.regions[body].ops;
    let first = ops.iter().position(|op| op.loc != Loc::CALL_SITE);
    ops.remove(first.expect("an instruction of the user's"));
    ssa
}

/// Whether nothing is out of order that the compiler should have ordered.
fn in_order(findings: &[plan::verify_order::Finding]) -> Result<(), Error> {
    match ours(findings).next() {
        None => Ok(()),
        Some(finding) => Err(Error::internal("memory is touched out of order")
            .at(finding.later.1)
            .got(finding.to_string())),
    }
}

/// The findings that the compiler is to blame for.
fn ours(findings: &[plan::verify_order::Finding]) -> impl Iterator<Item = &plan::verify_order::Finding> {
    let fault = plan::verify_order::Fault::Compiler;
    findings.iter().filter(move |finding| finding.fault == fault)
}

/// The kernel's text after each pass, up to the PTX; compiles anew.
pub fn show(descriptor: &[u8], debug: &[u8], options: &CompileOptions) -> Result<Vec<(String, String)>, Error> {
    let mut observer = Observer {
        shown: Some(Vec::new()),
        ..Observer::default()
    };
    compile(descriptor, debug, options, &mut observer)?;
    Ok(observer.shown.unwrap_or_default())
}

/// The machine to compile for: the kernel's own choice, if the device runs it, else the device's.
fn target_of(kernel: &Kernel, device: Target) -> Result<Target, Error> {
    let own = kernel.compiler_params.target.as_str();
    if own.is_empty() {
        return Ok(device);
    }
    let own = super::target(own)?;
    if !device.takes_ptx_of(&own) {
        let what = format!("a kernel with CompilerParams.target `{}` for {}", own.name, device.name);
        return Err(Error::unsupported(what)
            .remedy("leave CompilerParams.target and SMALT_TARGET empty: the device's own is taken"));
    }
    Ok(own)
}

/// What was chosen, for each value and allocation, and each relayout between.
fn layout_choices(kernel: &Kernel, assignment: &Assignment, exchanges: &Exchanges) -> Vec<LayoutChoice> {
    let row = |r: &Reason| {
        let (what, ty, op) = match r.subject {
            Subject::Value(v) => {
                let op = kernel.def_op(v).map(|op| &kernel.ops[op]);
                let what = op.map_or("carried", |op| op.kind.name());
                let ty = LaidOut::Value(kernel.ty(v).clone());
                (what, ty, op.map_or(0, |op| op.loc.0))
            }
            Subject::Alloc(a) => {
                let data = &kernel.allocs[a];
                ("SMEM", LaidOut::Alloc(alloc_text(data)), data.loc.0)
            }
        };
        LayoutChoice {
            what,
            ty,
            choice: r.choice.clone(),
            why: r.why.into(),
            op,
        }
    };
    let layout = |v: Value| assignment.values[v].clone();
    let change = |&(op, user): &(Op, &'static str)| {
        let data = &kernel.ops[op];
        let OpKind::Relayout { a } = data.kind else { return None };
        let plan = exchanges.relayouts.get(&op).cloned().map(Box::new);
        Some(LayoutChoice {
            what: "relayout",
            ty: LaidOut::Value(kernel.ty(a).clone()),
            choice: layout::Choice::Relayout {
                from: layout(a)?,
                to: layout(data.results[0])?,
                plan,
            },
            why: format!("for {user}").into(),
            op: data.loc.0,
        })
    };
    let changes = assignment.relayouts.iter().filter_map(change);
    assignment.report.iter().map(row).chain(changes).collect()
}

/// What a block's shared memory holds, by offset.
fn smem_places(kernel: &Kernel, allocation: &Allocation) -> Vec<SmemPlace> {
    let placed = |(id, data): (Alloc, &AllocData)| {
        let count: u64 = data.shape.iter().product();
        let bytes = match &data.kind {
            AllocKind::Smem { dtype, .. } => dtype.bytes(count)?,
            AllocKind::Barrier { .. } => 8 * count,
            AllocKind::SmemUnion
            | AllocKind::Gmem { .. }
            | AllocKind::Tmem { .. }
            | AllocKind::TmemUnion
            | AllocKind::Semaphore { .. }
            | AllocKind::Register { .. } => return None,
        };
        Some(SmemPlace {
            offset: allocation.smem[id]?,
            bytes,
            what: alloc_text(data),
            op: data.loc.0,
            of: kernel.refs[id],
            per_arrival: match data.kind {
                AllocKind::Barrier { .. } => allocation.arrivals.by[id].count(),
                _ => 0,
            },
        })
    };
    let mut places: Vec<SmemPlace> = kernel.allocs.iter().filter_map(placed).collect();
    let scratch = allocation.scratch;
    if scratch.bytes > 0 {
        places.push(SmemPlace {
            offset: scratch.start,
            bytes: u64::from(scratch.bytes) * u64::from(kernel.num_warpgroups),
            what: "the compiler's scratch".into(),
            op: 0,
            of: RefId::default(),
            per_arrival: 0,
        });
    }
    let parked = &allocation.parked;
    if parked.shared_words > 0 {
        places.push(SmemPlace {
            offset: parked.start,
            bytes: (parked.end() - parked.start).into(),
            what: "accumulators that do not fit into registers".into(),
            op: 0,
            of: RefId::default(),
            per_arrival: 0,
        });
    }
    places.sort_by_key(|place| place.offset);
    places
}

fn alloc_text(data: &AllocData) -> String {
    match &data.kind {
        AllocKind::Smem { dtype, .. } => format!("{dtype}{:?}", data.shape.as_slice()),
        AllocKind::Barrier { num_arrivals, .. } => {
            let count: u64 = data.shape.iter().product();
            format!(
                "{count} barrier{} of {num_arrivals} arrival{}",
                if count == 1 { "" } else { "s" },
                if *num_arrivals == 1 { "" } else { "s" }
            )
        }
        _ => format!("{:?}", data.shape.as_slice()),
    }
}
