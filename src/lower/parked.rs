//! The columns of an accumulator that wait in memory for their products ([`crate::plan::parked`]).
use super::cx::LowerCx;
use super::emit::{S, V};
use crate::error::{Error, Result};
use crate::plan::parked::Home;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Src};
use crate::ptx::ssa::Value as PtxValue;

/// Where a run of words is.
enum Place {
    Shared(Addr<V>),
    /// Bytes from the start of the thread's own memory.
    Own(i64),
}

/// Runs of up to four of `n` words from the `from`th of a home on.
fn runs(n: usize, from: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let end = from + n;
    std::iter::successors(Some(from), move |at| Some(end.min((at / 4 + 1) * 4)))
        .take_while(move |at| *at < end)
        .map(move |at| at..end.min((at / 4 + 1) * 4))
}

/// Where words of a home are; they are in one group of four.
fn place(cx: &mut LowerCx, home: Home, word: usize) -> Result<Place> {
    let word = home.first + word as u32;
    let parked = &cx.plan.parked;
    if word >= parked.shared_words {
        return Ok(Place::Own(4 * i64::from(word - parked.shared_words)));
    }
    // A group of four of one thread beside those of the others: 16 bytes each.
    let (start, bytes, first, count) = (
        parked.start,
        parked.bytes(),
        parked.warpgroups.start,
        parked.warpgroups.len(),
    );
    let offset = start + word / 4 * 2048 + word % 4 * 4;
    let offset = i32::try_from(offset).map_err(|_| Error::internal("parked words beyond shared memory"))?;
    let base = cx.b.smem_base();
    let thread = cx.b.thread_in_warpgroup();
    let mut at = cx.b.mad(IntType::U32, thread, Src::u32(16), base);
    if count > 1 {
        let warpgroup = cx.warpgroup();
        let nth = cx.b.sub(IntType::U32, warpgroup, Src::u32(first));
        at = cx.b.mad(IntType::U32, nth, Src::u32(bytes), at);
    }
    Ok(Place::Shared(Addr::at(cx.b.r32(at), offset)))
}

/// `n` words of a home.
pub fn load(cx: &mut LowerCx, home: Home, from: usize, n: usize) -> Result<Vec<V>> {
    let mut out = Vec::with_capacity(n);
    for run in runs(n, from) {
        let count = run.len();
        let words = match place(cx, home, run.start)? {
            Place::Shared(addr) => cx.b.load(Space::Shared, MemType::B32, addr, count),
            Place::Own(at) => {
                let d = vec![PtxValue::NEW; count].into();
                cx.b.inst(Inst::LdLocal { d, at })
            }
        };
        out.extend(words);
    }
    Ok(out)
}

/// Stores words to a home.
pub fn store(cx: &mut LowerCx, home: Home, from: usize, words: &[S]) -> Result<()> {
    for run in runs(words.len(), from) {
        let a: Vec<S> = words[run.start - from..run.end - from].to_vec();
        match place(cx, home, run.start)? {
            Place::Shared(addr) => cx.b.store(Space::Shared, MemType::B32, addr, &a),
            Place::Own(at) => {
                let a = a.into_iter().collect();
                cx.b.inst(Inst::StLocal { at, a });
            }
        }
    }
    Ok(())
}

/// Registers as operands.
pub fn operands(words: &[V]) -> Vec<S> {
    words.iter().map(|r| Src::Reg(*r)).collect()
}
