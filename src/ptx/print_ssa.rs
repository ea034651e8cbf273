//! `ptx::Ssa` as text, for people: what dumps show between lowering and PTX. Nothing reads it back.
use super::ssa::{Negated, Op, OpKind, Region, Ssa, Value};
use std::fmt::{self, Display, Formatter};

impl Display for Ssa {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.body {
            Some(body) => self.write_region(f, body, 0),
            None => Ok(()),
        }
    }
}

fn list(values: &[Value]) -> String {
    values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")
}

impl Ssa {
    fn write_region(&self, f: &mut Formatter<'_>, region: Region, depth: usize) -> fmt::Result {
        let data = &self.regions[region];
        for op in &data.ops {
            self.write_op(f, op, depth)?;
        }
        if !data.results.is_empty() {
            writeln!(f, "{:1$}yield {2}", "", 2 * depth, list(&data.results))?;
        }
        Ok(())
    }

    fn write_op(&self, f: &mut Formatter<'_>, op: &Op, depth: usize) -> fmt::Result {
        let indent = 2 * depth;
        write!(f, "{:indent$}", "")?;
        let results = |f: &mut Formatter<'_>, results: &[Value]| match results {
            [] => Ok(()),
            results => write!(f, "{} = ", list(results)),
        };
        match &op.kind {
            OpKind::Inst { guard, inst } => {
                if let Some((p, negated)) = guard {
                    let not = if *negated == Negated::Yes { "!" } else { "" };
                    write!(f, "@{not}{p} ")?;
                }
                writeln!(f, "{inst:?}  // {}", op.loc)
            }
            OpKind::If {
                cond,
                then,
                otherwise,
                results: values,
            } => {
                results(f, values)?;
                writeln!(f, "if {cond} {{  // {}", op.loc)?;
                self.write_region(f, *then, depth + 1)?;
                writeln!(f, "{:indent$}}} else {{", "")?;
                self.write_region(f, *otherwise, depth + 1)?;
                writeln!(f, "{:indent$}}}", "")
            }
            OpKind::Loop {
                inits,
                cond,
                body,
                results: values,
            } => {
                results(f, values)?;
                let params = |region: Region| list(&self.regions[region].params);
                writeln!(f, "while ({}) = ({}) {{  // {}", params(*cond), list(inits), op.loc)?;
                self.write_region(f, *cond, depth + 1)?;
                writeln!(f, "{:indent$}}} do ({}) {{", "", params(*body))?;
                self.write_region(f, *body, depth + 1)?;
                writeln!(f, "{:indent$}}}", "")
            }
        }
    }
}
