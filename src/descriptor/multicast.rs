//! References to one array on several devices: what is done to all of them is done to one after the other.
//!
//! No hardware is asked for: a loop over the devices is right wherever they can address each other, and gives every device the same
//! bits, since reductions take the devices in the order of their positions in the mesh.
use super::import::Importer;
use super::op_reader::OpReader;
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::*;

/// Devices of a multicast reference: what is done to them is written out.
const MOST_MEMBERS: usize = 256;

/// A use of a multicast reference as uses of each device's array, by position.
pub fn members(importer: &mut Importer, u: &RefUse, region: Region, loc: Loc) -> Result<Vec<RefUse>> {
    let Place::Multicast { axes } = &u.place else {
        return Ok(vec![u.clone()]);
    };
    let size = |axis: &Axis| importer.kernel.axes[*axis].size;
    let count = axes.iter().map(size).fold(1u64, u64::saturating_mul);
    if count > MOST_MEMBERS as u64 {
        return Err(Error::unsupported("a multicast reference to so many devices")
            .expected(format!("at most {MOST_MEMBERS}"))
            .got(count.to_string())
            .remedy("go over the devices in a loop, with plgpu.remote_ref"));
    }
    let mesh = importer.kernel.device_mesh.clone();
    // The device with this one's coordinates on the other axes, and 0 on these; and how far the others are from it.
    let mut coordinates = vec![];
    let mut offsets = vec![0i64];
    let mut stride = importer.kernel.devices();
    for axis in mesh {
        let size = importer.kernel.axes[axis].size as u32;
        stride /= size.max(1);
        if axes.contains(&axis) {
            coordinates.push(importer.kernel.append_int(region, DType::I32, 0, loc));
            let own = |base: &i64| (0..size).map(|i| base + i64::from(i * stride)).collect::<Vec<_>>();
            offsets = offsets.iter().flat_map(own).collect();
        } else {
            let ty = Type::Scalar(DType::I32);
            coordinates.push(importer.kernel.append1(region, OpKind::AxisIndex { axis }, ty, loc));
        }
    }
    let first = importer.linear_device(&coordinates, region, loc);
    let member = |offset: i64| {
        let offset = importer.kernel.append_int(region, DType::I32, offset, loc);
        let device = importer.i32_op(BinaryOp::Add, first, offset, region, loc);
        let place = importer.peer(device);
        RefUse { place, ..u.clone() }
    };
    Ok(offsets.into_iter().map(member).collect())
}

/// An op as ops without multicast references, where that is possible; those with results stay one.
pub fn expand(r: &mut OpReader<'_>, kind: OpKind) -> Result<Vec<OpKind>> {
    let mut of = |u: &RefUse| members(r.importer, u, r.region, r.loc);
    let is_multicast = |u: &RefUse| matches!(u.place, Place::Multicast { .. });
    if let OpKind::Store { dst, value } = &kind
        && is_multicast(dst)
    {
        let one = |dst| OpKind::Store { dst, value: *value };
        return Ok(of(dst)?.into_iter().map(one).collect());
    }
    if let OpKind::AtomicUpdate { op, dst, value } = &kind
        && is_multicast(dst)
    {
        let one = |dst| OpKind::AtomicUpdate {
            op: *op,
            dst,
            value: *value,
        };
        return Ok(of(dst)?.into_iter().map(one).collect());
    }
    if let OpKind::CopySmemToGmem {
        by_threads: false,
        src,
        dst,
        reduction,
        commit_group,
        predicate,
    } = &kind
        && is_multicast(dst)
    {
        let all = of(dst)?;
        let last = all.len() - 1;
        // One group, as it would be with one copy.
        let one = |(i, dst)| OpKind::CopySmemToGmem {
            by_threads: false,
            src: src.clone(),
            dst,
            reduction: *reduction,
            commit_group: *commit_group && i == last,
            predicate: *predicate,
        };
        return Ok(all.into_iter().enumerate().map(one).collect());
    }
    if let OpKind::SemaphoreSignal {
        semaphore,
        value,
        scope,
    } = &kind
        && is_multicast(semaphore)
    {
        let signals = of(semaphore)?.into_iter().map(|semaphore| (semaphore, *value));
        return Ok(vec![OpKind::SemaphoreSignalParallel {
            signals: signals.collect(),
            scope: *scope,
        }]);
    }
    Ok(vec![kind])
}

/// The reduction of an array over the devices of a multicast reference, as a value.
///
/// Sums of 16-bit floats are made in f32 and rounded once.
pub fn reduce(r: &mut OpReader<'_>, op: ReduceOp, src: &RefUse) -> Result<Value> {
    let binary = match op {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::And => BinaryOp::And,
        ReduceOp::Or => BinaryOp::Or,
        ReduceOp::Xor => BinaryOp::Xor,
        ReduceOp::Prod => return Err(Error::internal("a product over devices").at(r.loc)),
    };
    let Elem::Data(dtype) = src.elem else {
        return Err(Error::internal("a reduction of semaphores").at(r.loc));
    };
    let ty = Type::of(dtype, src.shape.clone());
    let narrow = binary == BinaryOp::Add && dtype.is_float() && dtype.bits() < 32;
    let wide = ty.with_dtype(if narrow { DType::F32 } else { dtype });
    let mut sum = None;
    for src in members(r.importer, src, r.region, r.loc)? {
        let mut x = r.emit1(OpKind::Load { src }, ty.clone());
        if narrow {
            x = r.emit1(OpKind::Convert { a: x }, wide.clone());
        }
        sum = Some(match sum {
            None => x,
            Some(sum) => r.emit1(
                OpKind::Binary {
                    op: binary,
                    a: sum,
                    b: x,
                },
                wide.clone(),
            ),
        });
    }
    let sum = sum.ok_or_else(|| Error::internal("a reduction over no devices").at(r.loc))?;
    Ok(if narrow {
        r.emit1(OpKind::Convert { a: sum }, ty)
    } else {
        sum
    })
}
