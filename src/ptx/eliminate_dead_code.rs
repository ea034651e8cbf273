//! Drops instructions without effects whose results nothing needs, and what conditionals and loops carry in vain.
//!
//! Everything starts as dead. What acts (memory, synchronisation, loops, which may not end) keeps what it reads alive.
use super::inst::Effects;
use super::ssa::*;
use cranelift_entity::SecondaryMap;

/// What keeps a value alive passes that on to what the value is made of.
#[derive(Clone, Copy, Default)]
enum Def {
    #[default]
    Unknown,
    /// `ops[index]`, an instruction.
    Inst(Region, u32),
    /// Result `k` of the conditional `ops[index]`.
    Arm(Region, u32, u32),
    /// Result `k` of the loop `ops[index]`.
    Exit(Region, u32, u32),
    /// Parameter `k` of the condition of the loop `ops[index]`.
    Cond(Region, u32, u32),
    /// Parameter `k` of the body of the loop `ops[index]`.
    Body(Region, u32, u32),
}

struct Marker<'a> {
    ssa: &'a Ssa,
    defs: SecondaryMap<Value, Def>,
    live: SecondaryMap<Value, bool>,
    work: Vec<Value>,
}

pub fn run(ssa: &mut Ssa) {
    let Some(body) = ssa.body else { return };
    let mut m = Marker {
        ssa,
        defs: SecondaryMap::with_capacity(ssa.values.len()),
        live: SecondaryMap::with_capacity(ssa.values.len()),
        work: vec![],
    };
    m.scan(body);
    m.propagate();
    let live = m.live;
    sweep(ssa, body, &live);
}

impl Marker<'_> {
    fn mark(&mut self, v: Value) {
        if !self.live[v] {
            self.live[v] = true;
            self.work.push(v);
        }
    }

    /// Records definitions and marks what actions read. Gives whether anything inside acts.
    fn scan(&mut self, r: Region) -> bool {
        let ssa = self.ssa;
        let mut acts = false;
        for (i, op) in ssa.regions[r].ops.iter().enumerate() {
            let i = i as u32;
            match &op.kind {
                OpKind::Inst { guard, inst } => {
                    inst.for_each_def(|d, _| self.defs[d] = Def::Inst(r, i));
                    // A load of ordinary memory is needed for its result only.
                    let effects = inst.effects();
                    if !(Effects::READ_GLOBAL | Effects::READ_SHARED | Effects::CONVERGENT).contains(effects)
                        || inst.tied().is_some()
                    {
                        acts = true;
                        inst.for_each_use(|v, _| self.mark(v));
                        if let Some((p, _)) = guard {
                            self.mark(*p);
                        }
                    }
                }
                OpKind::If {
                    cond,
                    then,
                    otherwise,
                    results,
                } => {
                    for (k, d) in results.iter().enumerate() {
                        self.defs[*d] = Def::Arm(r, i, k as u32);
                    }
                    let a = self.scan(*then);
                    let b = self.scan(*otherwise);
                    if a || b {
                        acts = true;
                        self.mark(*cond);
                    }
                }
                OpKind::Loop {
                    cond, body, results, ..
                } => {
                    acts = true;
                    for (k, d) in results.iter().enumerate() {
                        self.defs[*d] = Def::Exit(r, i, k as u32);
                    }
                    for (k, d) in ssa.regions[*cond].params.iter().enumerate() {
                        self.defs[*d] = Def::Cond(r, i, k as u32);
                    }
                    for (k, d) in ssa.regions[*body].params.iter().enumerate() {
                        self.defs[*d] = Def::Body(r, i, k as u32);
                    }
                    self.scan(*cond);
                    self.scan(*body);
                    if let Some(pred) = ssa.regions[*cond].results.first() {
                        self.mark(*pred);
                    }
                }
            }
        }
        acts
    }

    fn propagate(&mut self) {
        let ssa = self.ssa;
        while let Some(v) = self.work.pop() {
            match self.defs[v] {
                Def::Unknown => {}
                Def::Inst(r, i) => {
                    if let OpKind::Inst { guard, inst } = &ssa.regions[r].ops[i as usize].kind {
                        // Whichever of its results is wanted first: a wgmma has as many of them as operands.
                        inst.for_each_def(|d, _| self.defs[d] = Def::Unknown);
                        inst.for_each_use(|u, _| self.mark(u));
                        if let Some((p, _)) = guard {
                            self.mark(*p);
                        }
                    }
                }
                Def::Arm(r, i, k) => {
                    if let OpKind::If {
                        cond, then, otherwise, ..
                    } = &ssa.regions[r].ops[i as usize].kind
                    {
                        self.mark(*cond);
                        self.mark(ssa.regions[*then].results[k as usize]);
                        self.mark(ssa.regions[*otherwise].results[k as usize]);
                    }
                }
                Def::Exit(r, i, k) | Def::Body(r, i, k) => {
                    if let OpKind::Loop { cond, .. } = &ssa.regions[r].ops[i as usize].kind {
                        self.mark(ssa.regions[*cond].results[k as usize + 1]);
                    }
                }
                Def::Cond(r, i, k) => {
                    if let OpKind::Loop { inits, body, .. } = &ssa.regions[r].ops[i as usize].kind {
                        self.mark(inits[k as usize]);
                        self.mark(ssa.regions[*body].results[k as usize]);
                    }
                }
            }
        }
    }
}

fn keep<T: Copy>(list: &mut Vec<T>, keep: &[bool]) {
    let mut i = 0;
    list.retain(|_| {
        i += 1;
        keep[i - 1]
    });
}

fn sweep(ssa: &mut Ssa, r: Region, live: &SecondaryMap<Value, bool>) {
    let mut ops = std::mem::take(&mut ssa.regions[r].ops);
    for op in &mut ops {
        match &mut op.kind {
            OpKind::Inst { .. } => {}
            OpKind::If {
                then,
                otherwise,
                results,
                ..
            } => {
                let kept: Vec<bool> = results.iter().map(|v| live[*v]).collect();
                keep(results, &kept);
                for arm in [*then, *otherwise] {
                    keep(&mut ssa.regions[arm].results, &kept);
                    sweep(ssa, arm, live);
                }
            }
            OpKind::Loop {
                inits,
                cond,
                body,
                results,
            } => {
                // A value handed on is kept if the body or what follows the loop wants it.
                let handed: Vec<bool> = ssa.regions[*body]
                    .params
                    .iter()
                    .zip(results.iter())
                    .map(|(p, d)| live[*p] || live[*d])
                    .collect();
                let carried: Vec<bool> = ssa.regions[*cond].params.iter().map(|p| live[*p]).collect();
                keep(inits, &carried);
                keep(&mut ssa.regions[*cond].params, &carried);
                keep(&mut ssa.regions[*body].results, &carried);
                keep(results, &handed);
                keep(&mut ssa.regions[*body].params, &handed);
                let with_pred: Vec<bool> = std::iter::once(true).chain(handed).collect();
                keep(&mut ssa.regions[*cond].results, &with_pred);
                sweep(ssa, *cond, live);
                sweep(ssa, *body, live);
            }
        }
    }
    ops.retain(|op| match &op.kind {
        OpKind::Inst { inst, .. } => {
            let mut defines = false;
            let mut wanted = false;
            inst.for_each_def(|d, _| {
                defines = true;
                wanted |= live[d];
            });
            let only_reads =
                (Effects::READ_GLOBAL | Effects::READ_SHARED | Effects::CONVERGENT).contains(inst.effects());
            !defines || wanted || !only_reads || inst.tied().is_some()
        }
        OpKind::If {
            then,
            otherwise,
            results,
            ..
        } => !results.is_empty() || !ssa.regions[*then].ops.is_empty() || !ssa.regions[*otherwise].ops.is_empty(),
        OpKind::Loop { .. } => true,
    });
    ssa.regions[r].ops = ops;
}
