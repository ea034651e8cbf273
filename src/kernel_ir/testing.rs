//! Kernels built by hand: for tests, here and in `tests/`.
use super::*;
use crate::dtype::DType;
use crate::error::Loc;

/// Builds a [`Kernel`] op by op.
pub struct KernelBuilder {
    pub kernel: Kernel,
    /// Where ops go.
    region: Region,
}

impl Default for KernelBuilder {
    fn default() -> KernelBuilder {
        KernelBuilder::new()
    }
}

impl KernelBuilder {
    pub fn new() -> KernelBuilder {
        let mut kernel = Kernel::empty("test", 1);
        kernel.stage = Stage::Normalized;
        kernel.compiler_params.fp_contract = FpContract::Off;
        kernel.semantics = Semantics {
            false_predicate_suppresses_arrival: false,
            tensor_core_barrier_tracks_copies: false,
            leader_tracked_last_axis_only: false,
            lowering: LoweringSemantics::Warpgroup,
        };
        KernelBuilder {
            region: kernel.body,
            kernel,
        }
    }

    fn axis(&mut self, size: u64, kind: AxisKind) -> Axis {
        self.kernel.axes.push(AxisData {
            name: String::new(),
            size,
            kind,
        })
    }
    pub fn grid(mut self, sizes: &[u64]) -> KernelBuilder {
        self.kernel.grid = sizes
            .iter()
            .enumerate()
            .map(|(i, &n)| self.axis(n, AxisKind::Grid(i as u32)))
            .collect();
        self
    }
    pub fn cluster(mut self, sizes: &[u64]) -> KernelBuilder {
        self.kernel.cluster = sizes
            .iter()
            .enumerate()
            .map(|(i, &n)| self.axis(n, AxisKind::Cluster(i as u32)))
            .collect();
        self
    }
    pub fn warpgroups(mut self, n: u32) -> KernelBuilder {
        self.kernel.num_warpgroups = n;
        self.kernel.thread_axis = Some(self.axis(u64::from(n), AxisKind::Thread));
        self
    }
    pub fn finish(self) -> Kernel {
        self.kernel
    }
    /// The kernel with everything in one scope of these allocations; the scope's region.
    pub fn finish_in_scope(mut self, allocs: &[Alloc]) -> (Kernel, Region) {
        let at = self.kernel.body;
        let body = self.kernel.new_region(self.kernel.regions[at].group);
        self.kernel.regions[body].ops = std::mem::take(&mut self.kernel.regions[at].ops);
        let (allocs, collective) = (allocs.to_vec(), false);
        self.kernel.append(
            at,
            OpKind::Scope {
                allocs,
                collective,
                body,
            },
            [],
            Loc::CALL_SITE,
        );
        (self.kernel, body)
    }

    /// A GMEM parameter.
    pub fn gmem(&mut self, dtype: DType, shape: &[u64], role: ParamRole) -> Alloc {
        let origin = GmemOrigin::Param(self.kernel.params.len() as u32);
        let alloc = self.kernel.allocs.push(AllocData {
            kind: AllocKind::Gmem { dtype, origin },
            shape: shape.into(),
            collective: true,
            within: None,
            owner: Owner::Author,
            loc: Loc::CALL_SITE,
        });
        let ty = Type::of(dtype, shape);
        self.kernel.params.push(ParamData {
            role,
            binding: ParamBinding::Alloc(alloc),
            ty,
        });
        alloc
    }
    pub fn input(&mut self, dtype: DType, shape: &[u64]) -> Alloc {
        self.gmem(dtype, shape, ParamRole::Input)
    }
    pub fn output(&mut self, dtype: DType, shape: &[u64]) -> Alloc {
        self.gmem(dtype, shape, ParamRole::Output { alias_of: None })
    }
    /// A scalar parameter.
    pub fn scalar(&mut self, dtype: DType) -> Value {
        let v = self.kernel.new_value(Type::Scalar(dtype), Group::Block);
        let body = self.kernel.body;
        self.kernel.regions[body].params.push(v);
        self.kernel.params.push(ParamData {
            role: ParamRole::Scalar,
            binding: ParamBinding::Scalar(v),
            ty: Type::Scalar(dtype),
        });
        v
    }
    /// Shared memory that lives as long as the kernel.
    pub fn smem(&mut self, dtype: DType, shape: &[u64], transforms: Option<SmemTransforms>) -> Alloc {
        self.kernel.allocs.push(AllocData {
            kind: AllocKind::Smem { dtype, transforms },
            shape: shape.into(),
            collective: true,
            within: None,
            owner: Owner::Author,
            loc: Loc::CALL_SITE,
        })
    }

    /// Mbarriers of which one arrival completes a phase.
    pub fn barriers(&mut self, n: u64) -> Alloc {
        self.kernel.allocs.push(AllocData {
            kind: AllocKind::Barrier {
                num_arrivals: 1,
                orders_tensor_core: false,
                cluster: None,
            },
            shape: Shape::from_slice(&[n]),
            collective: true,
            within: None,
            owner: Owner::Author,
            loc: Loc::CALL_SITE,
        })
    }

    /// The whole of an allocation.
    pub fn whole(&self, alloc: Alloc) -> RefUse {
        let data = &self.kernel.allocs[alloc];
        RefUse {
            alloc,
            steps: vec![],
            place: Place::Here,
            elem: data.elem(),
            shape: data.shape.clone(),
        }
    }
    /// An indexed part of an allocation.
    pub fn indexed(&self, alloc: Alloc, dims: Vec<DimIndex>) -> RefUse {
        let shape = dims
            .iter()
            .filter_map(|d| match d {
                DimIndex::At(_) => None,
                DimIndex::Slice { size, .. } | DimIndex::Window { size, .. } => Some(*size),
                DimIndex::Gather(_) => panic!("no gathers here"),
            })
            .collect();
        RefUse {
            steps: vec![Step::Index(dims)],
            shape,
            ..self.whole(alloc)
        }
    }

    /// A new op with results of these types.
    pub fn op(&mut self, kind: OpKind, results: &[Type]) -> Vec<Value> {
        let loc = Loc(self.kernel.ops.len() as u32 + 1);
        self.kernel
            .append(self.region, kind, results.iter().cloned(), loc)
            .to_vec()
    }
    /// A new op with one result.
    pub fn op1(&mut self, kind: OpKind, dtype: DType, shape: &[u64]) -> Value {
        self.op(kind, &[Type::of(dtype, shape)])[0]
    }
    pub fn load(&mut self, src: RefUse) -> Value {
        let dtype = src.dtype().expect("data");
        let shape = src.shape.clone();
        self.op1(OpKind::Load { src }, dtype, &shape)
    }
    pub fn store(&mut self, dst: RefUse, value: Value) {
        self.op(OpKind::Store { dst, value }, &[]);
    }
    pub fn int(&mut self, dtype: DType, x: i64) -> Value {
        let loc = Loc(self.kernel.ops.len() as u32 + 1);
        self.kernel.append_int(self.region, dtype, x, loc)
    }
    /// Ops of `f` go to a new region of this group; its parameters have these types.
    pub fn region(
        &mut self,
        group: Group,
        params: &[Type],
        f: impl FnOnce(&mut KernelBuilder, &[Value]) -> Vec<Value>,
    ) -> Region {
        let region = self.kernel.new_region(group);
        let params: Vec<Value> = params.iter().map(|t| self.kernel.new_value(t.clone(), group)).collect();
        self.kernel.regions[region].params = params.clone();
        let outside = std::mem::replace(&mut self.region, region);
        let results = f(self, &params);
        self.region = outside;
        self.kernel.regions[region].results = results;
        region
    }
}
