//! Moves allocation transforms from uses to allocations.
//!
//! JAX repeats them at the front of every use: `[extract_alias] [unswizzle] [untile]`. Afterwards an allocation has its logical
//! shape and its transforms, a member of a union is an allocation of its own (union, offset), and views hold user transforms only.
//! Under Warpgroup semantics JAX chooses the transforms of buffers that have none: those that a text which runs once names for its reference.
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut pass = MoveTransforms {
        seen: SecondaryMap::new(),
        members: vec![],
        kernel,
    };
    // Scratch whose transforms the allocation states.
    for alloc in pass.kernel.allocs.keys().collect::<Vec<_>>() {
        let data = &mut pass.kernel.allocs[alloc];
        if let AllocKind::Smem {
            transforms: Some(t), ..
        } = &data.kind
        {
            let tiling = t.tiling.clone();
            data.shape = logical(&data.shape, &tiling);
            pass.seen[alloc] = true;
        }
    }
    let body = pass.kernel.body;
    pass.region(body)?;
    let MoveTransforms { members, .. } = pass;
    if kernel.semantics.lowering == LoweringSemantics::Warpgroup {
        adopt(kernel);
    }
    add_members(kernel, body, &members);
    Ok(())
}

struct MoveTransforms<'a> {
    kernel: &'a mut Kernel,
    /// Allocations whose transforms are known.
    seen: SecondaryMap<Alloc, bool>,
    /// (the member as uses describe it, its allocation).
    members: Vec<(Member, Alloc)>,
}

/// What makes a member of a union one and the same.
#[derive(PartialEq)]
struct Member {
    union: Alloc,
    offset: u64,
    group: u32,
    data: AllocData,
    transforms: SmemTransforms,
}

/// `(…, dᵢ/tᵢ…, tᵢ…)` → `(…, dᵢ…)`; the importer has checked the tiling against the shape.
fn logical(physical: &[u64], tiling: &[u64]) -> Shape {
    let outer = physical.len() - tiling.len();
    let batch = outer - tiling.len();
    let mut shape: Shape = physical[..outer].into();
    for (d, t) in shape[batch..].iter_mut().zip(tiling) {
        *d *= t;
    }
    shape
}

impl MoveTransforms<'_> {
    fn region(&mut self, region: Region) -> Result<()> {
        for i in 0..self.kernel.regions[region].ops.len() {
            let op = self.kernel.regions[region].ops[i];
            for inner in regions_of(self.kernel, op) {
                self.region(inner)?;
            }
            let mut has_refs = false;
            visit::for_each_ref(&self.kernel.ops[op].kind, &mut |_| has_refs = true);
            if !has_refs {
                continue;
            }
            let loc = self.kernel.ops[op].loc;
            let mut kind = std::mem::replace(&mut self.kernel.ops[op].kind, OpKind::CommitGroup);
            let mut result = Ok(());
            visit::map_refs(&mut kind, &mut |r| {
                if result.is_ok() {
                    result = self.reference(r, loc);
                }
            });
            self.kernel.ops[op].kind = kind;
            result.map_err(|e| e.at(loc))?;
        }
        Ok(())
    }

    fn reference(&mut self, r: &mut RefUse, loc: Loc) -> Result<()> {
        let mut member = None;
        let mut transforms = SmemTransforms::default();
        let mut n = 0;
        for step in &r.steps {
            match step {
                Step::ExtractAlias {
                    offset,
                    group,
                    member: data,
                } if n == 0 => {
                    member = Some((*offset, *group, data.clone()));
                }
                // 16 bytes: rows as they are.
                Step::Unswizzle(bytes) if transforms == SmemTransforms::default() => {
                    transforms.swizzle_bytes = if *bytes == 16 { 0 } else { *bytes };
                }
                Step::Untile(tiling) if transforms.tiling.is_empty() => transforms.tiling = tiling.clone(),
                Step::ExtractAlias { .. } | Step::Unswizzle(_) | Step::Untile(_) => {
                    return Err(Error::unsupported("allocation transforms in this order on a reference")
                        .expected("an alias, then a swizzle, then a tiling")
                        .remedy("give the buffer its transforms where it is allocated"));
                }
                Step::Index(_)
                | Step::Transpose(_)
                | Step::Reshape(_)
                | Step::Bitcast { .. }
                | Step::Im2Col { .. }
                | Step::ExpandLeadingBatch(_) => break,
            }
            n += 1;
        }
        if r.steps[n..]
            .iter()
            .any(|s| matches!(s, Step::ExtractAlias { .. } | Step::Unswizzle(_) | Step::Untile(_)))
        {
            return Err(
                Error::unsupported("an allocation transform after a user's transform of a reference")
                    .remedy("give the buffer its transforms where it is allocated"),
            );
        }
        r.steps.drain(..n);
        match member {
            Some((offset, group, data)) => {
                r.alloc = self.member(Member {
                    union: r.alloc,
                    offset,
                    group,
                    data: *data,
                    transforms,
                });
                Ok(())
            }
            None => self.stated(r.alloc, transforms, loc),
        }
    }

    /// The allocation of a member; the first use makes it.
    fn member(&mut self, member: Member) -> Alloc {
        if let Some((_, alloc)) = self.members.iter().find(|(m, _)| *m == member) {
            return *alloc;
        }
        let union = &mut self.kernel.allocs[member.union];
        match union.kind {
            AllocKind::Tmem { .. } => union.kind = AllocKind::TmemUnion,
            AllocKind::Smem { .. } => union.kind = AllocKind::SmemUnion,
            _ => {}
        }
        let mut data = member.data.clone();
        data.collective = union.collective;
        data.within = Some(Within {
            union: member.union,
            offset: member.offset,
            group: member.group,
        });
        let stated = member.transforms != SmemTransforms::default();
        if let AllocKind::Smem { transforms, .. } = &mut data.kind
            && stated
        {
            *transforms = Some(member.transforms.clone());
            data.shape = logical(&data.shape, &member.transforms.tiling);
        }
        let alloc = self.kernel.allocs.push(data);
        self.members.push((member, alloc));
        alloc
    }

    /// A use has these transforms, so its allocation does.
    fn stated(&mut self, alloc: Alloc, used: SmemTransforms, loc: Loc) -> Result<()> {
        let known = std::mem::replace(&mut self.seen[alloc], true);
        let data = &mut self.kernel.allocs[alloc];
        let none = SmemTransforms::default();
        let AllocKind::Smem { transforms, .. } = &mut data.kind else {
            return if used == none {
                Ok(())
            } else {
                Err(
                    Error::unsupported("tiling or swizzle of a reference that is not to SMEM")
                        .at(loc)
                        .remedy("leave transforms to allocations of plgpu.SMEM"),
                )
            };
        };
        if !known {
            if used != none {
                data.shape = logical(&data.shape, &used.tiling);
                *transforms = Some(used);
            }
            return Ok(());
        }
        let stated = transforms.as_ref().unwrap_or(&none);
        let unswizzled = |t: &SmemTransforms| if t.swizzle_bytes == 16 { 0 } else { t.swizzle_bytes };
        if stated.tiling != used.tiling || unswizzled(stated) != unswizzled(&used) {
            return Err(Error::unsupported("one allocation with different transforms")
                .at(loc)
                .expected(format!("{stated:?}"))
                .got(format!("{used:?}"))
                .remedy("state the transforms where it is allocated, and nowhere else"));
        }
        Ok(())
    }
}

/// Buffers without transforms get those that the first text relies on; one that relies on others is refused where accesses are planned.
fn adopt(kernel: &mut Kernel) {
    let mut named: Vec<(Alloc, SmemTransforms)> = vec![];
    kernel.for_each_op(&mut |op| {
        if let OpKind::InlinePtx { code, refs, .. } = &kernel.ops[op].kind
            && let Some(whole) = &code.whole
        {
            let all = refs.iter().zip(&whole.refs);
            named.extend(all.filter_map(|(r, lies)| Some((r.alloc, lies.clone()?))));
        }
    });
    for (alloc, lies) in named {
        let AllocData { kind, shape, .. } = &mut kernel.allocs[alloc];
        let inner = shape.iter().rev().zip(lies.tiling.iter().rev());
        let fits = lies.tiling.len() <= shape.len() && inner.fold(true, |fits, (n, t)| fits && *t > 0 && n % t == 0);
        if let AllocKind::Smem {
            transforms: transforms @ None,
            ..
        } = kind
            && (!lies.tiling.is_empty() || lies.swizzle_bytes > 16)
            && fits
        {
            *transforms = Some(lies);
        }
    }
}

/// Members live where their union does.
fn add_members(kernel: &mut Kernel, region: Region, members: &[(Member, Alloc)]) {
    if members.is_empty() {
        return;
    }
    for i in 0..kernel.regions[region].ops.len() {
        let op = kernel.regions[region].ops[i];
        if let OpKind::Scope { allocs, .. } = &mut kernel.ops[op].kind {
            let own: Vec<Alloc> = members
                .iter()
                .filter(|(m, _)| allocs.contains(&m.union))
                .map(|&(_, a)| a)
                .collect();
            allocs.extend(own);
        }
        for inner in regions_of(kernel, op) {
            add_members(kernel, inner, members);
        }
    }
}
