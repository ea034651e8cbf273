//! The checker of tensor maps in global memory: what has changed one is released to the copies' reads of maps, and acquired, before a
//! copy uses it.
//!
//! A GPU keeps maps that it has read, so that a use without these fences may see an old one, and no schedule here does. A warp may use a
//! map that it, or a warp of its CTA that it has synchronised with, has acquired since the last change; an acquire counts that knows of a
//! release that knows of the change. Stores of what is there already change nothing. What other clusters release is known to everybody
//! from then on.
use super::causality::Causality;
use super::hooks::Verdict;
use super::warp::{Warp, lanes};
use crate::error::{Error, Fault, Loc};
use crate::ptx::modifier::{Modifier, Scope};
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
enum Lack {
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
    vain: Vec<(usize, Author, Lack)>,
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

impl Causality {
    fn cta_of(&self, warp: usize) -> usize {
        warp / self.shape.warps_per_cta as usize
    }

    fn device_of(&self, warp: usize) -> usize {
        warp / self.warps / (self.shape.clusters / self.shape.devices) as usize
    }

    fn cluster_warps(&self, warp: usize) -> Range<usize> {
        let first = warp / self.warps * self.warps;
        first..first + self.warps
    }

    /// There is a map in the line. Those of the cluster who wrote it before anybody knew are its authors.
    pub(super) fn name_map(&mut self, w: &Warp, line: u64) {
        if self.maps.maps.contains_key(&line) {
            return;
        }
        let per = self.shape.warps_per_cta as usize;
        let ctas = self.cluster_warps(self.id(w)).step_by(per).map(|warp| warp / per);
        let authors = ctas.flat_map(|cta| {
            let history = &self.globals[cta];
            let here = history.peek(line);
            here.into_iter().flat_map(move |here| {
                lanes(history.writers(here)).map(move |index| {
                    let entry = history.last_write(here, index);
                    Author {
                        warp: cta * per + index,
                        epoch: entry.epoch(),
                        loc: entry.loc(),
                    }
                })
            })
        });
        let map = Map {
            authors: authors.collect(),
            ..Map::default()
        };
        self.maps.maps.insert(line, map);
    }

    /// Whether an acquire by a warp covers what an author wrote.
    fn is_published(&self, author: Author, user: usize, scope: Scope) -> Result<(), Lack> {
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
            Err(Lack::Release)
        } else if !is_released(needed) {
            Err(Lack::WiderRelease(needed))
        } else if theirs.contains(&user) && !knows(user, needed) {
            Err(Lack::Order)
        } else if scope < needed {
            Err(Lack::WiderAcquire(needed))
        } else {
            Ok(())
        }
    }

    /// The warp acquires the map in the line.
    pub(super) fn acquire_map(&mut self, w: &Warp, line: u64, scope: Scope) {
        self.name_map(w, line);
        let (user, epoch) = (self.id(w), self.clocks[self.id(w)].seen()[self.component(w)]);
        let map = &self.maps.maps[&line];
        let lacks: Vec<(Author, Lack)> = map
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
    pub(super) fn has_written_map(&self, w: &Warp, line: u64) -> bool {
        let own = self.cluster_warps(self.id(w));
        let map = self.maps.maps.get(&line);
        map.is_some_and(|map| map.authors.iter().any(|a| own.contains(&a.warp)))
    }

    /// The warp uses it.
    pub(super) fn use_map(&mut self, w: &Warp, line: u64) -> Verdict {
        self.name_map(w, line);
        let (user, map) = (self.id(w), &self.maps.maps[&line]);
        let clock = &self.clocks[user];
        let acquired = map.acquired.iter().any(|(by, epoch)| {
            *by == user || self.cta_of(*by) == self.cta_of(user) && clock.seen()[by % self.warps] >= *epoch
        });
        if acquired {
            return Ok(());
        }
        let who = |author: &Author| {
            let name = match self.cluster_warps(user).contains(&author.warp) {
                true => self.name(author.warp % self.warps, w.cta),
                false => "a warp of another cluster".into(),
            };
            format!("{name} (at {})", author.loc)
        };
        let vain = map.vain.iter().find(|(by, ..)| self.cta_of(*by) == self.cta_of(user));
        let error = Error::new(
            Fault::Execution,
            "a bulk tensor copy through a tensor map in global memory, which its warp has not acquired as it is now",
        );
        let release = "fence.proxy.tensormap::generic.release";
        let acquire = "fence.proxy.tensormap::generic.acquire";
        Err(Box::new(
            match (vain, map.authors.last()) {
                (Some((_, author, lack)), _) => error
                    .expected(match lack {
                        Lack::Release => {
                            format!("{release} after the change by {}, and before the acquire", who(author))
                        }
                        Lack::WiderRelease(scope) => {
                            format!("{release}{} after the change by {}", scope.text(), who(author))
                        }
                        Lack::Order => format!(
                            "a barrier between the release of the change by {} and the acquire",
                            who(author)
                        ),
                        Lack::WiderAcquire(scope) => {
                            format!("{acquire}{} of the change by {}", scope.text(), who(author))
                        }
                    })
                    .got("an acquire that does not cover it"),
                (None, Some(author)) => error
                    .expected(format!("{acquire} of the map after the change by {}", who(author)))
                    .got("no acquire since then by this warp, nor by one of its CTA that it has synchronised with"),
                (None, None) => error
                    .expected(format!("{acquire} of the map in this launch"))
                    .got("none by this warp, nor by one of its CTA that it has synchronised with"),
            }
            .remedy("release the map after it is changed, synchronise, acquire it, and only then copy through it"),
        ))
    }
}
