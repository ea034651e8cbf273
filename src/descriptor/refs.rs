//! Uses of references: transforms → views, device ids → logical ids.
use super::decode::{damaged, newer};
use super::import::{Binding, Importer};
use super::types::{dtype, shape};
use super::{proto, types};
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::*;

impl Importer {
    /// A reference with its transforms. Ops for device ids go to the end of `region`.
    pub fn ref_use(&mut self, r: &proto::RefUse, region: Region, loc: Loc) -> Result<RefUse> {
        let mut u = match self.binding(r.value)? {
            Binding::Ref(base) => base.clone(),
            Binding::Value(_) => return Err(damaged(format!("value id {} is no reference", r.value))),
            Binding::Free | Binding::OutOfScope => unreachable!("binding() refuses them"),
        };
        for t in &r.transforms {
            self.transform(&mut u, t, region, loc)?;
        }
        Ok(u)
    }

    fn transform(&mut self, u: &mut RefUse, t: &proto::Transform, region: Region, loc: Loc) -> Result<()> {
        use proto::transform::Kind;
        let Some(kind) = &t.kind else {
            return Err(newer("a transform of a reference"));
        };
        let (step, new_shape) = match kind {
            Kind::ExtractAlias(e) => return self.extract_alias(u, e, loc),
            Kind::Unswizzle(s) => (Step::Unswizzle(swizzle(s.bytes)?), u.shape.clone()),
            Kind::Untile(t) => {
                let tiling = shape(&t.tiling)?;
                let logical = untiled(&u.shape, &tiling)?;
                let of_view = |step: &Step| !matches!(step, Step::ExtractAlias { .. } | Step::Unswizzle(_));
                if u.steps.iter().any(of_view) {
                    // Tiles that lie in another order: each dimension's two are brought together, and joined.
                    u.steps.push(Step::Transpose(tiles_beside(u.shape.len(), tiling.len())));
                    (Step::Reshape(logical.clone()), logical)
                } else {
                    (Step::Untile(tiling), logical)
                }
            }
            Kind::Index(index) => return self.index(u, index, region, loc),
            Kind::Transpose(t) => {
                let permuted = view::permuted(&u.shape, &t.permutation);
                let permuted = permuted.ok_or_else(|| damaged(format!("the permutation {:?}", t.permutation)))?;
                (Step::Transpose(t.permutation.clone()), permuted)
            }
            Kind::Reshape(r) => {
                let new = shape(&r.shape)?;
                if num_elements(&new) != num_elements(&u.shape) {
                    return Err(damaged("a reshape of a reference")
                        .expected(format!("{} elements", num_elements(&u.shape)))
                        .got(format!("shape {:?}", r.shape)));
                }
                (Step::Reshape(new.clone()), new)
            }
            Kind::Bitcast(b) => {
                let to = dtype(b.dtype)?;
                let Some(from) = u.dtype() else {
                    return Err(damaged("a bitcast of barriers"));
                };
                let mut new = u.shape.clone();
                if from.bits() != to.bits() {
                    // JAX counts other elements in the dimension before the last.
                    let rows = new.len().checked_sub(2).map(|d| &mut new[d]);
                    let fits = |n: u64| (n * u64::from(from.bits())).is_multiple_of(u64::from(to.bits()));
                    match rows {
                        Some(rows) if fits(*rows) => *rows = *rows * u64::from(from.bits()) / u64::from(to.bits()),
                        _ => {
                            return Err(Error::invalid(format!("a bitcast of a reference from {from} to {to}"))
                                .expected("a whole number of elements in the dimension before the last")
                                .got(words::of_use(&self.kernel, u))
                                .remedy("load it, and bitcast the array (jax.lax.bitcast_convert_type)"));
                        }
                    }
                }
                u.elem = Elem::Data(to);
                // The rank is the same and the bits are, so limits hold up to the ratio of the widths.
                let new = shape(&new)?;
                (
                    Step::Bitcast {
                        dtype: to,
                        shape: new.clone(),
                    },
                    new,
                )
            }
            Kind::ExpandLeadingBatch(e) => {
                let batch = shape(&e.shape)?;
                let columns = num_elements(&batch);
                let [m, n] = u.shape.as_slice() else {
                    return Err(damaged("expand_leading_batch of a reference that is not of rank 2"));
                };
                if columns == 0 || n % columns != 0 {
                    return Err(damaged("expand_leading_batch: the batch does not divide the columns"));
                }
                let mut new = batch.clone();
                new.extend([*m, n / columns]);
                (Step::ExpandLeadingBatch(batch), shape(&new)?)
            }
            Kind::Im2col(_) => {
                return Err(Error::unsupported("im2col references")
                    .remedy("go over the window in a loop, a copy for each of its places"));
            }
            Kind::Peer(p) => {
                let device = p.device.as_ref().ok_or_else(|| damaged("a peer without a device"))?;
                match proto::DeviceIdType::try_from(p.r#type) {
                    Ok(proto::DeviceIdType::Logical | proto::DeviceIdType::Mesh) => {}
                    Ok(proto::DeviceIdType::Unspecified) => return Err(damaged("a device id of no type")),
                    Err(_) => return Err(newer("a device id's type")),
                }
                let device = self.device_id(device, region, loc)?;
                return set_place(u, self.peer(device));
            }
            Kind::Multicast(m) => {
                let axes = m.axes.iter().map(|&id| self.axis(id)).collect::<Result<Vec<_>>>()?;
                for &axis in &axes {
                    if !matches!(self.kernel.axes[axis].kind, AxisKind::DeviceMesh(_)) {
                        return Err(damaged(
                            "a multicast reference over an axis that is not of the device mesh",
                        ));
                    }
                }
                return set_place(u, Place::Multicast { axes });
            }
            Kind::Cluster(c) => {
                if c.axes.len() != c.indices.len() {
                    return Err(damaged("a cluster reference with axes and indices of different number"));
                }
                let axes = c
                    .axes
                    .iter()
                    .map(|&id| self.cluster_axis(id))
                    .collect::<Result<Vec<_>>>()?;
                let mut indices = vec![];
                for operand in &c.indices {
                    indices.push(self.index_scalar(operand, region, loc)?);
                }
                return set_place(u, Place::Cluster { axes, indices });
            }
            Kind::Tile(_) | Kind::Swizzle(_) | Kind::Identity(_) | Kind::CollapseLeadingBatch(_) => {
                return Err(damaged("a transform of an allocation on a use"));
            }
        };
        u.steps.push(step);
        u.shape = new_shape;
        Ok(())
    }

    /// The member of a union.
    fn extract_alias(&mut self, u: &mut RefUse, e: &proto::ExtractAlias, loc: Loc) -> Result<()> {
        let nested = u.steps.iter().all(|s| matches!(s, Step::ExtractAlias { .. }));
        let union = &self.kernel.allocs[u.alloc];
        let (bytes, tmem) = match (&union.kind, union.shape.as_slice()) {
            (AllocKind::Smem { dtype: DType::I8, .. }, [bytes]) => (*bytes, false),
            (AllocKind::Tmem { dtype: DType::I32, .. }, [128, columns]) => (*columns, true),
            _ => return Err(damaged("extract_alias of a reference that is no union")),
        };
        if !nested {
            return Err(damaged("extract_alias after another transform"));
        }
        // A member of a nested union is placed relative to it, so offsets add up.
        let (outer, outer_group) = match u.steps.last() {
            Some(Step::ExtractAlias { offset, group, .. }) => (*offset, *group),
            _ => (0, e.group),
        };
        let offset = outer
            .checked_add(e.offset)
            .ok_or_else(|| damaged("a union's member outside of it"))?;
        let member = match &e.r#type {
            Some(r) => {
                let member = self.alloc_data(r, GmemOrigin::Scratch { global: false }, union.collective, loc)?;
                if !member.is_smem() && !member.is_tmem() && !member.is_barrier() {
                    return Err(damaged("a union's member in another memory space"));
                }
                member
            }
            None => AllocData {
                kind: if tmem {
                    let layout = e.tmem_layout.as_ref().map(types::layout).transpose()?;
                    AllocKind::Tmem {
                        dtype: dtype(e.dtype)?,
                        layout,
                        collective_mma: false,
                    }
                } else {
                    AllocKind::Smem {
                        dtype: dtype(e.dtype)?,
                        transforms: None,
                    }
                },
                shape: shape(&e.shape)?,
                collective: union.collective,
                within: None,
                owner: Owner::Author,
                loc: union.loc,
            },
        };
        if !tmem {
            let size = match member.elem() {
                Elem::Data(dtype) => dtype.bytes(num_elements(&member.shape)),
                Elem::Barrier => num_elements(&member.shape).checked_mul(8),
                Elem::Semaphore => None,
            };
            if size.and_then(|n| n.checked_add(offset)).is_none_or(|end| end > bytes) {
                return Err(damaged("a union's member outside of it"));
            }
        }
        u.elem = member.elem();
        u.shape = member.shape.clone();
        u.steps = vec![Step::ExtractAlias {
            offset,
            group: outer_group,
            member: Box::new(member),
        }];
        Ok(())
    }

    fn index(&mut self, u: &mut RefUse, index: &proto::Index, region: Region, loc: Loc) -> Result<()> {
        use proto::dim_index::Kind;
        if index.shape != u.shape.as_slice() || index.dims.len() != u.shape.len() {
            return Err(damaged("an index of a reference of another shape")
                .expected(format!("{:?}", u.shape.as_slice()))
                .got(format!("{:?}", index.shape)));
        }
        let checked = !self.kernel.allocs[u.alloc].is_gmem();
        let named = words::of_alloc(&self.kernel, u.alloc);
        let mut dims = vec![];
        let mut result = Shape::new();
        // What a slice with a stride and a dynamic start lies in is taken first.
        let mut hulls: Vec<DimIndex> = u.shape.iter().map(|&n| DimIndex::all(n)).collect();
        for (d, (dim, &extent)) in index.dims.iter().zip(&u.shape).enumerate() {
            let outside = |what: String| {
                Error::invalid(format!("an index outside of its reference, dimension {d}"))
                    .expected(format!("within 0..{extent}"))
                    .got(format!("{what} of {named}"))
                    .remedy("index what the reference has")
            };
            let dim = match &dim.kind {
                None => return Err(newer("an index of a dimension")),
                Some(Kind::At(at)) => {
                    let at = self.index_operand(at, region, loc)?;
                    if let Index::Const(i) = at
                        && !u64::try_from(i).is_ok_and(|i| i < extent)
                    {
                        return Err(outside(i.to_string()));
                    }
                    DimIndex::At(at)
                }
                Some(Kind::Gather(array)) => {
                    let v = self.value(array, region, loc)?;
                    let ty = self.kernel.ty(v);
                    if ty.is_scalar() || !ty.dtype().is_int() {
                        return Err(damaged("an array of indices").expected("integers").got(ty.to_string()));
                    }
                    DimIndex::Gather(v)
                }
                Some(Kind::Slice(s)) => {
                    use proto::slice::{Size, Start};
                    let size = match &s.size {
                        None => 0,
                        Some(Size::StaticSize(n)) => *n,
                        Some(Size::DynamicSize(_)) => {
                            return Err(Error::unsupported(format!(
                                "a slice of dynamic size, of dimension {d} of {named}"
                            ))
                            .remedy("take the largest size, and choose with jnp.where what counts"));
                        }
                    };
                    if s.stride == 0 || s.stride > i64::MAX as u64 {
                        return Err(damaged(format!("a slice of stride {}", s.stride)));
                    }
                    if s.window {
                        let start = match &s.start {
                            Some(Start::DynamicStart(x)) => self.index_operand(x, region, loc)?,
                            None => Index::Const(0),
                            Some(Start::StaticStart(x)) => {
                                Index::Const(i64::try_from(*x).map_err(|_| outside(x.to_string()))?)
                            }
                        };
                        if s.stride != 1 {
                            return Err(damaged("a window with a stride"));
                        }
                        result.push(size);
                        dims.push(DimIndex::Window { start, size });
                        continue;
                    }
                    let mut start = match &s.start {
                        None => Index::Const(0),
                        Some(Start::StaticStart(x)) => {
                            Index::Const(i64::try_from(*x).map_err(|_| outside(x.to_string()))?)
                        }
                        Some(Start::DynamicStart(x)) => self.index_operand(x, region, loc)?,
                    };
                    if size > extent && (checked || matches!(start, Index::Const(_))) {
                        return Err(outside(format!("{size} positions")));
                    }
                    // GMEM copies may reach outside on purpose.
                    if let Index::Const(x) = start {
                        let last = size.saturating_sub(1).checked_mul(s.stride);
                        let end = u64::try_from(x)
                            .ok()
                            .zip(last)
                            .and_then(|(x, last)| x.checked_add(last));
                        let inside = end.is_some_and(|end| if size == 0 { end <= extent } else { end < extent });
                        if !inside {
                            return Err(outside(format!("{x} + {size} positions at stride {}", s.stride)));
                        }
                    } else if s.stride != 1 {
                        let between = size.saturating_sub(1).checked_mul(s.stride);
                        let hull = between.map(|n| n.saturating_add(size.min(1))).filter(|&n| n <= extent);
                        let Some(hull) = hull else {
                            return Err(outside(format!("{size} positions at stride {}", s.stride)));
                        };
                        hulls[d] = DimIndex::Slice {
                            start,
                            size: hull,
                            stride: 1,
                        };
                        start = Index::Const(0);
                    }
                    result.push(size);
                    DimIndex::Slice {
                        start,
                        size,
                        stride: s.stride,
                    }
                }
            };
            dims.push(dim);
        }
        let extents = std::mem::take(&mut u.shape);
        u.shape = match super::indexed::gathered_shape(&self.kernel, &dims)? {
            Some((_, _, whole)) => whole,
            None => shape(&result)?,
        };
        if hulls.iter().zip(&extents).any(|(hull, &n)| !hull.is_all(n)) {
            u.steps.push(Step::Index(hulls));
        }
        u.steps.push(Step::Index(dims));
        Ok(())
    }

    /// An integer scalar operand; a literal gives its number.
    fn index_operand(&mut self, operand: &proto::Operand, region: Region, loc: Loc) -> Result<Index> {
        let v = self.index_scalar(operand, region, loc)?;
        Ok(match self.kernel.facts(v).as_constant() {
            Some(x) if matches!(operand.kind, Some(proto::operand::Kind::Literal(_))) => Index::Const(x),
            _ => Index::Value(v),
        })
    }

    fn index_scalar(&mut self, operand: &proto::Operand, region: Region, loc: Loc) -> Result<Value> {
        let v = self.value(operand, region, loc)?;
        let ty = self.kernel.ty(v);
        if !ty.is_scalar() || !ty.dtype().is_int() {
            return Err(damaged("an index").expected("an integer scalar").got(ty.to_string()));
        }
        Ok(v)
    }

    /// The logical id (i32) of a device.
    pub fn device_id(&mut self, d: &proto::DeviceId, region: Region, loc: Loc) -> Result<Value> {
        use proto::device_id::Kind;
        match &d.kind {
            None => Err(newer("a device id")),
            Some(Kind::Logical(id)) => {
                let v = self.index_scalar(id, region, loc)?;
                Ok(self.as_i32(v, region, loc))
            }
            Some(Kind::Mesh(list)) => {
                if list.ids.len() != self.kernel.device_mesh.len() {
                    return Err(damaged("a device id with another number of axes than the device mesh"));
                }
                let mut coordinates = vec![];
                for id in &list.ids {
                    let v = self.index_scalar(id, region, loc)?;
                    coordinates.push(self.as_i32(v, region, loc));
                }
                Ok(self.linear_device(&coordinates, region, loc))
            }
            Some(Kind::Axes(dict)) => {
                let mesh = self.kernel.device_mesh.clone();
                let mut coordinates: Vec<Option<Value>> = vec![None; mesh.len()];
                for entry in &dict.entries {
                    let id = entry
                        .id
                        .as_ref()
                        .ok_or_else(|| damaged("a device id's entry without an index"))?;
                    let v = self.index_scalar(id, region, loc)?;
                    let mut rest = self.as_i32(v, region, loc);
                    // Several axes of one entry: the index is linear over them, the last one fastest.
                    for (i, &axis) in entry.axes.iter().enumerate().rev() {
                        let axis = self.axis(axis)?;
                        let Some(position) = mesh.iter().position(|&a| a == axis) else {
                            return Err(damaged("a device id over an axis that is not of the device mesh"));
                        };
                        let size = self.kernel.axes[axis].size;
                        let own = if i == 0 {
                            rest
                        } else {
                            let size = self.kernel.append_int(region, DType::I32, size as i64, loc);
                            let own = self.i32_op(BinaryOp::Rem, rest, size, region, loc);
                            rest = self.i32_op(BinaryOp::Div, rest, size, region, loc);
                            own
                        };
                        if coordinates[position].replace(own).is_some() {
                            return Err(damaged("a device id with an axis twice"));
                        }
                    }
                }
                let mut all = vec![];
                for (coordinate, &axis) in coordinates.into_iter().zip(&mesh) {
                    all.push(coordinate.unwrap_or_else(|| {
                        let ty = Type::Scalar(DType::I32);
                        self.kernel.append1(region, OpKind::AxisIndex { axis }, ty, loc)
                    }));
                }
                Ok(self.linear_device(&all, region, loc))
            }
        }
    }

    /// Another device; the only one there is, is this one.
    pub fn peer(&self, device: Value) -> Place {
        match self.kernel.devices() {
            1 => Place::Here,
            _ => Place::Peer { device },
        }
    }

    /// The logical id of the device with these coordinates, one for each axis of the mesh.
    pub fn linear_device(&mut self, coordinates: &[Value], region: Region, loc: Loc) -> Value {
        let mut linear = self.kernel.append_int(region, DType::I32, 0, loc);
        for (&c, axis) in coordinates.iter().zip(self.kernel.device_mesh.clone()) {
            let size = self.kernel.axes[axis].size as i64;
            let size = self.kernel.append_int(region, DType::I32, size, loc);
            let scaled = self.i32_op(BinaryOp::Mul, linear, size, region, loc);
            linear = self.i32_op(BinaryOp::Add, scaled, c, region, loc);
        }
        linear
    }

    /// An operation of two i32.
    pub fn i32_op(&mut self, op: BinaryOp, a: Value, b: Value, region: Region, loc: Loc) -> Value {
        self.kernel
            .append1(region, OpKind::Binary { op, a, b }, Type::Scalar(DType::I32), loc)
    }

    pub fn as_i32(&mut self, v: Value, region: Region, loc: Loc) -> Value {
        if self.kernel.ty(v).dtype() == DType::I32 {
            return v;
        }
        self.kernel
            .append1(region, OpKind::Convert { a: v }, Type::Scalar(DType::I32), loc)
    }
}

fn set_place(u: &mut RefUse, place: Place) -> Result<()> {
    if u.place != Place::Here {
        return Err(
            Error::unsupported("a reference in two places (peer, multicast, cluster) at once")
                .remedy("name one place for a reference"),
        );
    }
    u.place = place;
    Ok(())
}

/// Checks a swizzle width.
pub fn swizzle(bytes: u32) -> Result<u32> {
    match bytes {
        16 | 32 | 64 | 128 => Ok(bytes),
        _ => Err(damaged(format!("a swizzle of {bytes} bytes"))),
    }
}

/// The logical shape of a tiled one: `(…, dᵢ/tᵢ…, tᵢ…)` → `(…, dᵢ…)`.
pub fn untiled(physical: &[u64], tiling: &[u64]) -> Result<Shape> {
    let r = tiling.len();
    if r == 0 || physical.len() < 2 * r || physical[physical.len() - r..] != *tiling {
        return Err(damaged("a tiling that is not its reference's")
            .expected(format!("the last {r} extents of {physical:?}"))
            .got(format!("{tiling:?}")));
    }
    let outer = &physical[..physical.len() - r];
    let mut logical: Shape = outer.into();
    let batch = outer.len() - r;
    for (d, t) in logical[batch..].iter_mut().zip(tiling) {
        *d *= t;
    }
    shape(&logical)
}

/// `(…, c₀, c₁, t₀, t₁)` → `(…, c₀, t₀, c₁, t₁)`
fn tiles_beside(rank: usize, tiled: usize) -> Vec<u32> {
    let batch = rank - 2 * tiled;
    let pairs = (batch..batch + tiled).flat_map(|d| [d, d + tiled]);
    (0..batch).chain(pairs).map(|d| d as u32).collect()
}
