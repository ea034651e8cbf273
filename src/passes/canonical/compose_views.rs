//! Brings views into their normal form.
//!
//! * Index steps in a row become one; one after a transpose becomes one before it. Starts are added by scalar ops before the op.
//! * Steps that do nothing are dropped.
//! * Barriers and semaphores are allocations of rank 1, and each use of one names its index: `[at i]`.
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::rewrite::{append_binary, append_convert, regions_of};
use crate::kernel_ir::*;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let shapes: Vec<Shape> = kernel.allocs.values().map(|data| data.shape.clone()).collect();
    for data in kernel.allocs.values_mut() {
        if matches!(data.elem(), Elem::Barrier | Elem::Semaphore) {
            data.shape = [num_elements(&data.shape)].as_slice().into();
        }
    }
    ComposeViews { kernel, shapes }.region_of_body()
}

struct ComposeViews<'a> {
    kernel: &'a mut Kernel,
    /// Of the allocations, before barriers and semaphores became flat.
    shapes: Vec<Shape>,
}

impl ComposeViews<'_> {
    fn region_of_body(&mut self) -> Result<()> {
        let body = self.kernel.body;
        self.region(body)
    }

    fn region(&mut self, region: Region) -> Result<()> {
        for op in std::mem::take(&mut self.kernel.regions[region].ops) {
            for inner in regions_of(self.kernel, op) {
                self.region(inner)?;
            }
            let loc = self.kernel.ops[op].loc;
            let mut kind = std::mem::replace(&mut self.kernel.ops[op].kind, OpKind::CommitGroup);
            let mut result = Ok(());
            visit::map_refs(&mut kind, &mut |r| {
                if result.is_ok() {
                    result = self.reference(r, region, loc);
                }
            });
            self.kernel.ops[op].kind = kind;
            result.map_err(|e| e.at(loc))?;
            self.kernel.regions[region].ops.push(op);
        }
        Ok(())
    }

    fn reference(&mut self, r: &mut RefUse, region: Region, loc: Loc) -> Result<()> {
        use cranelift_entity::EntityRef;
        let from = self.shapes[r.alloc.index()].clone();
        let mut steps: Vec<Step> = vec![];
        // The shape before the last step that was kept.
        let mut shapes: Vec<Shape> = vec![from.clone()];
        for step in std::mem::take(&mut r.steps) {
            self.push(&mut steps, &mut shapes, step, region, loc)?;
        }
        r.steps = steps;
        if matches!(r.elem, Elem::Barrier | Elem::Semaphore) {
            let flat = self.flat(&r.steps, &from, region, loc)?;
            r.steps = vec![Step::Index(vec![flat])];
            r.shape = match &r.steps[0] {
                Step::Index(dims) => dims.iter().filter_map(DimIndex::extent).collect(),
                _ => Shape::new(),
            };
        }
        Ok(())
    }

    /// Appends a step to a normal view.
    fn push(
        &mut self,
        steps: &mut Vec<Step>,
        shapes: &mut Vec<Shape>,
        step: Step,
        region: Region,
        loc: Loc,
    ) -> Result<()> {
        let shape = shapes.last().cloned().unwrap_or_default();
        let next = after(&shape, &step);
        match (steps.last(), step) {
            (_, Step::Index(dims))
                if dims.len() == shape.len() && dims.iter().zip(&shape).all(|(d, &n)| d.is_all(n)) => {}
            (_, Step::Transpose(p)) if p.iter().enumerate().all(|(i, &d)| i == d as usize) => {}
            (_, Step::Reshape(to)) if to == shape => {}
            (Some(Step::Index(first)), Step::Index(second)) => {
                let indexed = &shapes[shapes.len() - 2];
                if let Some(both) = self.compose((first.clone(), indexed), &second, region, loc) {
                    steps.pop();
                    shapes.pop();
                    self.push(steps, shapes, Step::Index(both), region, loc)?;
                } else {
                    steps.push(Step::Index(second));
                    shapes.push(next);
                }
            }
            (Some(Step::Transpose(p)), Step::Index(dims)) => {
                // Index the untransposed dimensions, then transpose those that are left.
                let p = p.clone();
                let mut before = vec![None; dims.len()];
                for (i, dim) in dims.iter().enumerate() {
                    before[p[i] as usize] = Some(dim.clone());
                }
                let before: Vec<DimIndex> = before.into_iter().flatten().collect();
                let stays: Vec<bool> = before.iter().map(|d| !matches!(d, DimIndex::At(_))).collect();
                let rank_of = |d: u32| stays[..d as usize].iter().filter(|&&s| s).count() as u32;
                let rest: Vec<u32> = p.iter().filter(|&&d| stays[d as usize]).map(|&d| rank_of(d)).collect();
                steps.pop();
                shapes.pop();
                self.push(steps, shapes, Step::Index(before), region, loc)?;
                self.push(steps, shapes, Step::Transpose(rest), region, loc)?;
            }
            (Some(Step::Transpose(p)), Step::Transpose(q)) => {
                let both = q.iter().map(|&d| p[d as usize]).collect();
                steps.pop();
                shapes.pop();
                self.push(steps, shapes, Step::Transpose(both), region, loc)?;
            }
            (Some(Step::Reshape(_)), Step::Reshape(to)) => {
                steps.pop();
                shapes.pop();
                self.push(steps, shapes, Step::Reshape(to), region, loc)?;
            }
            (_, step) => {
                steps.push(step);
                shapes.push(next);
            }
        }
        Ok(())
    }

    /// One index step, of these extents, that does what two do; none if an index array is in the way.
    fn compose(
        &mut self,
        (first, extents): (Vec<DimIndex>, &[u64]),
        second: &[DimIndex],
        region: Region,
        loc: Loc,
    ) -> Option<Vec<DimIndex>> {
        let mut rest = second.iter();
        let mut pairs = vec![];
        for (dim, &extent) in first.into_iter().zip(extents) {
            let then = if matches!(dim, DimIndex::At(_)) {
                None
            } else {
                Some(rest.next()?.clone())
            };
            let possible = match (&dim, &then) {
                (DimIndex::At(_), _) => true,
                (DimIndex::Gather(_), Some(then)) => matches!(
                    then,
                    DimIndex::Slice {
                        start: Index::Const(0),
                        stride: 1,
                        ..
                    }
                ),
                (DimIndex::Window { .. }, Some(then)) => {
                    matches!(then, DimIndex::Slice { stride: 1, .. } | DimIndex::Window { .. })
                }
                (DimIndex::Slice { stride, .. }, Some(then)) => match then {
                    DimIndex::At(_) => true,
                    // A strided slice has a static start.
                    DimIndex::Slice { start, .. } => *stride == 1 || matches!(start, Index::Const(_)),
                    DimIndex::Window { .. } => *stride == 1,
                    DimIndex::Gather(_) => false,
                },
                (_, None) => false,
            };
            if !possible {
                return None;
            }
            pairs.push((dim, then, extent));
        }
        let mut both = vec![];
        for pair in pairs {
            both.push(match pair {
                (DimIndex::Slice { start, size: _, stride }, Some(then), extent) => match then {
                    DimIndex::At(at) => {
                        let at = self.scale((at, extent), stride, region, loc);
                        DimIndex::At(self.add(start, (at, extent), region, loc))
                    }
                    DimIndex::Slice {
                        start: at,
                        size,
                        stride: inner,
                    } => {
                        let at = self.scale((at, extent), stride, region, loc);
                        let start = self.add(start, (at, extent), region, loc);
                        DimIndex::Slice {
                            start,
                            size,
                            stride: stride.saturating_mul(inner),
                        }
                    }
                    DimIndex::Window { start: at, size } => DimIndex::Window {
                        start: self.add(start, (at, extent), region, loc),
                        size,
                    },
                    DimIndex::Gather(_) => return None,
                },
                (
                    DimIndex::Window { start, .. },
                    Some(DimIndex::Slice { start: at, size, .. } | DimIndex::Window { start: at, size }),
                    extent,
                ) => DimIndex::Window {
                    start: self.add(start, (at, extent), region, loc),
                    size,
                },
                (dim, ..) => dim,
            });
        }
        // A strided slice with a dynamic start is no index step.
        let strided =
            |d: &DimIndex| matches!(d, DimIndex::Slice { start: Index::Value(_), stride, .. } if *stride != 1);
        if both.iter().any(strided) { None } else { Some(both) }
    }

    /// `a + b`, a position of so many: in i32 where both are and it counts those, else in i64.
    fn add(&mut self, a: Index, (b, positions): (Index, u64), region: Region, loc: Loc) -> Index {
        let (a, b) = match (a, b) {
            (Index::Const(0), x) | (x, Index::Const(0)) => return x,
            (Index::Const(a), Index::Const(b)) => return Index::Const(a.saturating_add(b)),
            (Index::Value(a), Index::Value(b)) => (a, b),
            (Index::Value(v), Index::Const(c)) | (Index::Const(c), Index::Value(v)) => {
                let c = self.int((v, positions), c, region, loc);
                (v, c)
            }
        };
        let dtype = |v: Value| self.kernel.ty(v).dtype();
        let common = if dtype(a) == DType::I32 && dtype(b) == DType::I32 && counts(positions) {
            DType::I32
        } else {
            DType::I64
        };
        let a = append_convert(self.kernel, region, a, common, loc);
        let b = append_convert(self.kernel, region, b, common, loc);
        Index::Value(append_binary(self.kernel, region, BinaryOp::Add, a, b, loc))
    }

    fn scale(&mut self, (a, positions): (Index, u64), by: u64, region: Region, loc: Loc) -> Index {
        match a {
            _ if by == 1 => a,
            Index::Const(a) => Index::Const(a.saturating_mul(by as i64)),
            Index::Value(v) => {
                let by = self.int((v, positions), by as i64, region, loc);
                let v = append_convert(self.kernel, region, v, self.kernel.ty(by).dtype(), loc);
                Index::Value(append_binary(self.kernel, region, BinaryOp::Mul, v, by, loc))
            }
        }
    }

    /// A constant to go with `v`: i32 if both, and what comes of them, are in its range.
    fn int(&mut self, (v, positions): (Value, u64), c: i64, region: Region, loc: Loc) -> Value {
        let small = self.kernel.ty(v).dtype() == DType::I32 && i32::try_from(c).is_ok() && counts(positions);
        self.kernel
            .append_int(region, if small { DType::I32 } else { DType::I64 }, c, loc)
    }

    /// The one index, or the range, that a use of barriers names in the flat array.
    fn flat(&mut self, steps: &[Step], shape: &[u64], region: Region, loc: Loc) -> Result<DimIndex> {
        let all: Vec<DimIndex>;
        let dims = match steps {
            [] => {
                all = shape.iter().map(|&n| DimIndex::all(n)).collect();
                &all
            }
            [Step::Index(dims)] => dims,
            _ => {
                return Err(Error::unsupported("a view of barriers or semaphores that is no index")
                    .remedy("index the array: ref.at[i]"));
            }
        };
        let mut index = Index::Const(0);
        let mut size = 1;
        let positions = num_elements(shape);
        for (dim, &extent) in dims.iter().zip(shape) {
            index = self.scale((index, positions), extent, region, loc);
            let start = match dim {
                DimIndex::At(at) => *at,
                DimIndex::Slice {
                    start,
                    size: n,
                    stride: 1,
                } if size == 1 || *n == extent => {
                    size *= n;
                    *start
                }
                DimIndex::Slice { .. } | DimIndex::Window { .. } | DimIndex::Gather(_) => {
                    return Err(
                        Error::unsupported("this slice of barriers or semaphores").remedy("index the array: ref.at[i]")
                    );
                }
            };
            if size > 1 && !matches!(dim, DimIndex::Slice { .. }) {
                return Err(
                    Error::unsupported("this slice of barriers or semaphores").remedy("index the array: ref.at[i]")
                );
            }
            index = self.add(index, (start, positions), region, loc);
        }
        Ok(if size == 1 {
            DimIndex::At(index)
        } else {
            DimIndex::Slice {
                start: index,
                size,
                stride: 1,
            }
        })
    }
}

/// Whether an i32 counts so many positions.
fn counts(positions: u64) -> bool {
    i32::try_from(positions).is_ok()
}

/// The shape after a step. An index array keeps its dimension's place; its extent is not needed here.
fn after(shape: &[u64], step: &Step) -> Shape {
    match step {
        Step::Index(dims) => dims
            .iter()
            .zip(shape)
            .filter_map(|(d, &n)| match d {
                DimIndex::Gather(_) => Some(n),
                DimIndex::At(_) | DimIndex::Slice { .. } | DimIndex::Window { .. } => d.extent(),
            })
            .collect(),
        Step::Transpose(p) => p.iter().map(|&d| shape[d as usize]).collect(),
        Step::Reshape(to) | Step::Bitcast { shape: to, .. } | Step::Im2Col { shape: to, .. } => to.clone(),
        Step::ExpandLeadingBatch(batch) => {
            let columns: u64 = num_elements(batch).max(1);
            batch.iter().copied().chain([shape[0], shape[1] / columns]).collect()
        }
        Step::ExtractAlias { member, .. } => member.shape.clone(),
        Step::Unswizzle(_) => shape.into(),
        Step::Untile(_) => shape.into(),
    }
}
