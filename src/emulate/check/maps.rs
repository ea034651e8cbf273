//! The checker of tensor maps in global memory: what has changed one is released to the copies' reads of maps, and acquired, before a
//! copy uses it.
//!
//! A GPU keeps maps that it has read, so that a use without these fences may see an old one, and no schedule here does. A warp may use a
//! map that it, or a warp of its CTA that it has synchronised with, has acquired since the last change; an acquire counts that knows of a
//! release that knows of the change. Stores of what is there already change nothing. What other clusters release is known to everybody
//! from then on.
use super::{Checker, Verdict, Who};
use crate::error::Loc;
use crate::ptx::modifier::Scope;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// A warp that wrote what a map holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Author {
    /// Its number in the machine.
    pub warp: usize,
    pub epoch: u32,
    pub loc: Loc,
}

/// Why an acquire is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vain {
    /// Nobody who knows of the change has released it.
    Release,
    /// Nobody has in a scope that includes the user.
    WiderRelease(Scope),
    /// Nothing orders the release before the acquire.
    Order,
    /// The acquire's scope does not include the author.
    WiderAcquire(Scope),
}

#[derive(Default)]
struct Map {
    /// Who wrote what it holds now: any of them may release it.
    authors: Vec<Author>,
    /// Warps that have acquired that, and their epochs.
    acquired: Vec<(usize, u32)>,
    /// The last acquires of no use.
    vain: Vec<(usize, Author, Vain)>,
}

/// The maps that some instruction has named, by address / 128.
#[derive(Default)]
pub struct MapOrder {
    maps: FxHashMap<u64, Map>,
}

impl MapOrder {
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// A store to a line. `changes`: to something else than what was there.
    pub fn written(&mut self, line: u64, author: Author, changes: impl FnOnce() -> bool) {
        let Some(map) = self.maps.get_mut(&line) else { return };
        if changes() {
            *map = Map::default();
        }
        if !map.authors.iter().any(|a| a.warp == author.warp) {
            map.authors.push(author);
        }
    }

    /// Other CTAs are in these warps' place: what those did is long past.
    pub fn forget(&mut self, warps: &Range<usize>) {
        for map in self.maps.values_mut() {
            map.authors.retain(|a| !warps.contains(&a.warp));
            map.acquired.retain(|a| !warps.contains(&a.0));
            map.vain
                .retain(|(by, author, _)| !warps.contains(by) && !warps.contains(&author.warp));
        }
    }
}

impl Checker {
    fn cta_of(&self, warp: usize) -> usize {
        warp / self.shape.warps_per_cta as usize
    }

    fn device_of(&self, warp: usize) -> usize {
        warp / self.warps / (self.shape.clusters / self.shape.devices) as usize
    }

    pub(super) fn cluster_warps(&self, warp: usize) -> Range<usize> {
        let first = warp / self.warps * self.warps;
        first..first + self.warps
    }

    /// There is a map in the line. Those of the cluster who wrote it before anybody knew are its authors.
    pub(super) fn name_map(&mut self, who: Who, line: u64) {
        if self.maps.maps.contains_key(&line) {
            return;
        }
        let per = self.shape.warps_per_cta as usize;
        let first = self.cluster_warps(self.id(who)).start;
        let ctas = first / per..(first + self.warps) / per;
        let authors = ctas.flat_map(|cta| {
            let global = &self.ctas[cta].global;
            let writes = global.peek(line).map_or(vec![], |here| global.writes(here));
            writes.into_iter().map(move |past| Author {
                warp: first + past.by.component as usize,
                epoch: past.epoch,
                loc: past.loc,
            })
        });
        let map = Map {
            authors: authors.collect(),
            ..Map::default()
        };
        self.maps.maps.insert(line, map);
    }

    /// Whether an acquire by a warp covers what an author wrote.
    fn is_published(&self, author: Author, user: usize, scope: Scope) -> Result<(), Vain> {
        let needed = if self.cta_of(author.warp) == self.cta_of(user) {
            Scope::Cta
        } else if author.warp / self.warps == user / self.warps {
            Scope::Cluster
        } else if self.device_of(author.warp) == self.device_of(user) {
            Scope::Gpu
        } else {
            Scope::Sys
        };
        let component = author.warp % self.warps;
        let knows = |warp: usize, scope| self.clocks[warp].released(component, scope) >= author.epoch;
        let theirs = self.cluster_warps(author.warp);
        let is_released = |scope| theirs.clone().any(|warp| knows(warp, scope));
        if !is_released(Scope::Cta) {
            Err(Vain::Release)
        } else if !is_released(needed) {
            Err(Vain::WiderRelease(needed))
        } else if theirs.contains(&user) && !knows(user, needed) {
            Err(Vain::Order)
        } else if scope < needed {
            Err(Vain::WiderAcquire(needed))
        } else {
            Ok(())
        }
    }

    /// The warp acquires the map in the line.
    pub(super) fn acquire_map(&mut self, who: Who, line: u64, scope: Scope) {
        self.name_map(who, line);
        let (user, epoch) = (self.id(who), self.clocks[self.id(who)].seen()[self.component(who)]);
        let map = &self.maps.maps[&line];
        let lacks: Vec<(Author, Vain)> = map
            .authors
            .iter()
            .filter_map(|a| Some((*a, self.is_published(*a, user, scope).err()?)))
            .collect();
        let covered = map.authors.is_empty() || lacks.len() < map.authors.len();
        let map = self.maps.maps.entry(line).or_default();
        map.vain.retain(|(by, ..)| *by != user);
        if covered {
            map.acquired.retain(|(by, _)| *by != user);
            map.acquired.push((user, epoch));
        } else if let Some((author, lack)) = lacks.last() {
            map.vain.push((user, *author, *lack));
        }
    }

    /// Whether somebody of the warp's cluster is among those who wrote what the map holds now.
    pub(super) fn has_written_map(&self, who: Who, line: u64) -> bool {
        let own = self.cluster_warps(self.id(who));
        let map = self.maps.maps.get(&line);
        map.is_some_and(|map| map.authors.iter().any(|a| own.contains(&a.warp)))
    }

    /// The warp uses it.
    pub(super) fn use_map(&mut self, who: Who, line: u64) -> Verdict {
        self.name_map(who, line);
        let (user, map) = (self.id(who), &self.maps.maps[&line]);
        let clock = &self.clocks[user];
        let acquired = map.acquired.iter().any(|(by, epoch)| {
            *by == user || self.cta_of(*by) == self.cta_of(user) && clock.seen()[by % self.warps] >= *epoch
        });
        if acquired {
            return Ok(());
        }
        let vain = map.vain.iter().find(|(by, ..)| self.cta_of(*by) == self.cta_of(user));
        let vain = vain.map(|(_, author, lack)| (*author, *lack));
        Err(self.not_acquired(who, vain, map.authors.last().copied()))
    }
}
