//! Control flow of the builder: regions that are opened and closed, and closures on top.
use super::{Builder, Open, Operand, Scope};
use crate::error::Loc;
use crate::ptx::equal_conditionals::Computation;
use crate::ptx::modifier::*;
use crate::ptx::operand::*;
use crate::ptx::ssa::*;

impl Builder {
    fn enter(&mut self, open: Open, region: Region) {
        assert!(
            self.guard.is_none() && !self.in_prologue,
            "a region inside a guard or the prologue"
        );
        self.scopes.push(Scope {
            open,
            region,
            undo: vec![],
            conditionals: self.conditionals.len(),
        });
    }
    /// Closes the innermost region; its results are put into registers of `classes`.
    fn leave(&mut self, results: &[Operand], classes: Option<&[Class]>) -> Open {
        let values = results
            .iter()
            .enumerate()
            .map(|(i, r)| match (r, classes) {
                (Src::Reg(v), _) => *v,
                (Src::Imm(bits), Some(classes)) => self.constant(classes[i], *bits),
                // A constant whose class is not known: 32-bit, as counters are.
                (Src::Imm(bits), None) => self.constant(Class::B32, *bits),
            })
            .collect();
        let scope = self.scopes.pop().expect("a region is open");
        self.ssa.regions[scope.region].results = values;
        self.conditionals.truncate(scope.conditionals);
        for (hash, old) in scope.undo.into_iter().rev() {
            match old {
                Some(v) => self.known.insert(hash, v),
                None => self.known.remove(&hash),
            };
        }
        scope.open
    }

    /// Opens a conditional; what follows is its first arm.
    pub fn open_if(&mut self, cond: impl Into<Operand>) {
        let cond = self.value(cond, Class::Pred);
        let (then, otherwise) = (self.ssa.region(), self.ssa.region());
        let loc = self.loc;
        self.enter(
            Open::Then {
                cond,
                then,
                otherwise,
                loc,
            },
            then,
        );
    }
    /// Ends the first arm, which yields `results` (constants among them become registers: 64-bit ones must be
    /// registers already); what follows is the second.
    pub fn open_else(&mut self, results: &[Operand]) {
        match self.leave(results, None) {
            Open::Then {
                cond,
                then,
                otherwise,
                loc,
            } => self.enter(
                Open::Else {
                    cond,
                    then,
                    otherwise,
                    loc,
                },
                otherwise,
            ),
            Open::Body | Open::Else { .. } | Open::Cond { .. } | Open::Loop { .. } => {
                panic!("open_else outside the first arm of a conditional")
            }
        }
    }
    /// Ends the second arm (or the first, when there is no second and nothing is yielded).
    pub fn close_if(&mut self, results: &[Operand]) -> Vec<Value> {
        if let Some(Scope {
            open: Open::Then { .. },
            ..
        }) = self.scopes.last()
        {
            assert!(results.is_empty(), "an arm that yields has a counterpart");
            self.open_else(&[]);
        }
        let classes: Vec<Class> = match self.scopes.last().map(|s| &s.open) {
            Some(Open::Else { then, .. }) => self.classes(&self.ssa.regions[*then].results),
            Some(Open::Body | Open::Then { .. } | Open::Cond { .. } | Open::Loop { .. }) | None => {
                panic!("close_if outside a conditional")
            }
        };
        assert_eq!(results.len(), classes.len(), "both arms yield as many values");
        let Open::Else {
            cond,
            then,
            otherwise,
            loc,
        } = self.leave(results, Some(&classes))
        else {
            unreachable!("looked at above")
        };
        let computation = match classes[..] {
            [] => None,
            _ => Computation::of(&self.ssa, cond, [then, otherwise]),
        };
        if let Some(new) = &computation
            && let Some((_, results)) = self.conditionals.iter().find(|(old, _)| old.equals(new))
        {
            return results.clone();
        }
        let results: Vec<Value> = (0..classes.len())
            .map(|i| {
                let (a, b) = (
                    self.ssa.regions[then].results[i],
                    self.ssa.regions[otherwise].results[i],
                );
                let uniform = [cond, a, b].iter().map(|v| self.ssa.values[*v].uniform).min();
                let v = self.ssa.value(classes[i], uniform.unwrap_or(Uniform::Thread));
                self.info[v].bound = self.info[a].bound.max(self.info[b].bound);
                v
            })
            .collect();
        if let Some(computation) = computation {
            self.conditionals.push((computation, results.clone()));
        }
        self.push_op(
            OpKind::If {
                cond,
                then,
                otherwise,
                results: results.clone(),
            },
            loc,
        );
        results
    }

    fn classes(&self, values: &[Value]) -> Vec<Class> {
        values.iter().map(|v| self.ssa.values[*v].class).collect()
    }

    fn push_op(&mut self, kind: OpKind, loc: Loc) {
        let region = self.region();
        self.ssa.regions[region].ops.push(Op {
            kind,
            loc,
            memory: MemTag::ANY,
            rounding: Rounding::default(),
        });
    }

    /// Opens a loop whose condition region follows; gives that region's parameters, which start as `inits`
    /// (registers). They are taken to differ between lanes until [`super::infer_uniformity`] knows better.
    pub fn open_loop(&mut self, inits: &[Value]) -> Vec<Value> {
        let (cond, body) = (self.ssa.region(), self.ssa.region());
        let params: Vec<Value> = inits
            .iter()
            .map(|v| {
                let class = self.ssa.values[*v].class;
                self.ssa.value(class, Uniform::Thread)
            })
            .collect();
        self.ssa.regions[cond].params = params.clone();
        let loc = self.loc;
        self.enter(
            Open::Cond {
                inits: inits.to_vec(),
                cond,
                body,
                loc,
            },
            cond,
        );
        params
    }
    /// Ends the condition: goes on where `pred` holds. `handed` are the body's parameters, and the loop's results.
    pub fn open_body(&mut self, pred: impl Into<Operand>, handed: &[Value]) -> Vec<Value> {
        let mut results: Vec<Operand> = vec![Src::Reg(self.value(pred, Class::Pred))];
        results.extend(handed.iter().map(|v| Src::Reg(*v)));
        let Open::Cond { inits, cond, body, loc } = self.leave(&results, None) else {
            panic!("open_body outside a loop's condition")
        };
        let params: Vec<Value> = handed
            .iter()
            .map(|v| {
                let class = self.ssa.values[*v].class;
                let p = self.ssa.value(class, Uniform::Thread);
                self.info[p].bound = self.info[*v].bound;
                p
            })
            .collect();
        self.ssa.regions[body].params = params.clone();
        self.enter(Open::Loop { inits, cond, body, loc }, body);
        params
    }
    /// Ends the body, which hands `next` to the condition; gives the loop's results.
    pub fn close_loop(&mut self, next: &[Operand]) -> Vec<Value> {
        let Some(Scope {
            open: Open::Loop { inits, cond, .. },
            ..
        }) = self.scopes.last()
        else {
            panic!("close_loop outside a loop's body")
        };
        assert_eq!(next.len(), inits.len(), "as many next values as inits");
        let cond = *cond;
        let classes = self.classes(&self.ssa.regions[cond].params);
        let Open::Loop { inits, cond, body, loc } = self.leave(next, Some(&classes)) else {
            unreachable!("looked at above")
        };
        let handed: Vec<Value> = self.ssa.regions[cond].results[1..].to_vec();
        let results: Vec<Value> = handed
            .iter()
            .map(|v| {
                let class = self.ssa.values[*v].class;
                let r = self.ssa.value(class, Uniform::Thread);
                self.info[r].bound = self.info[*v].bound;
                r
            })
            .collect();
        self.push_op(
            OpKind::Loop {
                inits,
                cond,
                body,
                results: results.clone(),
            },
            loc,
        );
        results
    }

    /// `f` where `cond` holds.
    pub fn when<E>(
        &mut self,
        cond: impl Into<Operand>,
        f: impl FnOnce(&mut Builder) -> Result<(), E>,
    ) -> Result<(), E> {
        match cond.into() {
            Src::Imm(bits) if bits & 1 == 1 => f(self),
            Src::Imm(_) => Ok(()),
            cond => {
                self.open_if(cond);
                f(self)?;
                self.close_if(&[]);
                Ok(())
            }
        }
    }

    /// One of two arms; a constant condition emits only its arm.
    pub fn if_else<E>(
        &mut self,
        cond: impl Into<Operand>,
        then: impl FnOnce(&mut Builder) -> Result<Vec<Operand>, E>,
        otherwise: impl FnOnce(&mut Builder) -> Result<Vec<Operand>, E>,
    ) -> Result<Vec<Operand>, E> {
        match cond.into() {
            Src::Imm(bits) if bits & 1 == 1 => then(self),
            Src::Imm(_) => otherwise(self),
            cond => {
                self.open_if(cond);
                let results = then(self)?;
                self.open_else(&results);
                let results = otherwise(self)?;
                Ok(self.close_if(&results).into_iter().map(Src::Reg).collect())
            }
        }
    }

    /// `while`: `cond` sees the carried values and says whether to go on; `body` gives the next ones.
    pub fn while_<E>(
        &mut self,
        inits: &[Value],
        cond: impl FnOnce(&mut Builder, &[Value]) -> Result<Operand, E>,
        body: impl FnOnce(&mut Builder, &[Value]) -> Result<Vec<Operand>, E>,
    ) -> Result<Vec<Value>, E> {
        let params = self.open_loop(inits);
        let pred = cond(self, &params)?;
        let carried = self.open_body(pred, &params);
        let next = body(self, &carried)?;
        Ok(self.close_loop(&next))
    }

    /// A counted loop from `lower` to `upper` (exclusive) by a positive `step`; `body` sees the counter and the
    /// carried values, and gives the next carried values.
    pub fn for_<E>(
        &mut self,
        ty: IntType,
        (lower, upper, step): (Operand, Operand, Operand),
        inits: &[Value],
        body: impl FnOnce(&mut Builder, Value, &[Value]) -> Result<Vec<Operand>, E>,
    ) -> Result<Vec<Value>, E> {
        let class = ty.slot().class;
        let mut all = vec![self.value(lower, class)];
        all.extend_from_slice(inits);
        let params = self.open_loop(&all);
        let go_on = self.setp(Compare::Lt, ty.as_compare(), params[0], upper);
        let carried = self.open_body(go_on, &params);
        // A counter that starts as a non-negative number and goes up to one lies below the latter.
        let last = self.bound(upper, class);
        if last <= class.mask() >> 1 && self.bound(lower, class) <= class.mask() >> 1 {
            self.assume_at_most(carried[0], last.saturating_sub(1));
        }
        let mut next = body(self, carried[0], &carried[1..])?;
        let counter = self.add(ty, carried[0], step);
        next.insert(0, counter);
        let mut results = self.close_loop(&next);
        results.remove(0);
        Ok(results)
    }
}
