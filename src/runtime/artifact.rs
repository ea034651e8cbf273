//! A compiled kernel.
#[cfg(feature = "test-handlers")]
use super::buffers::BufferRole;
use super::buffers::BufferSpec;
use super::layout_map::Digits;
use super::pipeline::{CompileOptions, Compiled, LaidOut, SmemPlace};
use super::{assembler, cache, target_of};
use crate::assemble::{Assembled, Request};
use crate::cuda;
use crate::emulate::{self, Program, check::NoCheck};
use crate::error::{Error, Fault, Loc, RefId};
use crate::layout::Choice;
use crate::layout::relayout::{RelayoutKind, RelayoutPlan, Trip};
use crate::lock::lock;
use crate::lower::debug_print::Prints;
use crate::ptx;
use crate::ptx::launch::{EntryParam, LaunchSpec, TensorMapElement, TensorMapSpec, TensorMapSwizzle};
use crate::target::Target;
use serde::Serialize;
use serde_json::json;
use std::sync::{Arc, Mutex, OnceLock};

/// A step of compilation and its time.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    pub name: String,
    pub micros: u64,
}

/// A compiled kernel. Shared by all call sites with the same descriptor, target and options.
pub struct Artifact {
    /// SHA-256 of the descriptor, in hex.
    pub hash: String,
    pub options: CompileOptions,
    /// Kept, so that a device of another architecture can be compiled for.
    descriptor: Vec<u8>,
    debug: Vec<u8>,
    pub compiled: Compiled,
    pub phases: Vec<Phase>,
    /// What came of assembling. A failure is not remembered: the assembler may have been killed, or the disk been full.
    assembled: OnceLock<Option<Assembled>>,
    assembling: Mutex<()>,
    /// Of a kernel that parks accumulators, once it is known: the same with nothing parked, where that is better.
    pub(super) instead: OnceLock<Option<Arc<Artifact>>>,
    loaded: cuda::PerDevice,
    /// Decoded for the emulator at the first run.
    emulated: OnceLock<Result<Program, Error>>,
    /// The same without the checker.
    emulated_unchecked: OnceLock<Result<Program<NoCheck>, Error>>,
    names: OnceLock<Arc<emulate::Names>>,
}

/// Threads for assemblers, one for each core. Without them, a cubin is assembled when needed.
pub(super) fn assemblers() -> Option<&'static rayon::ThreadPool> {
    static POOL: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    let new = || {
        let named = rayon::ThreadPoolBuilder::new().thread_name(|i| format!("smalt-assemble-{i}"));
        named.build().ok()
    };
    POOL.get_or_init(new).as_ref()
}

/// What a change of layout takes, of each thread; `None`: nothing.
fn cost(plan: Option<&RelayoutPlan>) -> serde_json::Value {
    let (mut instructions, mut shuffles, mut trips, mut scratch) = (0, 0, 0, 0);
    match plan.map(|plan| &plan.kind) {
        None => {}
        Some(RelayoutKind::Registers(program)) => {
            (instructions, shuffles) = (program.ops.len(), program.shuffles());
        }
        Some(RelayoutKind::Scratch(through)) => {
            let moves = |trip: &Trip| trip.store.accesses.len() + trip.load.accesses.len();
            instructions = through.trips.iter().map(moves).sum();
            (trips, scratch) = (through.trips.len(), through.bytes);
        }
    }
    let relative = plan.map_or(0, |plan| plan.cost);
    json!({"instructions": instructions, "shuffles": shuffles, "trips": trips, "scratch_bytes": scratch, "relative": relative})
}

impl Artifact {
    pub(super) fn new(
        descriptor: &[u8],
        debug: &[u8],
        options: CompileOptions,
        compiled: Compiled,
        phases: Vec<Phase>,
    ) -> Artifact {
        Artifact {
            hash: cache::hash(descriptor),
            debug: if options.line_info || super::dump::wants_locations() {
                debug.to_vec()
            } else {
                Vec::new()
            },
            descriptor: descriptor.to_vec(),
            options,
            compiled,
            phases,
            assembled: OnceLock::new(),
            assembling: Mutex::new(()),
            instead: OnceLock::new(),
            loaded: cuda::PerDevice::default(),
            emulated: OnceLock::new(),
            emulated_unchecked: OnceLock::new(),
            names: OnceLock::new(),
        }
    }

    /// An artifact of PTX text of a user: no descriptor.
    pub fn from_ptx(name: &str, ptx: &str, launch: LaunchSpec, buffers: Vec<BufferSpec>, target: Target) -> Artifact {
        let compiled = Compiled {
            name: name.into(),
            flat: None,
            ptx: ptx.into(),
            launch,
            buffers,
            prints: Prints::default(),
            ranges: None,
            layouts: Vec::new(),
            traffic: Vec::new(),
            smem: Vec::new(),
            barriers: Vec::new(),
            out_of_order: Vec::new(),
            parked: None,
            notes: Vec::new(),
            wait_timeout_ns: 0,
            target,
            host: None,
        };
        let options = CompileOptions::for_target(compiled.target.name);
        Artifact::new(b"", b"", options, compiled, Vec::new())
    }

    /// The locations of the call site that was compiled first, where they were kept.
    pub(super) fn debug(&self) -> &[u8] {
        &self.debug
    }

    pub(super) fn descriptor(&self) -> &[u8] {
        &self.descriptor
    }

    pub fn launch(&self) -> &LaunchSpec {
        &self.compiled.launch
    }

    /// The kernel as the emulator executes it.
    pub fn emulated(&self) -> Result<&Program, Error> {
        self.emulated
            .get_or_init(|| self.decode())
            .as_ref()
            .map_err(Error::clone)
    }

    /// As [`Artifact::emulated`], for a run without the checker.
    pub fn emulated_unchecked(&self) -> Result<&Program<NoCheck>, Error> {
        let program = self.emulated_unchecked.get_or_init(|| self.decode());
        program.as_ref().map_err(Error::clone)
    }

    fn decode<H: emulate::check::Hooks>(&self) -> Result<Program<H>, Error> {
        match &self.compiled.flat {
            Some(flat) => Program::decode(flat),
            None => Program::decode(&self.parsed()?),
        }
    }

    /// What messages of the emulator call the kernel's buffers and barriers.
    pub fn names(&self) -> Arc<emulate::Names> {
        let exchange = self
            .launch()
            .exchange()
            .map(|_| (RefId::default(), "semaphores, and messages between devices".to_owned()));
        let place = |place: &SmemPlace| emulate::SmemName {
            offset: place.offset,
            bytes: place.bytes,
            of: place.of,
            per_arrival: place.per_arrival,
            text: match place.op {
                0 => place.what.clone(),
                op => format!("{}, op{op}", place.what),
            },
        };
        let names = || emulate::Names {
            per_device: 0,
            buffers: self
                .compiled
                .buffers
                .iter()
                .map(|spec| (spec.of, spec.in_words()))
                .chain(exchange)
                .collect(),
            smem: self.compiled.smem.iter().map(place).collect(),
        };
        self.names.get_or_init(|| Arc::new(names())).clone()
    }

    /// PTX text as the emulator can execute it: the subset that smalt prints.
    fn parsed(&self) -> Result<ptx::Flat, Error> {
        let launch = serde_json::to_string(&self.compiled.launch).map_err(|e| Error::internal(e.to_string()))?;
        let text = format!("// smalt.launch {launch}\n{}", self.compiled.ptx);
        let flat = ptx::parse::parse(&text).map_err(|e| Error::invalid(e.to_string()))?;
        let violations = ptx::verify_flat::run(&flat);
        // The emulator has its own words for these.
        let other = violations
            .iter()
            .find(|v| !matches!(v.rule, "wgmma_fence" | "in_flight"));
        match other {
            None => Ok(flat),
            Some(v) => Err(Error::invalid("PTX text breaks the rules of smalt's subset")
                .at(v.loc)
                .got(v.to_string())),
        }
    }

    /// The cubin; `None` where only the driver can assemble. Assembled once: a second caller waits.
    pub fn assembled(&self) -> Result<Option<&Assembled>, Error> {
        if let Some(assembled) = self.assembled.get() {
            return Ok(assembled.as_ref());
        }
        let _assembling = lock(&self.assembling);
        if let Some(assembled) = self.assembled.get() {
            return Ok(assembled.as_ref());
        }
        #[cfg(feature = "test-handlers")]
        self.provoke("assemble");
        let request = Request {
            ptx: &self.compiled.ptx,
            target: &self.options.target,
            line_info: self.options.line_info,
        };
        let assembled = assembler()?.assemble(request)?;
        super::dump::dump_assembled(self, assembled.as_ref());
        let assembled = self.assembled.get_or_init(|| assembled);
        super::dump::dump_report(self);
        // The cubin is the heavier half.
        cache::reweigh(&self.descriptor, &self.debug, self);
        Ok(assembled.as_ref())
    }

    /// Has the assembler run on another thread, when one is free; errors show when the cubin is needed.
    pub fn assemble_in_background(self: &Arc<Artifact>) {
        if self.assembled.get().is_some() {
            return;
        }
        let artifact = self.clone();
        let body = move || {
            // Kept in the cell, and reported where the cubin is needed.
            let _ = super::contain_panics(|| artifact.best()?.assembled().map(drop));
        };
        if let Some(pool) = assemblers() {
            pool.spawn(body);
        }
    }

    /// The kernel on the device whose context is current, loaded if need be.
    pub fn loaded(&self, device: i32) -> Result<&cuda::Loaded, Error> {
        self.loaded.get_or_load(device, || self.load())
    }

    fn load(&self) -> Result<cuda::Loaded, Error> {
        let device = cuda::DeviceInfo::current()?;
        let runs = Target::from_name(&self.options.target).is_some_and(|target| target.runs_on(device.capability));
        if !runs {
            return self.for_target(target_of(device.capability)?, &device)?.load();
        }
        self.best()?.load_for_its_target()
    }

    fn load_for_its_target(&self) -> Result<cuda::Loaded, Error> {
        let plan = plan(self.launch());
        match self.assembled()? {
            Some(assembled) => {
                let cubin = cuda::Loaded::load(plan.clone(), cuda::Image::Cubin(&assembled.cubin));
                // A cubin that this driver cannot read may still be PTX that it can.
                cubin.or_else(|error| match error.fault {
                    Fault::Environment => cuda::Loaded::load(plan, self.ptx_image()).map_err(|_| error),
                    _ => Err(error),
                })
            }
            None => cuda::Loaded::load(plan, self.ptx_image()),
        }
    }

    pub fn ptx_image(&self) -> cuda::Image<'_> {
        cuda::Image::Ptx {
            text: &self.compiled.ptx,
            line_info: self.options.line_info,
        }
    }

    /// The same kernel for this architecture, for a program that was lowered for another one.
    fn for_target(&self, target: &str, device: &cuda::DeviceInfo) -> Result<Arc<Artifact>, Error> {
        let options = CompileOptions {
            target: target.into(),
            ..self.options.clone()
        };
        let lowered = &self.options.target;
        let other = cache::compile(&self.descriptor, &self.debug, &options).map_err(|mut error| {
            error.what = format!(
                "a kernel lowered for {lowered} runs on {} ({target}): {}",
                device.name, error.what
            );
            error
        })?;
        if other.compiled.buffers != self.compiled.buffers {
            return Err(Error::new(
                Fault::Environment,
                format!(
                    "a kernel lowered for {lowered} needs other scratch buffers on {} ({target})",
                    device.name
                ),
            )
            .remedy("lower the program on this machine"));
        }
        Ok(other)
    }

    /// Registers, spills and warnings, as far as they are known without assembling.
    pub fn known_assembled(&self) -> Option<&Assembled> {
        self.assembled.get()?.as_ref()
    }

    /// Everything about the kernel, as JSON.
    pub fn report(&self, locations: &super::Locations) -> serde_json::Value {
        #[cfg(feature = "test-handlers")]
        self.provoke("report");
        let this = self.best_known();
        let assembled = this.known_assembled();
        let warnings = assembled.map(|assembled| {
            let one = |warning: &crate::assemble::Warning| {
                let mut value = json!(warning);
                value["at"] = json!(warning.op.and_then(|op| locations.line(op)));
                value
            };
            assembled.log.warnings.iter().map(one).collect::<Vec<_>>()
        });
        let with_line = |mut row: serde_json::Value| {
            let op = row["op"].as_u64().and_then(|op| u32::try_from(op).ok());
            row["at"] = json!(op.and_then(|op| locations.line(Loc(op))));
            row
        };
        let layouts = this.compiled.layouts.iter().map(|row| {
            let (ty, choice) = (row.ty.to_string(), row.choice.to_string());
            let cost = match &row.choice {
                Choice::Relayout { plan, .. } => Some(cost(plan.as_deref())),
                Choice::Registers(_) | Choice::Smem(_) => None,
            };
            let dtype = match &row.ty {
                LaidOut::Value(ty) => Some(ty.dtype().name()),
                LaidOut::Alloc(_) => None,
            };
            let (from, to) = match &row.choice {
                Choice::Registers(layout) => (None, Some(Digits::of(layout))),
                Choice::Relayout { from, to, .. } => (Some(Digits::of(from)), Some(Digits::of(to))),
                Choice::Smem(_) => (None, None),
            };
            with_line(json!({
                "what": row.what, "type": ty, "choice": choice, "why": &*row.why, "op": row.op,
                "dtype": dtype, "from": from, "digits": to, "cost": cost,
            }))
        });
        let layouts: Vec<serde_json::Value> = layouts.collect();
        let traffic = this.compiled.traffic.iter().map(|row| {
            with_line(json!({
                "what": row.op, "from": row.from.name(), "to": row.to.name(), "type": format!("{}{:?}", row.dtype, row.shape.as_slice()),
                "bytes": row.bytes, "instructions": row.instructions, "conflicts": row.conflicts,
                "sector_percent": row.sector_percent, "op": row.loc.0,
            }))
        });
        let traffic: Vec<serde_json::Value> = traffic.collect();
        let note = |note: &crate::kernel_ir::Note| {
            with_line(json!({"pass": note.pass, "what": note.what, "why": note.text, "op": note.loc.0}))
        };
        let notes = this.compiled.notes.iter().map(note).collect::<Vec<_>>();
        let devices = self
            .loaded
            .iter()
            .map(|(device, loaded)| json!({"device": device, "resources": loaded.resources(), "log": loaded.log()}));
        json!({
            "name": this.compiled.name,
            "hash": this.hash,
            "target": this.options.target,
            "line_info": this.options.line_info,
            "racecheck": this.options.racecheck,
            "launch": this.compiled.launch,
            "buffers": this.compiled.buffers,
            "ptx_bytes": this.compiled.ptx.len(),
            "phases": this.phases,
            "assembled": assembled,
            "warnings": warnings,
            "devices": devices.collect::<Vec<_>>(),
            "shared_memory": this.compiled.smem.iter().map(|place| with_line(json!(place))).collect::<Vec<_>>(),
            "barriers": this.compiled.barriers.iter().map(|loc| with_line(json!({"op": loc.0}))).collect::<Vec<_>>(),
            "out_of_order": this.compiled.out_of_order,
            "parked": this.compiled.parked,
            "occupancy": occupancy(this.launch(), &this.compiled.target, assembled.and_then(|assembled| assembled.log.registers)),
            "notes": {"layouts": layouts, "passes": notes},
            "traffic": traffic,
        })
    }

    /// Panics where the test kernel `panic_in_WHERE` is to.
    #[cfg(feature = "test-handlers")]
    pub fn provoke(&self, place: &str) {
        let name = std::str::from_utf8(&self.descriptor).ok();
        if name.and_then(|name| name.strip_prefix("smalt-test:panic_in_")) == Some(place) {
            panic!("a test panics in {place}");
        }
    }

    /// Bytes that the artifact holds, roughly: what the cache counts.
    pub(super) fn weight(&self) -> usize {
        let program = self.compiled.flat.as_ref().map_or(0, |flat| {
            flat.blocks.iter().map(|block| block.insts.len()).sum::<usize>() * size_of::<crate::ptx::flat::FlatInst>()
        });
        let cubin = self
            .known_assembled()
            .map_or(self.compiled.ptx.len(), |assembled| assembled.cubin.len());
        4096 + self.descriptor.len() + self.debug.len() + self.compiled.ptx.len() + program + cubin
    }
}

/// Blocks of a multiprocessor at once, and what limits them. `registers`: of a thread, where an assembler has reported them.
///
fn occupancy(launch: &LaunchSpec, target: &Target, registers: Option<u32>) -> serde_json::Value {
    let by_smem = target.blocks_by_smem(launch.smem_bytes.into()) as u32;
    let limits = [
        (Some(by_smem), "shared memory"),
        (
            registers.map(|n| target.blocks_by_registers(launch.block, n)),
            "registers",
        ),
        (Some(target.blocks_by_threads(launch.block)), "threads"),
        (Some(target.sm_blocks), "blocks"),
    ];
    let least = limits
        .iter()
        .filter_map(|(n, what)| Some(((*n)?, *what)))
        .min_by_key(|(n, _)| *n);
    let (blocks, limit) = least.unwrap_or((0, ""));
    json!({"blocks_per_multiprocessor": blocks, "limited_by": limit})
}

/// The launch in the driver's terms. Numbers are those of cuda.h.
pub fn plan(launch: &LaunchSpec) -> cuda::Plan {
    let map = |spec: &TensorMapSpec| cuda::TensorMap {
        buffer: spec.buffer,
        byte_offset: spec.byte_offset,
        data_type: match spec.element {
            TensorMapElement::U8 => 0,
            TensorMapElement::U16 => 1,
            TensorMapElement::U32 => 2,
            TensorMapElement::I32 => 3,
            TensorMapElement::U64 => 4,
            TensorMapElement::I64 => 5,
            TensorMapElement::F16 => 6,
            TensorMapElement::F32 => 7,
            TensorMapElement::F64 => 8,
            TensorMapElement::BF16 => 9,
        },
        dims: spec.dims.clone(),
        strides: spec.strides.clone(),
        box_dims: spec.box_dims.clone(),
        swizzle: match spec.swizzle {
            TensorMapSwizzle::None => 0,
            TensorMapSwizzle::B32 => 1,
            TensorMapSwizzle::B64 => 2,
            TensorMapSwizzle::B128 => 3,
        },
    };
    let param = |param: &EntryParam| match param {
        // A call site gives the profile's and the printer's behind the rows.
        EntryParam::Pointer { buffer } if launch.is_of_launch(*buffer) => cuda::Param::Pointer {
            buffer: buffer + launch.exchange().map_or(0, |exchange| exchange.exchanged.len() as u32),
        },
        EntryParam::Pointer { buffer } => cuda::Param::Pointer { buffer: *buffer },
        EntryParam::TensorMap(spec) => cuda::Param::TensorMap(map(spec)),
        // A call site gives them behind the exchange's block, the last buffer.
        EntryParam::Row { exchanged } => cuda::Param::Pointer {
            buffer: launch.exchange().map_or(0, |exchange| exchange.buffer + 1) + exchanged,
        },
    };
    cuda::Plan {
        entry: launch.entry.clone(),
        grid: launch.grid,
        cluster: launch.cluster,
        block: launch.block,
        smem_bytes: launch.smem_bytes,
        params: launch.params.iter().map(param).collect(),
        map_templates: launch.map_templates.iter().map(map).collect(),
        programmatic_launch: launch.uses_programmatic_launch,
    }
}

/// Kernels that tests of the wire use in place of descriptors: `smalt-test:NAME`.
#[cfg(feature = "test-handlers")]
pub(super) fn test_kernel(descriptor: &[u8]) -> Option<Result<Compiled, Error>> {
    use super::host::HostBuffer;
    fn run_add_one(buffers: &[HostBuffer]) -> Result<(), Error> {
        for i in 0..buffers[0].bytes as usize / 4 {
            // SAFETY: the call site has checked both buffers' sizes.
            unsafe {
                let value = buffers[0].address.cast::<f32>().add(i).read_unaligned() + 1.0;
                buffers[1].address.cast::<f32>().add(i).write_unaligned(value);
            }
        }
        Ok(())
    }
    let name = std::str::from_utf8(descriptor).ok()?.strip_prefix("smalt-test:")?;
    let kernel = |entry: &str, ptx: &str, grid, smem_bytes, roles: [BufferRole; 2], text: &str, bytes, params, host| {
        let buffer = |role| BufferSpec {
            role,
            bytes,
            text: text.into(),
            alias_of: (role == BufferRole::Output && roles[0] == BufferRole::Mutable).then_some(0),
            of: RefId::default(),
        };
        Compiled {
            name: entry.into(),
            flat: None,
            ptx: ptx.into(),
            launch: LaunchSpec {
                entry: entry.into(),
                grid,
                cluster: [1, 1, 1],
                block: 128,
                smem_bytes,
                params,
                scratch: Vec::new(),
                map_templates: vec![],
                uses_programmatic_launch: false,
                mesh: None,
                printer: None,
                profile: None,
                gives_up: None,
            },
            buffers: roles.map(buffer).to_vec(),
            prints: Prints::default(),
            ranges: None,
            layouts: Vec::new(),
            traffic: Vec::new(),
            smem: Vec::new(),
            barriers: Vec::new(),
            out_of_order: Vec::new(),
            parked: None,
            notes: Vec::new(),
            wait_timeout_ns: 0,
            target: Target::sm_90a(),
            host: Some(host),
        }
    };
    let pointer = |buffer| EntryParam::Pointer { buffer };
    let add_one = |roles, params, host| {
        let ptx = include_str!("../../tests/data/add_one.ptx");
        kernel("add_one", ptx, [8, 1, 1], 0, roles, "f32[1024]", 4096, params, host)
    };
    let plain = |host| {
        add_one(
            [BufferRole::Input, BufferRole::Output],
            vec![pointer(0), pointer(1)],
            host,
        )
    };
    // `add_one#7`: another kernel with the same behaviour.
    Some(match name.split('#').next() {
        Some("add_one") => Ok(plain(run_add_one)),
        Some("add_one_in_place") => {
            let roles = [BufferRole::Mutable, BufferRole::Output];
            Ok(add_one(roles, vec![pointer(0), pointer(0)], |buffers| {
                run_add_one(&[buffers[0], buffers[0]])
            }))
        }
        Some("tma_copy") => {
            let map = EntryParam::TensorMap(TensorMapSpec {
                buffer: 0,
                byte_offset: 0,
                element: TensorMapElement::F32,
                dims: [64, 64].into_iter().collect(),
                strides: [256].into_iter().collect(),
                box_dims: [32, 16].into_iter().collect(),
                swizzle: TensorMapSwizzle::B128,
            });
            let (ptx, roles) = (
                include_str!("../../tests/data/tma_copy.ptx"),
                [BufferRole::Input, BufferRole::Output],
            );
            let params = vec![map, pointer(1)];
            Ok(kernel(
                "tma_copy",
                ptx,
                [2, 4, 1],
                2064,
                roles,
                "f32[64,64]",
                16384,
                params,
                |buffers| {
                    // SAFETY: the call site has checked both buffers' sizes.
                    unsafe { std::ptr::copy(buffers[0].address, buffers[1].address, 16384) };
                    Ok(())
                },
            ))
        }
        Some("panic_in_compile") => panic!("a test panics in compile"),
        Some("panic_in_report" | "panic_in_ptx" | "panic_in_assemble" | "panic_in_release") => Ok(plain(run_add_one)),
        Some("panic_in_run") => Ok(plain(|_| panic!("a test panics in run"))),
        Some("invalid_in_run") => Ok(plain(|_| Err(Error::invalid("a test is invalid")))),
        Some("timeout_in_run") => Ok(plain(|_| Err(Error::new(Fault::Timeout, "a test did not end")))),
        Some("interrupted_in_run") => Ok(plain(|_| Err(Error::new(Fault::Interrupted, "a test was interrupted")))),
        Some("environment_in_run") => Ok(plain(|_| Err(Error::new(Fault::Environment, "a test lacks something")))),
        Some("error_in_run") => Ok(plain(|_| {
            Err(Error::new(Fault::Execution, "the kernel reads out of bounds")
                .at(crate::error::Loc(1))
                .expected("index < 64")
                .got("64"))
        })),
        _ => Err(Error::unsupported(format!("the test kernel `{name}`")).at(crate::error::Loc(1))),
    })
}

#[cfg(test)]
mod plans {
    use super::*;

    #[test]
    fn a_plan_has_the_launchs_templates() {
        let map = TensorMapSpec {
            buffer: 0,
            byte_offset: 0,
            element: TensorMapElement::BF16,
            dims: [64, 8].into_iter().collect(),
            strides: [128].into_iter().collect(),
            box_dims: [64, 4].into_iter().collect(),
            swizzle: TensorMapSwizzle::B128,
        };
        let text = json!({"entry": "k", "grid": [1, 1, 1], "cluster": [1, 1, 1], "block": 32, "smem_bytes": 0,
                          "params": [], "scratch": [], "uses_programmatic_launch": false});
        let mut launch: LaunchSpec = serde_json::from_value(text).unwrap();
        assert!(launch.map_templates.is_empty());
        assert!(serde_json::to_value(&launch).unwrap().get("map_templates").is_none());
        launch.map_templates = vec![map.clone(), map];
        launch.map_templates[1].box_dims[1] = 8;
        let back: LaunchSpec = serde_json::from_str(&serde_json::to_string(&launch).unwrap()).unwrap();
        assert_eq!(back, launch);
        let plan = plan(&launch);
        assert!(plan.params.is_empty());
        let boxes: Vec<_> = plan
            .map_templates
            .iter()
            .map(|m| (m.box_dims.to_vec(), m.swizzle, m.data_type))
            .collect();
        assert_eq!(boxes, [(vec![64, 4], 3, 9), (vec![64, 8], 3, 9)]);
    }
}
