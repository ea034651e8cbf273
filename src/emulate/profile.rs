//! Marks in the tracks of a profile. No part of what a checker watches: a lane writes where nobody else does, and nothing reads it here.
use super::check::Hooks;
use super::machine::Machine;
use super::uop::{Body, Flow, Step, Uop, fail};
use super::warp::Warp;
use crate::error::{Error, Fault};
use crate::ptx::launch::Profile;

/// Of each lane: where its track is, and how many marks it has made.
#[derive(Clone, Copy)]
pub struct Tracks {
    at: [u64; 32],
    n: [u32; 32],
}

/// `a` is the track's address, `b` how many marks have been made.
pub struct ProfileStart;

impl<H: Hooks> Body<H> for ProfileStart {
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let tracks = Tracks {
            at: *w.read::<u64>(u.a),
            n: *w.read::<u32>(u.b),
        };
        w.profile = Some(Box::new(tracks));
        let sm = w.cta.0 % m.options.sms.max(1);
        let now = m.clock.to_le_bytes();
        for lane in lanes(w).filter(|lane| tracks.n[*lane] == 0) {
            let parts: [(u64, &[u8]); 3] = [(0, &sm.to_le_bytes()), (8, &now), (16, &now)];
            write(m, tracks.at[lane], &parts)?;
        }
        Ok(Flow::Next)
    }
}

/// `aux` is the mark's first word, `imm` for how many marks there is room.
pub struct ProfileMark;

impl<H: Hooks> Body<H> for ProfileMark {
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let Some(mut tracks) = w.profile.take() else {
            return fail(nowhere());
        };
        for lane in lanes(w) {
            let n = tracks.n[lane];
            if n < u.imm as u32 {
                let at = tracks.at[lane] + Profile::HEADER + Profile::MARK * u64::from(n);
                let parts: [(u64, &[u8]); 2] = [(0, &u.aux.to_le_bytes()), (4, &(m.clock as u32).to_le_bytes())];
                write(m, at, &parts)?;
            }
            tracks.n[lane] = n.wrapping_add(1);
        }
        w.profile = Some(tracks);
        Ok(Flow::Next)
    }
}

pub struct ProfileEnd;

impl<H: Hooks> Body<H> for ProfileEnd {
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        let Some(tracks) = w.profile.as_deref().copied() else {
            return fail(nowhere());
        };
        let now = m.clock.to_le_bytes();
        for lane in lanes(w).filter(|lane| tracks.n[*lane] < Profile::NEVER) {
            let parts: [(u64, &[u8]); 3] = [(4, &tracks.n[lane].to_le_bytes()), (24, &now), (32, &now)];
            write(m, tracks.at[lane], &parts)?;
        }
        Ok(Flow::Next)
    }
}

/// Lanes that execute.
fn lanes(w: &Warp) -> impl Iterator<Item = usize> + use<> {
    let exec = w.exec;
    (0..32).filter(move |lane| exec >> lane & 1 == 1)
}

fn write<H: Hooks>(m: &mut Machine<'_, H>, at: u64, parts: &[(u64, &[u8])]) -> Result<(), Box<Error>> {
    for &(offset, bytes) in parts {
        let Some(to) = m.memory.resolve(at + offset, bytes.len() as u64) else {
            let error = Error::new(Fault::Execution, "a mark outside of the profile's memory");
            let error = error.got(m.memory.describe(at + offset));
            return fail(error);
        };
        // SAFETY: inside a buffer, of which a run's threads have a part each.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    Ok(())
}

fn nowhere() -> Error {
    Error::new(Fault::Execution, "a mark of a thread that has no track of a profile")
}
