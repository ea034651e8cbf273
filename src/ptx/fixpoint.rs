//! Greatest fixpoints over structured regions: a fact of every value starts as the most that can be said and is lowered by what defines it,
//! loops until their parameters stay.
//!
//! Results of conditionals and loops say no more than the condition does: lanes that left a loop early hold values of another iteration.
use super::inst::Inst;
use super::ssa::*;

pub trait Analysis {
    type Fact: Copy;
    fn fact(&self, v: Value) -> Self::Fact;
    /// What holds of both.
    fn meet(a: Self::Fact, b: Self::Fact) -> Self::Fact;
    /// Whether that is news.
    fn lower(&mut self, v: Value, to: Self::Fact) -> bool;
    /// Lowers what an instruction defines.
    fn inst(&mut self, guard: Option<(Value, Negated)>, inst: &Inst<Value>);
}

/// Goes through a region and those in it.
pub fn region<A: Analysis>(ssa: &Ssa, r: Region, analysis: &mut A) {
    for op in &ssa.regions[r].ops {
        match &op.kind {
            OpKind::Inst { guard, inst } => analysis.inst(*guard, inst),
            OpKind::If {
                cond,
                then,
                otherwise,
                results,
            } => {
                region(ssa, *then, analysis);
                region(ssa, *otherwise, analysis);
                let (then, otherwise) = (&ssa.regions[*then].results, &ssa.regions[*otherwise].results);
                for ((d, t), e) in results.iter().zip(then).zip(otherwise) {
                    let either = A::meet(analysis.fact(*t), analysis.fact(*e));
                    analysis.lower(*d, A::meet(either, analysis.fact(*cond)));
                }
            }
            OpKind::Loop {
                inits,
                cond,
                body,
                results,
            } => {
                let (cond_region, body_region) = (&ssa.regions[*cond], &ssa.regions[*body]);
                for (p, init) in cond_region.params.iter().zip(inits) {
                    analysis.lower(*p, analysis.fact(*init));
                }
                let Some((pred, handed)) = cond_region.results.split_first() else {
                    continue;
                };
                let mut again = true;
                while again {
                    region(ssa, *cond, analysis);
                    for (p, h) in body_region.params.iter().zip(handed) {
                        analysis.lower(*p, analysis.fact(*h));
                    }
                    region(ssa, *body, analysis);
                    again = false;
                    for (p, next) in cond_region.params.iter().zip(&body_region.results) {
                        again |= analysis.lower(*p, analysis.fact(*next));
                    }
                }
                for (d, h) in results.iter().zip(handed) {
                    analysis.lower(*d, A::meet(analysis.fact(*h), analysis.fact(*pred)));
                }
            }
        }
    }
}
