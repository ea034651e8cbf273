//! What is remembered of a space of memory: who touched each line of 128 bytes, how, and when.
//!
//! The shared memory of a CTA is a space, so is what a CTA does to global memory, and what all clusters do to it: each an instance of
//! [`Shadow`], as a new kind of memory will be. Of a warp's reads of a line, of its writes and of its atomics, nearly always the last epoch is
//! all that matters: its [`Cell`]. So it is with the bulk loads that land there, and with each warpgroup's products. What a later epoch leaves of
//! a cell (bytes that are not touched then), and all else (flags, peers' accesses, bulk stores in flight), is in the line's list: each of an
//! actor until it makes one that stands for it.
//!
//! Whether all that others of the CTA did to a line has been seen is mostly said by [`Stamps`], without a look at any cell; and that it was
//! when a warp last touched it in this epoch, and that nothing has happened to the line since, by one number: of shared memory the line's own
//! version, of global memory, which several shadows remember, what [`Versions`](super::versions::Versions) says.
use super::race::{Actor, IN_FLIGHT, Kind, Lack, Past, SameEpoch, Side, conflicts, lack};
use super::versions::slot;
use crate::emulate::overwrite::Mask;
use crate::emulate::row::lanes;
use crate::error::Loc;
use crate::ptx::modifier::Scope;
use rustc_hash::FxHashMap;

/// The last epoch of a column's accesses to a line: its bytes below 64, those above, and the last instruction.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    halves: [u64; 2],
    epoch: u32,
    loc: Loc,
    /// Of the line, when its actor had seen all that others did to it.
    version: u32,
    /// Of atomics.
    scope: Option<Scope>,
}

impl Cell {
    fn new(mask: Mask, epoch: u32, loc: Loc, scope: Option<Scope>) -> Cell {
        Cell {
            halves: [mask as u64, (mask >> 64) as u64],
            epoch,
            loc,
            version: 0,
            scope,
        }
    }
    #[inline(always)]
    fn mask(&self) -> Mask {
        Mask::from(self.halves[0]) | Mask::from(self.halves[1]) << 64
    }
    #[inline(always)]
    fn add(&mut self, mask: Mask) {
        self.halves[0] |= mask as u64;
        self.halves[1] |= (mask >> 64) as u64;
    }
    /// Whether it has all these bytes.
    #[inline(always)]
    pub fn covers(&self, mask: Mask) -> bool {
        mask & !self.mask() == 0
    }
    /// The same of bytes that begin at an address, in one half of its line.
    #[inline(always)]
    pub fn covers_at(&self, at: u64, bytes: u32) -> bool {
        let (half, from) = (self.halves[(at >> 6 & 1) as usize], at & 63);
        let bits = u64::MAX >> (64 - bytes);
        from + u64::from(bytes) <= 64 && half >> from & bits == bits
    }
    /// Whether it is of an actor's present epoch, and in a scope.
    #[inline(always)]
    fn is_of(&self, epoch: u32, scope: Option<Scope>) -> bool {
        self.epoch == epoch && self.scope == scope
    }
}

/// When warps last began to do something to a line in an epoch of theirs, by a checker's count of such beginnings: one warp, and all others.
#[derive(Clone, Copy, Default)]
struct Stamps {
    by: u32,
    epoch: u32,
    last: u32,
    before: u32,
}

impl Stamps {
    #[inline(always)]
    fn note(&mut self, by: u32, epoch: u32, now: u32) {
        if self.by != by {
            // Who came last may have begun earlier than those before.
            (self.by, self.before) = (by, self.before.max(self.last));
        }
        (self.epoch, self.last) = (epoch, now);
    }
    /// Whether a warp has seen all that others did, as far as can be said.
    #[inline(always)]
    fn are_seen(&self, mine: &Side<'_>) -> bool {
        let until = mine.glance.until;
        let is_last_seen = self.by == mine.by.component || self.epoch <= mine.seen.seen()[self.by as usize];
        self.before <= until && (is_last_seen || self.last <= until)
    }
}

/// Bit of [`Line::asyncs`]: bulk loads. Those of the warpgroups' products are above.
const LOADS: u32 = 1;

#[derive(Default)]
struct Line {
    /// Where its cells begin, and those of its atomics; 0: it has none yet.
    cells: u32,
    atomics: u32,
    /// Goes on with whatever happens to the line, but for what an actor does again in an epoch.
    version: u32,
    /// Columns that have a cell: warps that read, warps that wrote, what acts asynchronously, and warps with atomics.
    readers: u32,
    writers: u32,
    asyncs: u32,
    updaters: u32,
    /// The largest epoch of a bulk load, or reduction.
    landed: u32,
    read: Stamps,
    wrote: Stamps,
    others: Vec<Past>,
    /// There are some of other kinds, or by others, than the stamps are of.
    foreign: bool,
}

/// A past access that a new one races with: in which bytes (of what a load writes: all of the new one's in the line), and what is missing.
#[derive(Clone, Debug)]
pub struct Found {
    pub line: u64,
    pub hit: Mask,
    pub theirs: Past,
    pub lack: Lack,
    rank: u32,
    /// Of several alike the last is told.
    last: bool,
}

impl Found {
    fn new(line: u64, hit: Mask, theirs: Past, lack: Lack, mine: &Side<'_>) -> Found {
        let fences = mine.kind.needs_fences();
        let rank = match theirs.kind {
            // Wherever somebody touches what a load writes.
            Kind::Load | Kind::Reduction | Kind::SmallWrite => 0,
            Kind::Product | Kind::Issued => 3,
            _ if !fences || theirs.kind.writes() => 1,
            _ if lack == Lack::Order => 2,
            _ => 4,
        };
        Found {
            line,
            hit,
            theirs,
            lack,
            rank,
            last: !fences,
        }
    }
}

impl Found {
    /// Whether a later access of the same actor stands for this.
    fn is_behind(&self, other: &Found) -> bool {
        let of = |it: &Found| (it.line, it.theirs.by, it.theirs.kind);
        of(self) == of(other) && self.theirs.epoch < other.theirs.epoch
    }
}

/// Of two findings of an access, the one to tell.
#[inline(always)]
pub fn worst(found: &mut Option<Found>, other: Option<Found>) {
    let Some(b) = other else { return };
    if found
        .as_ref()
        .is_none_or(|a| b.rank < a.rank || b.rank == a.rank && b.last && !b.is_behind(a))
    {
        *found = Some(b);
    }
}

/// Components of the actors that have columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Columns {
    /// The first warp, and how many there are.
    pub first: u32,
    pub warps: u32,
    /// The bulk loads, and the first warpgroup's products.
    pub loads: u32,
    pub products: u32,
    /// Warpgroups; of a space without asynchronous actors there are none.
    pub warpgroups: u32,
}

impl Columns {
    /// Cells of a line: each warp's reads, and writes, the loads, each warpgroup's products. Those of atomics come behind, elsewhere.
    #[inline(always)]
    fn stride(&self) -> u32 {
        2 * self.warps + 1 + self.warpgroups
    }

    /// Where a column's cell of a line is.
    #[inline(always)]
    fn place(&self, line: &Line, column: u32) -> usize {
        match column.checked_sub(self.stride()) {
            None => (line.cells + column) as usize,
            Some(warp) => (line.atomics + warp) as usize,
        }
    }

    /// The column of a warp's accesses of a kind, if there is one.
    #[inline(always)]
    pub fn of(&self, component: u32, kind: Kind) -> Option<u32> {
        let warp = component - self.first;
        match kind {
            Kind::Read => Some(warp),
            Kind::Write => Some(self.warps + warp),
            Kind::Atomic(_) => Some(self.stride() + warp),
            _ => None,
        }
    }
}

pub struct Shadow {
    pub columns: Columns,
    lines: Vec<Line>,
    /// The first line's are nobody's.
    cells: Vec<Cell>,
    /// Of a space that is too large for all its lines: where they are, by address / 128, and the last that were looked for.
    index: FxHashMap<u64, usize>,
    found: [(u64, usize); FOUND],
}

/// Says of a line of a large space what a warp's instruction has left there in this epoch.
pub struct Repeats<'a> {
    shadow: &'a Shadow,
    /// Of the line's cells, or of those of its atomics.
    place: u32,
    scope: Option<Scope>,
    epoch: u32,
    loc: Loc,
}

impl Repeats<'_> {
    /// Its cell, if the line is at hand, and this is its version still.
    #[inline(always)]
    pub fn of(&self, address: u64, version: u32) -> Option<&Cell> {
        let (at, line) = self.shadow.found[slot(address) % FOUND];
        let head = self.shadow.lines.get(line).filter(|_| at == address)?;
        let cells = if self.scope.is_some() { head.atomics } else { head.cells };
        let cell = self.shadow.cells.get((cells + self.place) as usize)?;
        let is_same = cell.is_of(self.epoch, self.scope) && (cell.loc, cell.version) == (self.loc, version);
        is_same.then_some(cell)
    }
}

/// Lines of a large space that need not be looked for.
const FOUND: usize = 256;
const NONE_FOUND: [(u64, usize); FOUND] = [(u64::MAX, 0); FOUND];

impl Shadow {
    /// Of so many lines; those of larger spaces are found by [`Shadow::line`].
    pub fn new(columns: Columns, lines: usize) -> Shadow {
        Shadow {
            columns,
            lines: (0..lines).map(|_| Line::default()).collect(),
            cells: vec![Cell::default(); columns.stride() as usize],
            index: FxHashMap::default(),
            found: NONE_FOUND,
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        match self.index.is_empty() {
            true => self.lines.iter_mut().for_each(|line| {
                line.others.clear();
                *line = Line {
                    others: std::mem::take(&mut line.others),
                    ..Line::default()
                };
            }),
            false => self.lines.clear(),
        }
        self.cells.truncate(self.columns.stride() as usize);
        self.index.clear();
        self.found = NONE_FOUND;
    }

    /// The number of a line.
    #[inline(always)]
    pub fn line(&mut self, address: u64) -> usize {
        let found = &mut self.found[slot(address) % FOUND];
        if found.0 != address {
            let next = self.lines.len();
            let line = *self.index.entry(address).or_insert(next);
            if line == next {
                self.lines.push(Line::default());
            }
            *found = (address, line);
        }
        found.1
    }

    /// The number of a line that somebody has touched.
    pub fn peek(&self, address: u64) -> Option<usize> {
        self.index.get(&address).copied()
    }

    /// All lines, by address / 128.
    pub fn addresses(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.index.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// What is remembered of a line besides the columns.
    pub fn others(&self, line: usize) -> &[Past] {
        &self.lines[line].others
    }
    pub fn others_mut(&mut self, line: usize) -> &mut Vec<Past> {
        &mut self.lines[line].others
    }

    /// For accesses of a warp to a large space in an epoch, if those of their kind have cells.
    #[inline(always)]
    pub fn repeats(&self, again: &SameEpoch) -> Option<Repeats<'_>> {
        let scope = again.kind.scope();
        let column = self.columns.of(again.component, again.kind)?;
        Some(Repeats {
            shadow: self,
            place: column - if scope.is_some() { self.columns.stride() } else { 0 },
            scope,
            epoch: again.epoch,
            loc: again.loc,
        })
    }

    fn cell(&self, line: &Line, column: u32) -> &Cell {
        &self.cells[self.columns.place(line, column)]
    }

    /// What a column's cell of a line says.
    #[inline(always)]
    fn remembered(&self, line: &Line, column: u32) -> Past {
        let Columns { first, warps, .. } = self.columns;
        let cell = self.cell(line, column);
        let (component, kind) = match column {
            _ if let Some(scope) = cell.scope => (first + column - self.columns.stride(), Kind::Atomic(scope)),
            _ if column < warps => (first + column, Kind::Read),
            _ if column < 2 * warps => (first + column - warps, Kind::Write),
            _ if column == 2 * warps => (self.columns.loads, Kind::Load),
            _ => (self.columns.products + column - 2 * warps - 1, Kind::Product),
        };
        Past::new(Actor::own(component), kind, cell.epoch, cell.loc, cell.mask())
    }

    /// Whether nothing that others did to a line is unseen, as far as can be said at a glance.
    #[inline(always)]
    fn is_quiet(line: &Line, mine: &Side<'_>) -> bool {
        line.landed <= mine.glance.landed
            && !line.foreign
            && (line.updaters == 0 || mine.kind.scope().is_some())
            && line.wrote.are_seen(mine)
            && (!mine.kind.writes() || line.asyncs <= LOADS && line.read.are_seen(mine))
    }

    /// Lanes of a warp read, write or update bytes that begin `at` so many of the space: those are left of which more than a glance is needed,
    /// and which have not been noted.
    #[inline(always)]
    pub fn touch(&mut self, at: &[u32; 32], mask: u32, bytes: u32, again: &SameEpoch) -> u32 {
        let scope = again.kind.scope();
        match self.columns.of(again.component, again.kind) {
            None => mask,
            Some(column) if scope.is_none() => {
                self.touch_cells(at, mask, bytes, again, |line| line.cells + column, |_| true)
            }
            Some(column) => {
                let warp = column - self.columns.stride();
                self.touch_cells(
                    at,
                    mask,
                    bytes,
                    again,
                    |line| line.atomics + warp,
                    |cell| cell.scope == scope,
                )
            }
        }
    }

    #[inline(always)]
    fn touch_cells(
        &mut self,
        at: &[u32; 32],
        mask: u32,
        bytes: u32,
        again: &SameEpoch,
        place: impl Fn(&Line) -> u32,
        is_alike: impl Fn(&Cell) -> bool,
    ) -> u32 {
        let (lines, cells) = (&self.lines[..], &mut self.cells[..]);
        let bits = u64::MAX >> (64 - bytes);
        let mut left = 0;
        for (i, at) in at.iter().enumerate() {
            if mask >> i & 1 == 0 {
                continue;
            }
            let known = (|| {
                let head = lines.get((at >> 7) as usize)?;
                let cell = cells.get_mut(place(head) as usize)?;
                if cell.epoch != again.epoch || cell.version != head.version || !is_alike(cell) {
                    return None;
                }
                cell.halves[(at >> 6 & 1) as usize] |= bits << (at & 63);
                cell.loc = again.loc;
                Some(())
            })();
            left |= u32::from(known.is_none()) << i;
        }
        left
    }

    /// The same of all bytes of some lines; whether nothing is left.
    #[inline(always)]
    pub fn touch_lines(&mut self, lines: impl Iterator<Item = (u64, Mask)>, again: &SameEpoch) -> bool {
        let Some(column) = self.columns.of(again.component, again.kind) else {
            return false;
        };
        for (line, mask) in lines {
            let head = &self.lines[line as usize];
            let cell = &mut self.cells[self.columns.place(head, column)];
            if !cell.is_of(again.epoch, again.kind.scope()) || cell.version != head.version {
                return false;
            }
            cell.add(mask);
            cell.loc = again.loc;
        }
        true
    }

    /// A warp accesses any bytes of a line of shared memory: with what it races.
    #[inline]
    pub fn access(
        &mut self,
        (line, address): (usize, u64),
        mask: Mask,
        mine: &Side<'_>,
        changes: &dyn Fn() -> Mask,
    ) -> Option<Found> {
        if self.touch_lines(std::iter::once((line as u64, mask)), &mine.same_epoch()) {
            return None;
        }
        let is_quiet = Shadow::is_quiet(&self.lines[line], mine);
        let found = self.look((line, address), mask, mine, changes);
        self.put(line, mask, mine);
        if is_quiet {
            self.mark(line, mine, self.lines[line].version);
        }
        found
    }

    /// With what an access to bytes of a line races, mostly at a glance: but for what is asynchronous, which comes behind its own warp's, too.
    #[inline(always)]
    pub fn look(
        &self,
        (line, address): (usize, u64),
        mask: Mask,
        mine: &Side<'_>,
        changes: &dyn Fn() -> Mask,
    ) -> Option<Found> {
        match !mine.kind.is_async() && Shadow::is_quiet(&self.lines[line], mine) {
            true => None,
            false => self.find((line, address), mask, mine, changes),
        }
    }

    /// Notes an access of a warp.
    #[inline(always)]
    pub fn put(&mut self, line: usize, mask: Mask, mine: &Side<'_>) {
        let Some(column) = self.columns.of(mine.by.component, mine.kind) else {
            if mine.kind != Kind::Poll {
                self.remember(line, mine.past(mask));
            }
            return;
        };
        self.note(line, column, Cell::new(mask, mine.epoch, mine.loc, mine.kind.scope()));
        let head = &mut self.lines[line];
        let stamps = match mine.kind {
            Kind::Read => &mut head.read,
            Kind::Write => &mut head.wrote,
            _ => return,
        };
        stamps.note(mine.by.component, mine.epoch, mine.glance.now);
    }

    /// Whether a warp's access to bytes of a line is in its cell already.
    #[inline(always)]
    pub fn has(&self, line: usize, mask: Mask, mine: &Side<'_>) -> bool {
        self.columns.of(mine.by.component, mine.kind).is_some_and(|column| {
            let cell = self.cell(&self.lines[line], column);
            cell.is_of(mine.epoch, mine.kind.scope()) && cell.covers(mask)
        })
    }

    /// A warp that has noted an access need not look at the line again in this epoch, as long as this is the version.
    #[inline(always)]
    pub fn mark(&mut self, line: usize, mine: &Side<'_>, version: u32) {
        if let Some(column) = self.columns.of(mine.by.component, mine.kind) {
            let at = self.columns.place(&self.lines[line], column);
            self.cells[at].version = version;
        }
    }

    /// The same of a line of global memory with other versions before the access was noted and now. All that the cell has must have been looked at:
    /// with this access, or when it got the version before.
    #[inline(always)]
    pub fn mark_looked(&mut self, line: usize, mask: Mask, mine: &Side<'_>, [before, now]: [u32; 2]) {
        if let Some(column) = self.columns.of(mine.by.component, mine.kind) {
            let cell = self.cell(&self.lines[line], column);
            if cell.version == before || cell.mask() == mask {
                self.mark(line, mine, now);
            }
        }
    }

    /// Of what is remembered of a line, that with which an access to these bytes races.
    #[inline(never)]
    pub fn find(
        &self,
        (line, address): (usize, u64),
        mask: Mask,
        mine: &Side<'_>,
        changes: &dyn Fn() -> Mask,
    ) -> Option<Found> {
        let (head, Columns { first, warps, .. }) = (&self.lines[line], self.columns);
        let (fences, alone) = (mine.kind.needs_fences(), !mine.kind.is_async());
        let loads = self.columns.loads as usize;
        // Reads are held against what writes.
        let (readers, asyncs) = match mine.kind.writes() {
            true => (head.readers, head.asyncs),
            false => (0, head.asyncs & LOADS),
        };
        // Atomics do not race with each other.
        let updaters = if mine.kind.scope().is_some() { 0 } else { head.updaters };
        let landed = head.landed <= mine.seen.seen()[loads];
        if landed && head.writers | readers | updaters | asyncs >> 1 == 0 && head.others.is_empty() {
            return None;
        }
        let mut found = None;
        let mut hold = |theirs: &Past| {
            let (hit, component) = (theirs.mask & mask, theirs.by.component);
            let is_own = component == mine.by.component;
            let skips = match theirs.kind {
                Kind::Load | Kind::Product | Kind::Issued | Kind::Reduction | Kind::SmallRead | Kind::SmallWrite => {
                    false
                }
                // Of a warp's bulk copies each but the one itself.
                Kind::BulkRead | Kind::BulkWrite | Kind::BulkReduction => is_own && theirs.number == mine.number,
                // Its own accesses are in order; and the async proxy is held against those of the CTA's own warps.
                _ => is_own && alone || fences && component.wrapping_sub(first) >= warps,
            };
            if hit == 0 || skips {
                return;
            }
            let Some(lack) = lack(theirs.kind, component, theirs.epoch, mine) else {
                return;
            };
            let atomic = theirs.kind.scope().is_some() && mine.kind.scope().is_some();
            if conflicts(theirs.kind, mine.kind, atomic, || hit & changes() != 0) {
                let whole = matches!(theirs.kind, Kind::Load | Kind::Reduction);
                let hit = if whole { mask } else { hit };
                worst(&mut found, Some(Found::new(address, hit, theirs.clone(), lack, mine)));
            }
        };
        let mut columns = |present: u32, from: u32| {
            lanes(present).for_each(|column| hold(&self.remembered(head, from + column as u32)));
        };
        columns(head.writers, warps);
        columns(readers, 0);
        columns(asyncs, 2 * warps);
        columns(updaters, self.columns.stride());
        head.others.iter().for_each(hold);
        found
    }

    /// A column's actor touches bytes of a line in an epoch.
    #[inline(always)]
    fn note(&mut self, line: usize, column: u32, new: Cell) {
        let head = &mut self.lines[line];
        let (warps, stride) = (self.columns.warps, self.columns.stride());
        let (present, bit) = match column {
            _ if column < warps => (&mut head.readers, column),
            _ if column < 2 * warps => (&mut head.writers, column - warps),
            _ if column < stride => (&mut head.asyncs, column - 2 * warps),
            _ => (&mut head.updaters, column - stride),
        };
        let old = *present >> bit & 1 == 1;
        *present |= 1 << bit;
        let cell = &mut self.cells[self.columns.place(head, column)];
        if old && cell.is_of(new.epoch, new.scope) {
            cell.add(new.mask());
            cell.loc = new.loc;
        } else {
            self.turn(line, column, old, new);
        }
    }

    /// A column's cell of a line, which has one from now on.
    #[inline(always)]
    fn cell_mut(&mut self, line: usize, column: u32) -> &mut Cell {
        let (head, columns) = (&mut self.lines[line], self.columns);
        let (begin, count) = match column < columns.stride() {
            true => (&mut head.cells, columns.stride()),
            false => (&mut head.atomics, columns.warps),
        };
        if *begin == 0 {
            *begin = self.cells.len() as u32;
            self.cells.resize(self.cells.len() + count as usize, Cell::default());
        }
        &mut self.cells[columns.place(head, column)]
    }

    /// The same in a new epoch. `old`: there was one before.
    fn turn(&mut self, line: usize, column: u32, old: bool, new: Cell) {
        let mask = new.mask();
        self.lines[line].version += 1;
        let left = if old {
            self.cell(&self.lines[line], column).mask() & !mask
        } else {
            0
        };
        if left == 0 && self.lines[line].others.is_empty() && !self.lines[line].foreign {
            *self.cell_mut(line, column) = new;
            return;
        }
        let left = old.then(|| self.remembered(&self.lines[line], column));
        *self.cell_mut(line, column) = new;
        let mine = self.remembered(&self.lines[line], column);
        let others = &mut self.lines[line].others;
        if !others.is_empty() {
            // What it has of the last epoch stands for those before it, too.
            let covered = mask | left.as_ref().map_or(0, |left| left.mask);
            others.retain_mut(|it| {
                if it.by == mine.by && mine.kind.stands_for(it.kind) {
                    it.mask &= !covered;
                }
                it.mask != 0
            });
        }
        others.extend(
            left.map(|left| Past {
                mask: left.mask & !mask,
                ..left
            })
            .filter(|left| left.mask != 0),
        );
        if !others.is_empty() || self.lines[line].foreign {
            self.count_foreign(line);
        }
    }

    /// An access that has no column.
    pub fn remember(&mut self, line: usize, past: Past) {
        let others = &mut self.lines[line].others;
        let same = |it: &Past| (it.by, it.kind, it.epoch, it.number) == (past.by, past.kind, past.epoch, past.number);
        if let Some(old) = others.iter_mut().find(|it| same(it)) {
            old.mask |= past.mask;
            old.loc = past.loc;
            self.lines[line].version += 1;
            return;
        }
        others.retain_mut(|it| {
            if it.by == past.by && past.kind.stands_for(it.kind) {
                it.mask &= !past.mask;
            }
            it.mask != 0
        });
        others.push(past);
        self.count_foreign(line);
    }

    fn count_foreign(&mut self, line: usize) {
        let Columns { first, warps, .. } = self.columns;
        let stamped =
            |it: &Past| matches!(it.kind, Kind::Read | Kind::Write) && it.by.component.wrapping_sub(first) < warps;
        let head = &mut self.lines[line];
        head.foreign = !head.others.iter().all(stamped);
        head.version += 1;
    }

    /// A warpgroup's products of a group read bytes of a line.
    pub fn multiply(&mut self, line: usize, warpgroup: u32, group: u32, mask: Mask, loc: Loc) {
        self.note(
            line,
            2 * self.columns.warps + 1 + warpgroup,
            Cell::new(mask, group, loc, None),
        );
    }

    /// A bulk load to bytes of a line is issued ([`IN_FLIGHT`]), or lands. Pieces of less than 16 bytes (`st.async`) share them with others and
    /// are not followed.
    pub fn load(&mut self, line: usize, mask: Mask, number: u32, loc: Loc) {
        let column = 2 * self.columns.warps;
        let cell = *self.cell_mut(line, column);
        let head = &mut self.lines[line];
        if mask == Mask::MAX && number == IN_FLIGHT {
            // Whoever touches the line later comes after this load, and so after those.
            head.others.clear();
            (head.readers, head.writers, head.updaters) = (0, 0, 0);
            (head.asyncs, head.foreign) = (LOADS, false);
            (head.read, head.wrote) = Default::default();
        } else if head.asyncs & LOADS == 0 || !head.others.is_empty() || cell.epoch != IN_FLIGHT || cell.mask() != mask
        {
            let mask = whole_chunks(mask);
            if mask != 0 {
                self.note(line, column, Cell::new(mask, number, loc, None));
                self.count_landed(line);
            }
            return;
        }
        // All that is in flight.
        head.landed = number;
        head.version += 1;
        *self.cell_mut(line, column) = Cell::new(mask, number, loc, None);
    }

    /// A reduction (`red.async`) of bytes of a line is issued, or lands: as many of the same as there are in flight.
    pub fn reduce(&mut self, line: usize, mask: Mask, number: u32, loc: Loc) {
        let mut past = Past::new(Actor::own(self.columns.loads), Kind::Reduction, number, loc, mask);
        let others = &mut self.lines[line].others;
        let flies = |it: &Past| (it.kind, it.epoch, it.mask) == (Kind::Reduction, IN_FLIGHT, mask);
        let flying = others.iter().position(flies);
        match (number, flying) {
            (IN_FLIGHT, Some(at)) => others[at].number += 1,
            (IN_FLIGHT, None) => {
                past.number = 1;
                others.push(past);
            }
            _ => {
                if let Some(at) = flying {
                    others[at].number -= 1;
                    if others[at].number == 0 {
                        others.swap_remove(at);
                    }
                }
                others.retain_mut(|it| {
                    if it.kind == Kind::Reduction && it.epoch != IN_FLIGHT {
                        it.mask &= !mask;
                    }
                    it.mask != 0
                });
                others.push(past);
            }
        }
        self.count_landed(line);
    }

    /// Copies by threads to, or from, bytes of a line are over: from now on they are stores, or loads, of their warp, in its epoch and at a time.
    pub fn end_small(&mut self, line: usize, mask: Mask, past: &Past, now: u32) {
        let (component, writes) = (past.by.component, past.kind == Kind::Write);
        let small = if writes { Kind::SmallWrite } else { Kind::SmallRead };
        self.lines[line].others.retain_mut(|it| {
            if it.by == past.by && it.kind == small {
                it.mask &= !mask;
            }
            it.mask != 0
        });
        self.count_foreign(line);
        let Some(column) = self.columns.of(component, past.kind) else {
            return;
        };
        self.note(line, column, Cell::new(mask, past.epoch, past.loc, None));
        // Its bytes are in the cell without having been looked at again.
        self.cell_mut(line, column).version = 0;
        let head = &mut self.lines[line];
        let stamps = if writes { &mut head.wrote } else { &mut head.read };
        stamps.note(component, past.epoch, now);
    }

    /// Copies by threads to bytes of a line land; all that arrive in a phase of a barrier have one number.
    pub fn land_small(&mut self, line: usize, mask: Mask, number: u32, loc: Loc) {
        self.note(line, 2 * self.columns.warps, Cell::new(mask, number, loc, None));
        self.lines[line].others.retain_mut(|it| {
            if it.kind == Kind::Load && it.epoch != number {
                it.mask &= !mask;
            }
            it.mask != 0
        });
        self.count_landed(line);
    }

    /// The same of what they read.
    pub fn land_small_read(&mut self, line: usize, mask: Mask, number: u32, loc: Loc) {
        let by = Actor::own(self.columns.loads);
        self.remember(line, Past::new(by, Kind::SmallRead, number, loc, mask));
    }

    fn count_landed(&mut self, line: usize) {
        let head = &self.lines[line];
        let last = match head.asyncs & LOADS {
            0 => 0,
            _ => self.cell(head, 2 * self.columns.warps).epoch,
        };
        let listed = head
            .others
            .iter()
            .filter(|it| matches!(it.kind, Kind::Load | Kind::Reduction));
        self.lines[line].landed = listed.map(|it| it.epoch).fold(last, u32::max);
        self.count_foreign(line);
    }

    /// Whether no load, and no warp of the space's own, has written a line.
    pub fn is_untouched(&self, line: usize) -> bool {
        self.lines[line].landed == 0 && self.lines[line].writers == 0
    }

    /// A warp has waited for a bulk store in full: it has written now, in an epoch of the warp's, and at a time.
    pub fn settle(&mut self, line: usize, by: Actor, number: u64, (epoch, now): (u32, u32)) {
        let others = &mut self.lines[line].others;
        let is_over = |it: &Past| it.by == by && it.number == number && it.epoch == IN_FLIGHT;
        let over: Vec<Past> = others.extract_if(.., |it| is_over(it)).collect();
        self.count_foreign(line);
        for store in over {
            match store.kind {
                Kind::BulkWrite => {
                    let column = by.component - self.columns.first;
                    let cell = Cell::new(store.mask, epoch, store.loc, None);
                    self.note(line, self.columns.warps + column, cell);
                    // Its bytes are in the cell without having been looked at again.
                    self.cell_mut(line, self.columns.warps + column).version = 0;
                    self.lines[line].wrote.note(by.component, epoch, now);
                }
                kind => {
                    let kind = kind.scope().map_or(kind, Kind::Atomic);
                    self.remember(
                        line,
                        Past {
                            kind,
                            epoch,
                            number: 0,
                            ..store
                        },
                    );
                }
            }
        }
    }

    /// What the warps with columns last wrote of a line.
    pub fn writes(&self, line: usize) -> Vec<Past> {
        let head = &self.lines[line];
        let cells = |present, from| lanes(present).map(move |column| self.remembered(head, from + column as u32));
        let mut writes: Vec<Past> = cells(head.writers, self.columns.warps).collect();
        let is_over = |it: &&Past| it.kind.writes() && it.epoch != IN_FLIGHT;
        let listed = head.others.iter().filter(is_over).cloned();
        for past in cells(head.updaters, self.columns.stride()).chain(listed) {
            match writes.iter_mut().find(|it| it.by == past.by) {
                Some(last) if last.epoch < past.epoch => *last = past,
                Some(_) => {}
                None => writes.push(past),
            }
        }
        writes
    }
}

/// Of bytes the chunks of 16 that are whole.
fn whole_chunks(mask: Mask) -> Mask {
    let chunk = |i: u32| 0xffff << (16 * i);
    (0..8).map(chunk).filter(|chunk| mask & chunk == *chunk).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulate::check::clock::Clock;
    use crate::emulate::check::race::Glance;
    use crate::ptx::modifier::Scope;

    /// Four warps, of which number 1 acts mostly; a CTA's loads, and a warpgroup's products.
    const COLUMNS: Columns = Columns {
        first: 0,
        warps: 4,
        loads: 4,
        products: 5,
        warpgroups: 1,
    };

    fn side(component: u32, kind: Kind, epoch: u32, seen: &Clock) -> Side<'_> {
        Side {
            by: Actor::own(component),
            kind,
            epoch,
            loc: Loc(epoch),
            number: 0,
            seen,
            glance: Glance::default(),
        }
    }

    impl Shadow {
        /// A warp's access, with nothing to be said at a glance: the bytes with which it races.
        fn by(&mut self, warp: u32, kind: Kind, epoch: u32, mask: Mask, seen: &Clock) -> Mask {
            let mut mine = side(warp, kind, epoch, seen);
            mine.glance.now = 1;
            let found = self.access((0, 0), mask, &mine, &|| !0);
            found.map_or(0, |found| found.hit)
        }
        /// What somebody (3) who has seen so much of warp 1 races with.
        fn races(&self, kind: Kind, mask: Mask, epoch: u32) -> Mask {
            let mut seen = Clock::new(6);
            seen.see(1, epoch);
            let mine = side(3, kind, 1, &seen);
            (0..128)
                .filter(|i| mask >> i & 1 == 1)
                .map(|i| 1 << i)
                .filter(|byte| self.find((0, 0), *byte, &mine, &|| !0).is_some())
                .sum()
        }
    }

    #[test]
    fn a_byte_has_its_last_epoch() {
        let (mut shadow, nothing) = (Shadow::new(COLUMNS, 1), Clock::new(6));
        shadow.by(1, Kind::Write, 3, 0b01, &nothing);
        shadow.by(1, Kind::Write, 3, 0b10, &nothing);
        assert_eq!(
            (shadow.races(Kind::Read, !0, 2), shadow.races(Kind::Read, !0, 3)),
            (0b11, 0)
        );
        shadow.by(1, Kind::Write, 4, 0b110, &nothing);
        assert_eq!(shadow.races(Kind::Read, !0, 3), 0b110);
        assert_eq!(shadow.races(Kind::Read, !0, 2), 0b111, "of the epoch before");
        // With an ordinary store an atomic races, whatever atomic follows that.
        let atomic = Kind::Atomic(Scope::Gpu);
        shadow.by(1, atomic, 5, 0b1111, &nothing);
        assert_eq!(
            (shadow.races(Kind::Read, !0, 4), shadow.races(atomic, !0, 3)),
            (0b1111, 0b110)
        );
        shadow.by(1, Kind::Write, 6, 0b111, &nothing);
        assert_eq!(shadow.others(0).len(), 0, "the last store stands for those before it");
        shadow.by(1, atomic, 7, 0b0111, &nothing);
        assert_eq!(shadow.others(0).len(), 1, "an atomic for atomics of the same bytes");
        let cta = Kind::Atomic(Scope::Cta);
        shadow.by(1, cta, 7, 0b1111, &nothing);
        assert_eq!(shadow.others(0).len(), 0, "of whichever scope");
        assert_eq!(shadow.races(Kind::Read, !0, 6), 0b1111);
        // A warp's own accesses are in order, and reads do not race.
        assert_eq!(shadow.by(1, Kind::Write, 8, !0, &nothing), 0);
        shadow.clear();
        shadow.by(1, Kind::Read, 9, !0, &nothing);
        assert_eq!(
            (shadow.races(Kind::Read, !0, 8), shadow.races(Kind::Write, 0b11, 8)),
            (0, 0b11)
        );
    }

    #[test]
    fn a_glance_says_whether_others_have_been_seen() {
        let (mut shadow, nothing) = (Shadow::new(COLUMNS, 1), Clock::new(6));
        let me = |warp, writes, until, now| Side {
            glance: Glance { landed: 0, until, now },
            ..side(warp, if writes { Kind::Write } else { Kind::Read }, 1, &nothing)
        };
        let access = |shadow: &mut Shadow, mine: &Side<'_>| drop(shadow.access((0, 0), 0xf, mine, &|| 0));
        let touch = |shadow: &mut Shadow, mine: &Side<'_>| shadow.touch(&[64; 32], 1, 4, &mine.same_epoch()) == 0;
        assert!(!touch(&mut shadow, &me(1, true, 0, 5)), "its first access");
        access(&mut shadow, &me(1, true, 0, 5));
        assert!(touch(&mut shadow, &me(1, true, 0, 6)), "its own");
        shadow.touch(&[32; 32], 0, 4, &me(1, true, 0, 6).same_epoch());
        assert_eq!(
            shadow.races(Kind::Read, !0, 0),
            0xf | 0xf << 64,
            "of lanes that execute"
        );
        // Of a read that has not seen the store there is more to be said each time.
        access(&mut shadow, &me(2, false, 4, 7));
        assert!(!touch(&mut shadow, &me(2, false, 4, 7)));
        access(&mut shadow, &me(2, false, 5, 8));
        assert!(touch(&mut shadow, &me(2, false, 5, 8)));
        // A store has to have seen that read, and what the warp itself did before others is of no matter.
        assert!(!touch(&mut shadow, &me(1, true, 6, 9)));
        access(&mut shadow, &me(1, true, 6, 9));
        assert!(!touch(&mut shadow, &me(1, true, 6, 9)));
        access(&mut shadow, &me(1, true, 8, 9));
        assert!(touch(&mut shadow, &me(1, true, 8, 9)));
    }

    /// Of three whose epochs began late, earlier and in between, and who then wrote in that order, somebody has seen the last two alone.
    #[test]
    fn who_writes_first_may_have_begun_last() {
        let (mut shadow, nothing) = (Shadow::new(COLUMNS, 1), Clock::new(6));
        for (warp, now) in [(0, 5), (1, 3), (2, 4)] {
            let mut mine = side(warp, Kind::Write, 1, &nothing);
            mine.glance.now = now;
            shadow.access((0, 0), 0xf << (4 * warp), &mine, &|| !0);
        }
        let mut seen = Clock::new(6);
        seen.see(1, 1);
        seen.see(2, 1);
        let mut mine = side(3, Kind::Read, 1, &seen);
        (mine.glance.until, mine.glance.now) = (4, 6);
        let found = shadow.access((0, 0), !0, &mine, &|| !0);
        assert_eq!(found.map(|found| found.hit), Some(0xf));
    }

    #[test]
    fn loads_are_unseen_until_they_land_and_are_waited_for() {
        let mut shadow = Shadow::new(COLUMNS, 1);
        let at = |shadow: &Shadow, kind, mask, landed| {
            let mut seen = Clock::new(6);
            seen.see(4, landed);
            shadow.find((0, 0), mask, &side(1, kind, 1, &seen), &|| !0).is_some()
        };
        assert!(shadow.is_untouched(0));
        shadow.load(0, 0xffff, IN_FLIGHT, Loc(1));
        shadow.load(0, 0xffff << 16, IN_FLIGHT, Loc(2));
        assert!(at(&shadow, Kind::Poll, 1, 9) && !at(&shadow, Kind::Poll, 1 << 40, 9) && !shadow.is_untouched(0));
        shadow.load(0, 0xffff << 16, 1, Loc(2));
        assert!(
            at(&shadow, Kind::Read, 1, 9)
                && at(&shadow, Kind::Read, 1 << 16, 0)
                && !at(&shadow, Kind::Read, 1 << 16, 1)
        );
        shadow.load(0, 0xffff, 2, Loc(1));
        assert!(
            at(&shadow, Kind::Read, 1, 1) && !at(&shadow, Kind::Read, 1, 2) && !at(&shadow, Kind::Read, 1 << 16, 1)
        );
        // Pieces of a chunk are not followed.
        shadow.load(0, 0xf << 32, IN_FLIGHT, Loc(3));
        assert!(!at(&shadow, Kind::Read, 1 << 32, 2));
        // As many reductions land as were issued; atomics need not wait for them.
        let atomic = Kind::Atomic(Scope::Cta);
        (0..2).for_each(|_| shadow.reduce(0, 0xf << 64, IN_FLIGHT, Loc(4)));
        shadow.reduce(0, 0xf << 64, 3, Loc(4));
        assert!(at(&shadow, Kind::Read, 1 << 64, 3) && !at(&shadow, atomic, 1 << 64, 0));
        shadow.reduce(0, 0xf << 64, 4, Loc(4));
        assert!(at(&shadow, Kind::Read, 1 << 64, 3) && !at(&shadow, Kind::Read, 1 << 64, 4));
        // What a whole line is loaded with comes after all that was done to it.
        shadow.load(0, !0, IN_FLIGHT, Loc(5));
        assert!(shadow.others(0).is_empty() && at(&shadow, atomic, 1 << 64, 4));
    }

    #[test]
    fn a_copy_by_threads_pends_until_it_ends_or_lands() {
        let (mut shadow, nothing) = (Shadow::new(COLUMNS, 1), Clock::new(6));
        let at = |shadow: &Shadow, by, kind, mask, landed| {
            let mut seen = Clock::new(6);
            seen.see(1, 9);
            seen.see(4, landed);
            shadow.find((0, 0), mask, &side(by, kind, 1, &seen), &|| !0).is_some()
        };
        shadow.by(1, Kind::SmallWrite, 3, 0b1111, &nothing);
        assert!(
            [1, 3].iter().all(|by| at(&shadow, *by, Kind::Read, 1, 9)),
            "its own warp's, too"
        );
        let over = |by, epoch| Past::new(Actor::own(by), Kind::Write, epoch, Loc(1), 0);
        shadow.end_small(0, 1 << 100, &over(0, 0), 1);
        shadow.end_small(0, 0b11, &over(1, 9), 1);
        assert!(!at(&shadow, 1, Kind::Read, 0b11, 9) && at(&shadow, 1, Kind::Read, 0b100, 9));
        shadow.end_small(0, 0b1100, &over(1, 10), 1);
        assert!(at(&shadow, 3, Kind::Read, 0b100, 9) && !at(&shadow, 3, Kind::Read, 0b11, 9));
        assert!(!at(&shadow, 1, Kind::Read, 0b1111, 9));
        shadow.clear();
        // Parts of a line land as one; what lands later stands for what did before, byte by byte.
        shadow.land_small(0, 0b0011, 1, Loc(1));
        shadow.land_small(0, 0b1100, 1, Loc(1));
        assert!(at(&shadow, 1, Kind::Write, 0b1000, 0) && !at(&shadow, 1, Kind::Write, 0b1111, 1));
        shadow.land_small(0, 0b0011, 2, Loc(2));
        assert!(at(&shadow, 1, Kind::Read, 0b0001, 1) && !at(&shadow, 1, Kind::Read, 0b0100, 1));
        shadow.land_small(0, 0b1100, 2, Loc(2));
        assert!(shadow.others(0).is_empty() && at(&shadow, 1, Kind::Read, 0b0100, 1));
        shadow.land_small_read(0, 1 << 64, 3, Loc(3));
        assert!(at(&shadow, 1, Kind::Write, 1 << 64, 2) && !at(&shadow, 1, Kind::Read, 1 << 64, 2));
        shadow.land_small_read(0, 1 << 64, 4, Loc(3));
        assert!(shadow.others(0).len() == 1 && !at(&shadow, 1, Kind::Write, 1 << 64, 4));
    }

    #[test]
    fn a_bulk_store_pends_until_it_is_waited_for() {
        let (mut shadow, mut seen) = (Shadow::new(COLUMNS, 0), Clock::new(6));
        let line = shadow.line(7);
        let pending = |number| Past {
            number,
            epoch: IN_FLIGHT,
            ..side(1, Kind::BulkWrite, 3, &Clock::new(6)).past(0b11)
        };
        shadow.remember(line, pending(5));
        let finds = |shadow: &Shadow, seen: &Clock, by| {
            let mine = side(by, Kind::Write, 1, seen);
            shadow.find((line, 7), 1, &mine, &|| !0).is_some()
        };
        shadow.settle(line, Actor::own(1), 4, (6, 9));
        seen.see(1, 6);
        assert!(
            finds(&shadow, &seen, 0) && finds(&shadow, &seen, 1),
            "its own warp's, too"
        );
        shadow.settle(line, Actor::own(1), 5, (6, 9));
        assert!(!finds(&shadow, &seen, 0) && finds(&shadow, &Clock::new(6), 0) && !finds(&shadow, &seen, 1));
        assert_eq!(
            (shadow.writes(line)[0].epoch, shadow.peek(7), shadow.peek(8)),
            (6, Some(line), None)
        );
    }
}
