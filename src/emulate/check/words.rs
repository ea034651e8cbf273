//! Words of memory on which warps release and acquire: what whoever reads one learns.
//!
//! A release on a word leaves there what the releasing warp knows. Atomics add to what is there, as they extend a release's sequence (PTX ISA,
//! "Release and Acquire Patterns"); a store takes the place of what was there. An acquire learns of those releases whose scope
//! includes it, and which its own includes. The scopes of a CTA and of a cluster count as one.
//!
//! There is one store of them ([`Words`]), over spaces: the CTAs' shared memory, and global memory. At words of shared memory whole clocks are
//! handed on, within the cluster ([`SharedWord`]); at those of global memory what is known of all clusters ([`Word`]).
//!
//! Who waits for a semaphore to be at least `n` learns less: of the signals that it would have waited for under every schedule. The wait may end
//! without a signal if those that do not come after that one, less what others then have taken, are `n` already. So a wait for too
//! small a count, or an extra signal, shows even where all signals have come when somebody looks.
use super::clock::{Clock, Knowledge, Known};
use super::race::Actor;
use super::versions::slot;
use crate::emulate::overwrite::{Mask, lines_of};
use crate::emulate::shared::CtaSlot;
use crate::error::Loc;
use crate::ptx::modifier::Scope;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::ops::Range;

/// Who may observe a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Audience {
    Cluster(u32),
    /// The device of whoever released.
    Device(u32),
    /// All; and the device of whoever released.
    All(u32),
}

fn audience(scope: Scope, cluster: u32, device: u32) -> Audience {
    match scope {
        Scope::Cta | Scope::Cluster => Audience::Cluster(cluster),
        Scope::Gpu => Audience::Device(device),
        Scope::Sys => Audience::All(device),
    }
}

/// Whether a scope includes an audience: at all, and beyond the cluster.
fn includes(to: Audience, scope: Scope, cluster: u32, device: u32) -> (bool, bool) {
    match to {
        Audience::Cluster(of) => (of == cluster, true),
        Audience::Device(of) | Audience::All(of) if of == device => (true, matches!(scope, Scope::Gpu | Scope::Sys)),
        Audience::All(_) => (scope == Scope::Sys, true),
        Audience::Device(_) => (false, false),
    }
}

/// A release.
struct Signal {
    by: Actor,
    epoch: u32,
    /// What it added to the word.
    adds: u64,
    to: Audience,
    known: Known,
    /// What came before it, whether its warp may know of that or not.
    after: Known,
}

/// A wait that took from the word.
struct Take {
    by: Actor,
    epoch: u32,
    amount: u64,
}

/// Signals, and waits, of a word that are remembered one by one.
const WINDOW: usize = 32;

/// What was released on a word, by who may observe it.
pub struct Released<A, K>(Vec<(A, K)>);

impl<A, K> Default for Released<A, K> {
    fn default() -> Released<A, K> {
        Released(vec![])
    }
}

impl<A: Copy + PartialEq, K: Knowledge> Released<A, K> {
    fn keep(&mut self, to: A, known: &K) {
        match self.0.iter_mut().find(|(audience, _)| *audience == to) {
            Some((_, released)) => released.join(known),
            None => self.0.push((to, known.clone())),
        }
    }
}

/// A word of global memory.
#[derive(Default)]
pub struct Word {
    /// What the signals released that are not remembered one by one.
    released: Released<Audience, Known>,
    /// The others, oldest first, while the word is a counter: only added to, and taken from by waits.
    signals: VecDeque<Signal>,
    takes: VecDeque<Take>,
    /// What the word held before those.
    base: u64,
    /// What it holds, as long as it is a counter.
    count: Option<u64>,
    is_other: bool,
    /// The last that released something, and where.
    pub signal: Option<(Actor, Loc)>,
    /// The last wait that is over.
    pub wait: Option<(Actor, Loc)>,
    /// There were waits that took from it what they waited for, other looks at it.
    pub taken: bool,
    pub looked_at: bool,
}

impl Word {
    /// It is no counter: its signals are one.
    fn forget_counts(&mut self) {
        (self.is_other, self.count) = (true, None);
        self.takes.clear();
        for signal in std::mem::take(&mut self.signals) {
            self.released.keep(signal.to, &signal.known);
        }
    }

    /// The oldest signal is one without which nothing goes on.
    fn forget_oldest(&mut self) {
        let Some(oldest) = self.signals.pop_front() else { return };
        self.base += oldest.adds;
        self.released.keep(oldest.to, &oldest.known);
    }

    /// Whether the word holds what its signals and waits say.
    fn holds(&mut self, value: u32) -> bool {
        let count = *self.count.get_or_insert(value.into());
        if count == u64::from(value) && !self.is_other {
            return true;
        }
        self.forget_counts();
        false
    }

    /// Of the signals that are remembered, those without which a wait for `value` might have ended, to one who has seen `seen`.
    fn avoidable(&self, value: u32, seen: &dyn Fn(Actor, u32) -> bool) -> Vec<bool> {
        let least = self.signals.iter().map(|s| s.adds).min().unwrap_or(0);
        if self.count.is_none_or(|count| count < u64::from(value) + least) {
            return vec![false; self.signals.len()];
        }
        let follows = |t: &Signal, actor: Actor, epoch| t.after.has_seen(actor, epoch);
        let is_avoidable = |s: &Signal| {
            if seen(s.by, s.epoch) {
                return false;
            }
            let others = || self.signals.iter().filter(|t| !follows(t, s.by, s.epoch));
            let taken = self
                .takes
                .iter()
                .filter(|take| seen(take.by, take.epoch) || others().any(|t| follows(t, take.by, take.epoch)));
            let sum = self.base + others().map(|t| t.adds).sum::<u64>();
            sum >= u64::from(value) + taken.map(|take| take.amount).sum::<u64>()
        };
        self.signals.iter().map(is_avoidable).collect()
    }
}

/// The space of global memory; those of CTAs' shared memory have the CTAs' numbers.
const GLOBAL: u32 = u32::MAX;

/// Words that somebody released on or waited for, of some spaces.
#[derive(Default)]
pub struct Words<W> {
    /// By space and address / 128, then by place in the line, in words of 4 bytes.
    lines: FxHashMap<(u32, u64), Vec<(u32, W)>>,
    /// A bit of each line's slot.
    present: [u64; 16],
}

/// The words of 4 bytes of an access.
fn words_of(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (address >> 2..(address + bytes).div_ceil(4)).map(|word| word << 2)
}

/// The line of a word, and its place there.
fn place(address: u64) -> (u64, u32) {
    (address >> 7, (address & 127) as u32 >> 2)
}

impl<W: Default> Words<W> {
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether there may be a word in the line of an address; right where it says no.
    #[inline(always)]
    pub fn may_have(&self, address: u64) -> bool {
        let slot = slot(address >> 7);
        self.present[slot / 64 % 16] >> (slot % 64) & 1 == 1
    }

    fn find(&self, space: u32, address: u64) -> Option<&W> {
        if !self.may_have(address) {
            return None;
        }
        let (line, place) = place(address);
        let words = self.lines.get(&(space, line))?;
        words.iter().find(|(at, _)| *at == place).map(|(_, word)| word)
    }

    fn find_mut(&mut self, space: u32, address: u64) -> Option<&mut W> {
        if !self.may_have(address) {
            return None;
        }
        let (line, place) = place(address);
        let words = self.lines.get_mut(&(space, line))?;
        words.iter_mut().find(|(at, _)| *at == place).map(|(_, word)| word)
    }

    fn entry(&mut self, space: u32, address: u64) -> &mut W {
        let ((line, place), slot) = (place(address), slot(address >> 7));
        self.present[slot / 64 % 16] |= 1 << (slot % 64);
        let words = self.lines.entry((space, line)).or_default();
        let at = words.iter().position(|(at, _)| *at == place).unwrap_or(words.len());
        if at == words.len() {
            words.push((place, W::default()));
        }
        &mut words[at].1
    }
}

impl Words<Word> {
    pub fn get(&self, address: u64) -> Option<&Word> {
        self.find(GLOBAL, address)
    }

    pub fn at(&mut self, address: u64) -> &mut Word {
        self.entry(GLOBAL, address)
    }

    /// All of them, by address.
    pub fn all(&self) -> Vec<(u64, &Word)> {
        let words = self.lines.iter().flat_map(|((_, line), words)| {
            let address = move |place: u32| (line << 7) + 4 * u64::from(place);
            words.iter().map(move |(place, word)| (address(*place), word))
        });
        let mut all: Vec<(u64, &Word)> = words.collect();
        all.sort_unstable_by_key(|(address, _)| *address);
        all
    }

    /// Bytes of a line hold what a store left there: nobody learns of older releases.
    pub fn overwrite(&mut self, line: u64, mask: Mask) {
        if !self.may_have(line << 7) {
            return;
        }
        let words = self.lines.get_mut(&(GLOBAL, line)).into_iter().flatten();
        for (_, word) in words.filter(|(place, _)| mask >> (4 * place) & 0xf != 0) {
            *word = Word {
                signal: word.signal,
                wait: word.wait,
                taken: word.taken,
                looked_at: word.looked_at,
                ..Word::default()
            };
        }
    }

    /// The same of all bytes of an access.
    pub fn overwrite_at(&mut self, address: u64, bytes: u64) {
        for (line, mask) in lines_of(address, bytes) {
            self.overwrite(line, mask);
        }
    }

    /// Leaves what is known at a place. `after`: what came before, besides.
    pub fn release(&mut self, (address, bytes): (u64, u64), scope: Scope, by: Releaser<'_>, known: &Known) {
        let to = audience(scope, by.actor.cluster, by.device);
        for at in words_of(address, bytes) {
            let word = self.at(at);
            word.signal = Some((by.actor, by.loc));
            if !by.counts {
                word.released.keep(to, known);
                continue;
            }
            if word.is_other || bytes != 4 {
                word.forget_counts();
                word.released.keep(to, known);
                continue;
            }
            let own = known
                .of(by.actor.cluster)
                .map(|epochs| epochs[by.actor.component as usize]);
            let mut after = known.clone();
            after.join(by.polled);
            // How much it adds is said next.
            word.signals.push_back(Signal {
                by: by.actor,
                epoch: own.unwrap_or(0),
                adds: 0,
                to,
                known: known.clone(),
                after,
            });
        }
    }

    /// An atomic that has released something adds to a word that holds `old`; or does something else.
    pub fn added(&mut self, address: u64, old: u32, amount: Option<u32>) {
        let Some(word) = self.find_mut(GLOBAL, address) else {
            return;
        };
        let amount = amount.filter(|amount| *amount <= i32::MAX as u32);
        if word.signals.len() == 1 && word.count.is_none() {
            word.base = old.into();
        }
        let (true, Some(amount)) = (word.holds(old), amount) else {
            word.forget_counts();
            return;
        };
        word.count = Some(u64::from(old) + u64::from(amount));
        match word.signals.back_mut() {
            Some(signal) if signal.adds == 0 && amount > 0 => signal.adds = amount.into(),
            _ => word.forget_counts(),
        }
        if word.signals.len() > WINDOW {
            word.forget_oldest();
        }
    }

    /// What a warp of a cluster learns there in a scope.
    pub fn observed(&self, (address, bytes): (u64, u64), scope: Scope, cluster: u32, device: u32) -> Known {
        let mut observed = Known::default();
        for word in words_of(address, bytes).filter_map(|at| self.get(at)) {
            let signals = word.signals.iter().map(|signal| (signal.to, &signal.known));
            let released = word.released.0.iter().map(|(to, released)| (*to, released));
            for (to, released) in released.chain(signals) {
                observe(&mut observed, to, released, scope, cluster, device);
            }
        }
        observed
    }

    /// What a warp of a cluster learns in a scope that has waited for a word, which held `held`, to be at least `value`.
    pub fn observed_by_wait(
        &mut self,
        address: u64,
        (held, value): (u32, u32),
        scope: Scope,
        (cluster, device): (u32, u32),
        seen: &dyn Fn(Actor, u32) -> bool,
    ) -> Known {
        let word = self.at(address);
        if word.signals.is_empty() || !word.holds(held) {
            return self.observed((address, 4), scope, cluster, device);
        }
        let mut observed = Known::default();
        for (to, released) in &word.released.0 {
            observe(&mut observed, *to, released, scope, cluster, device);
        }
        for (signal, avoidable) in word.signals.iter().zip(word.avoidable(value, seen)) {
            if !avoidable {
                observe(&mut observed, signal.to, &signal.known, scope, cluster, device);
            }
        }
        observed
    }

    /// A wait takes from a word what it waited for.
    pub fn take(&mut self, address: u64, (held, value): (u32, u32), by: Actor, epoch: u32) {
        let word = self.at(address);
        if word.signals.is_empty() && word.count.is_none() {
            word.base = held.into();
        }
        if !word.holds(held) {
            return;
        }
        word.count = Some(u64::from(held) - u64::from(value));
        let amount = value.into();
        word.takes.push_back(Take { by, epoch, amount });
        if word.takes.len() > WINDOW
            && let Some(Take { amount: oldest, .. }) = word.takes.pop_front()
        {
            while word.base < oldest && !word.signals.is_empty() {
                word.forget_oldest();
            }
            word.base = word.base.saturating_sub(oldest);
        }
    }
}

/// Who leaves something at a word, and what it has polled without a fence.
#[derive(Clone, Copy)]
pub struct Releaser<'a> {
    pub actor: Actor,
    pub device: u32,
    pub loc: Loc,
    pub polled: &'a Known,
    /// It is what the access releases, and nothing besides that.
    pub counts: bool,
}

fn observe(observed: &mut Known, to: Audience, released: &Known, scope: Scope, cluster: u32, device: u32) {
    match includes(to, scope, cluster, device) {
        (false, _) => {}
        (true, true) => observed.join(released),
        // In a scope that ends with the cluster: of the cluster.
        (true, false) => {
            if let Some(own) = released.of(cluster) {
                observed.see(cluster, own);
            }
        }
    }
}

/// Whether a scope reaches beyond a CTA.
pub fn is_wide(scope: Scope) -> bool {
    scope != Scope::Cta
}

/// A word of shared memory: what warps of a CTA released there, to their own CTA or (true) to the cluster.
pub type SharedWord = Released<(CtaSlot, bool), Clock>;

/// So many bytes of a CTA's shared memory, from an offset on.
type Place = (CtaSlot, u32, u32);

impl Words<SharedWord> {
    /// A cluster begins: nothing has been released in the shared memory of its CTAs.
    pub fn clear(&mut self, slots: &Range<usize>) {
        self.lines.retain(|(slot, _), _| !slots.contains(&(*slot as usize)));
    }

    /// A store: who reads what it leaves there learns of no release before it. (Of a part of a word, who reads the rest does.)
    pub fn replace(&mut self, (slot, at, bytes): Place) {
        for at in words_of(at.into(), bytes.into()).filter(|_| bytes >= 4) {
            let (line, place) = place(at);
            if let Entry::Occupied(mut words) = self.lines.entry((slot.0, line)) {
                words.get_mut().retain(|(at, _)| *at != place);
                if words.get().is_empty() {
                    words.remove();
                }
            }
        }
    }

    /// A warp of CTA `by` releases what `clock` knows.
    pub fn release(&mut self, (slot, at, bytes): Place, by: CtaSlot, wide: bool, clock: &Clock) {
        for at in words_of(at.into(), bytes.into()) {
            self.entry(slot.0, at).keep((by, wide), clock);
        }
    }

    /// What a warp of CTA `by` may learn of a place: clocks, and whether it takes a scope beyond the CTA.
    pub fn observed(&self, (slot, at, bytes): Place, by: CtaSlot) -> impl Iterator<Item = (&Clock, bool)> {
        let words = words_of(at.into(), bytes.into()).filter_map(move |at| self.find(slot.0, at));
        let released = words.flat_map(|word| &word.0);
        released
            .filter(move |((of, wide), _)| *of == by || *wide)
            .map(move |((of, _), clock)| (clock, *of != by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(cluster: u32) -> Actor {
        Actor { cluster, component: 0 }
    }

    fn known(of: &[(u32, u32)]) -> Known {
        let mut known = Known::default();
        of.iter().for_each(|(cluster, epoch)| known.see(*cluster, &[*epoch]));
        known
    }

    fn release(words: &mut Words<Word>, place: (u64, u64), scope: Scope, cluster: u32, known: &Known) {
        let by = Releaser {
            actor: actor(cluster),
            device: 0,
            loc: Loc(cluster),
            polled: &Known::default(),
            counts: true,
        };
        words.release(place, scope, by, known);
    }

    /// Clusters 0 and 1 on device 0, 2 on device 1.
    #[test]
    fn scopes_must_include_each_other() {
        let hears = |tells: Scope, asks: Scope, cluster: u32, device: u32| {
            let mut words = Words::default();
            release(&mut words, (256, 4), tells, 0, &known(&[(0, 7)]));
            let observed = words.observed((256, 4), asks, cluster, device);
            assert!(words.observed((260, 4), asks, cluster, device).is_empty());
            !observed.is_empty()
        };
        use Scope::*;
        for (tells, asks) in [(Cta, Sys), (Cluster, Gpu), (Gpu, Cluster), (Sys, Cta)] {
            assert!(hears(tells, asks, 0, 0), "{tells:?}, {asks:?}");
            assert!(!hears(tells, asks, 1, 0), "{tells:?}, {asks:?}");
        }
        for (tells, asks) in [(Gpu, Gpu), (Gpu, Sys), (Sys, Gpu), (Sys, Sys)] {
            assert!(hears(tells, asks, 1, 0), "{tells:?}, {asks:?}");
            let both = tells == Sys && asks == Sys;
            assert_eq!(hears(tells, asks, 2, 1), both, "{tells:?}, {asks:?}");
        }
    }

    #[test]
    fn atomics_add_and_stores_replace() {
        let mut words = Words::default();
        release(&mut words, (8, 8), Scope::Gpu, 0, &known(&[(0, 7)]));
        release(&mut words, (12, 4), Scope::Gpu, 1, &known(&[(1, 7)]));
        let observed = words.observed((12, 4), Scope::Gpu, 5, 0);
        assert!(observed.has_seen(actor(0), 7) && observed.has_seen(actor(1), 7));
        assert!(words.observed((8, 4), Scope::Gpu, 5, 0).of(1).is_none());
        assert_eq!(words.get(12).unwrap().signal, Some((actor(1), Loc(1))));
        words.overwrite_at(14, 1);
        assert!(words.observed((12, 4), Scope::Gpu, 5, 0).is_empty());
        assert!(!words.observed((8, 4), Scope::Gpu, 5, 0).is_empty());
        assert_eq!(words.all().iter().map(|(at, _)| *at).collect::<Vec<_>>(), [8, 12]);
    }

    /// A counter at 0: its value, and whoever releases and waits.
    struct Counter(Words<Word>, u32);

    impl Counter {
        fn signal(&mut self, cluster: u32, amount: u32, of: &[(u32, u32)]) {
            release(&mut self.0, (0, 4), Scope::Gpu, cluster, &known(of));
            self.0.added(0, self.1, Some(amount));
            self.1 += amount;
        }
        /// The clusters of which a wait learns that knows nothing yet.
        fn learns(&mut self, value: u32) -> Vec<u32> {
            let nobody = |_: Actor, _: u32| false;
            let observed = self.0.observed_by_wait(0, (self.1, value), Scope::Gpu, (9, 0), &nobody);
            (0..9).filter(|cluster| observed.of(*cluster).is_some()).collect()
        }
        fn take(&mut self, value: u32) {
            self.0.take(0, (self.1, value), actor(9), 1);
            self.1 -= value;
        }
    }

    #[test]
    fn a_wait_learns_of_the_signals_that_it_needs() {
        let mut two = Counter(Words::default(), 0);
        two.signal(0, 1, &[(0, 1)]);
        assert_eq!(two.learns(1), [0]);
        two.signal(1, 1, &[(1, 1)]);
        assert_eq!(two.learns(2), [0, 1]);
        // Either will do.
        assert!(two.learns(1).is_empty());
        // Whoever signals after 0 and 1 vouches for both.
        two.signal(2, 1, &[(0, 1), (1, 1), (2, 1)]);
        assert_eq!(two.learns(2), [0, 1]);
        assert_eq!(two.learns(3), [0, 1, 2]);

        let mut one = Counter(Words::default(), 0);
        one.signal(0, 1, &[(0, 1)]);
        one.signal(0, 1, &[(0, 2)]);
        // The first of two of one warp comes first.
        let nobody = |_: Actor, _: u32| false;
        let observed = one.0.observed_by_wait(0, (2, 1), Scope::Gpu, (9, 0), &nobody);
        assert!(observed.has_seen(actor(0), 1) && !observed.has_seen(actor(0), 2));
    }

    #[test]
    fn what_has_been_taken_is_gone() {
        let mut counter = Counter(Words::default(), 0);
        counter.signal(0, 1, &[(0, 1)]);
        counter.take(1);
        let own = |actor: Actor, epoch: u32| actor.cluster == 9 || actor.cluster == 0 && epoch == 1;
        counter.signal(1, 2, &[(1, 1)]);
        let observed = counter.0.observed_by_wait(0, (2, 2), Scope::Gpu, (9, 0), &own);
        assert!(observed.of(1).is_some());
        // One more than there should be: 1 might not have been needed.
        counter.signal(2, 2, &[(2, 1)]);
        let observed = counter.0.observed_by_wait(0, (4, 2), Scope::Gpu, (9, 0), &own);
        assert!(observed.of(1).is_none() && observed.of(2).is_none());
    }

    #[test]
    fn what_is_no_counter_tells_all() {
        let mut words = Counter(Words::default(), 0);
        words.signal(0, 1, &[(0, 1)]);
        words.signal(1, 1, &[(1, 1)]);
        // Somebody has stored meanwhile.
        words.1 = 7;
        assert_eq!(words.learns(1), [0, 1]);
        words.signal(2, 1, &[(2, 1)]);
        assert_eq!(words.learns(1), [0, 1, 2]);
        let mut other = Counter(Words::default(), 0);
        release(&mut other.0, (0, 4), Scope::Gpu, 0, &known(&[(0, 1)]));
        other.0.added(0, 0, None);
        other.signal(1, 1, &[(1, 1)]);
        assert_eq!(other.learns(1), [0, 1]);
    }

    #[test]
    fn old_signals_count_as_needed() {
        let mut counter = Counter(Words::default(), 0);
        for cluster in 0..8 {
            counter.signal(cluster, 1, &[(cluster, 1)]);
        }
        for epoch in 1..2 * WINDOW as u32 {
            counter.signal(8, 1, &[(8, epoch)]);
            counter.take(1);
        }
        assert_eq!(counter.learns(8), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(counter.0.get(0).unwrap().signals.len() <= WINDOW);
    }

    fn of(component: usize) -> Clock {
        let mut clock = Clock::new(4);
        clock.see(component, 1);
        clock
    }

    /// The components that a reader observes with scope CTA, and with a wider one.
    fn heard_by(words: &Words<SharedWord>, at: u32, bytes: u32, by: u32) -> [Vec<usize>; 2] {
        [false, true].map(|scope| {
            let mut all = Clock::new(4);
            words
                .observed((CtaSlot(0), at, bytes), CtaSlot(by))
                .filter(|(_, wide)| scope || !wide)
                .for_each(|(clock, _)| all.join(clock));
            (0..4).filter(|i| all.seen()[*i] > 0).collect()
        })
    }

    #[test]
    fn a_word_tells_what_was_released_there_to_whom_its_scope_includes() {
        let (own, peer) = (CtaSlot(0), CtaSlot(1));
        let mut words = Words::<SharedWord>::default();
        words.release((own, 8, 4), own, false, &of(0));
        words.release((own, 8, 4), own, true, &of(1));
        words.release((own, 8, 4), peer, false, &of(2));
        words.release((own, 12, 4), own, true, &of(3));
        assert_eq!(heard_by(&words, 8, 4, 0), [vec![0, 1], vec![0, 1]]);
        assert_eq!(heard_by(&words, 8, 4, 1), [vec![2], vec![1, 2]]);
        assert_eq!(heard_by(&words, 8, 8, 0), [vec![0, 1, 3], vec![0, 1, 3]]);
        assert_eq!(heard_by(&words, 4, 4, 0), [[], []] as [[usize; 0]; 2]);
    }

    #[test]
    fn a_store_takes_the_place_of_releases_of_its_words() {
        let own = CtaSlot(0);
        let mut words = Words::<SharedWord>::default();
        words.release((own, 0, 8), own, false, &of(0));
        words.replace((own, 0, 2));
        assert_eq!(heard_by(&words, 0, 4, 0)[0], [0]);
        words.replace((own, 0, 4));
        assert!(heard_by(&words, 0, 4, 0)[0].is_empty());
        assert_eq!(heard_by(&words, 4, 4, 0)[0], [0]);
        words.clear(&(0..1));
        assert!(heard_by(&words, 4, 4, 0)[0].is_empty() && words.is_empty());
    }
}
