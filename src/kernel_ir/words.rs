//! References in words, for messages: whose memory it is, and what of it.
use super::*;
use crate::error::Loc;

/// A use of a reference: `argument 0 of the kernel (f32[64, 64] in GMEM)`, `f16[64] of a buffer (f16[2, 64] in SMEM, op1)`.
///
/// Whoever has the debug table puts the line behind the op.
pub fn of_use(kernel: &Kernel, r: &RefUse) -> String {
    let whole = of_alloc(kernel, r.alloc);
    let data = &kernel.allocs[r.alloc];
    match r.elem {
        Elem::Data(dtype) if r.shape != data.shape || data.elem() != r.elem => {
            format!("{dtype}{:?} of {whole}", r.shape.as_slice())
        }
        Elem::Data(_) | Elem::Barrier | Elem::Semaphore => whole,
    }
}

/// An allocation.
pub fn of_alloc(kernel: &Kernel, alloc: Alloc) -> String {
    let data = &kernel.allocs[alloc];
    let (space, name) = match &data.kind {
        AllocKind::Gmem { origin, .. } => ("GMEM", parameter(kernel, *origin)),
        AllocKind::Semaphore { origin } => ("GMEM", parameter(kernel, *origin)),
        AllocKind::Smem { .. } => ("SMEM", None),
        AllocKind::SmemUnion => ("SMEM, a union", None),
        AllocKind::Tmem { .. } | AllocKind::TmemUnion => ("TMEM", None),
        AllocKind::Register { accumulator: true, .. } => ("registers, an accumulator", None),
        AllocKind::Register { .. } => ("registers", None),
        AllocKind::Barrier { .. } => ("SMEM", None),
    };
    let what = match data.elem() {
        Elem::Data(dtype) => format!("{dtype}{:?}", data.shape.as_slice()),
        Elem::Barrier => format!("{} barriers", num_elements(&data.shape)),
        Elem::Semaphore => format!("{} semaphores", num_elements(&data.shape)),
    };
    let own = kernel.refs[alloc];
    match name {
        Some(name) => format!("{own}{name} ({what} in {space})"),
        None if data.loc == Loc::CALL_SITE => format!("{own}a scratch buffer ({what} in {space})"),
        None => format!("{own}a scratch buffer ({what} in {space}, {})", data.loc),
    }
}

/// A parameter as the caller counts them.
fn parameter(kernel: &Kernel, origin: GmemOrigin) -> Option<String> {
    let GmemOrigin::Param(i) = origin else { return None };
    let i = i as usize;
    let is_output = |p: &ParamData| matches!(p.role, ParamRole::Output { .. });
    let own = is_output(kernel.params.get(i)?);
    let same = kernel.params.iter().take(i).filter(|p| is_output(p) == own).count();
    Some(match own {
        true => format!("output {same} of the kernel"),
        false => format!("argument {same} of the kernel"),
    })
}
