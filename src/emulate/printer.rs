//! Room for what a kernel prints. No part of what a checker watches: nothing is ordered by it, and no CTA learns of another.
use super::check::Hooks;
use super::machine::Machine;
use super::uop::{Body, Flow, Step, Uop, fail};
use super::warp::Warp;
use crate::error::{Error, Fault};

/// `a` is the printer's address, `b` the print's weight, `aux` the record's bytes.
pub struct PrintReserve;

impl<H: Hooks> Body<H> for PrintReserve {
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        if w.exec != !0 {
            let error = Error::new(Fault::Execution, "a print by some lanes of a warp only");
            return fail(error.got(format!("lanes 0x{:08x}", w.exec)));
        }
        let (printer, weight) = (w.read::<u64>(u.a)[0], w.read::<u32>(u.b)[0]);
        let Some(record) = m.memory.reserve_record(printer, u64::from(u.aux), weight) else {
            let error = Error::new(Fault::Execution, "a print where there is no printer");
            return fail(error.got(m.memory.describe(printer)));
        };
        w.write::<u64>(u.d, [record; 32]);
        if m.recorder.is_some() {
            let (warp, now, loc) = (m.warp_id(w), m.clock, H::LISTENS.then(|| m.here()));
            if let Some(recorder) = &mut m.recorder {
                recorder.prints(warp, now, loc);
            }
        }
        Ok(Flow::Next)
    }
}
