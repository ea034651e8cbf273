//! What is known of the clusters of a launch: the far part of a clock.
//!
//! Clusters of a launch have numbers in the order in which they begin; one that takes the place of another in the machine has a number of its
//! own. Of each there are the epochs of its clock that somebody has heard of: how far its warps and loads were when it, or somebody
//! who had heard of it, released. What is known is handed on as a whole, and mostly to those who know it already, so it is shared.
use std::cmp::Ordering;
use std::rc::Rc;

/// Epochs of one cluster, as its clocks have them: what has been seen, fenced, and perhaps released for tensor maps.
type Epochs = Rc<[u32]>;

/// Epochs of clusters, by their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known(Option<Rc<Vec<(u32, Epochs)>>>);

/// How two sets of epochs compare; `None`: each has something that the other has not.
fn compare(a: &Epochs, b: &Epochs) -> Option<Ordering> {
    if Rc::ptr_eq(a, b) {
        return Some(Ordering::Equal);
    }
    let mut all = Ordering::Equal;
    for i in 0..a.len().max(b.len()) {
        match (epoch(a, i).cmp(&epoch(b, i)), all) {
            (Ordering::Equal, _) => {}
            (one, Ordering::Equal) => all = one,
            (one, all) if one == all => {}
            (Ordering::Less | Ordering::Greater, _) => return None,
        }
    }
    Some(all)
}

/// Nothing is known of what is not there.
fn epoch(epochs: &[u32], i: usize) -> u32 {
    epochs.get(i).copied().unwrap_or(0)
}

fn either(a: &[u32], b: &[u32]) -> Epochs {
    (0..a.len().max(b.len()))
        .map(|i| epoch(a, i).max(epoch(b, i)))
        .collect()
}

fn latest(a: &Epochs, b: &Epochs) -> Epochs {
    match compare(a, b) {
        Some(Ordering::Less) => b.clone(),
        Some(Ordering::Equal | Ordering::Greater) => a.clone(),
        None => either(a, b),
    }
}

impl Known {
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn list(&self) -> &[(u32, Epochs)] {
        self.0.as_ref().map_or(&[], |list| list.as_slice())
    }

    /// What is known of a cluster.
    pub fn of(&self, cluster: u32) -> Option<&[u32]> {
        let list = self.list();
        let at = list.binary_search_by_key(&cluster, |(number, _)| *number).ok()?;
        Some(&list[at].1)
    }

    /// Whether an epoch of a cluster's component is known.
    pub fn has_seen(&self, cluster: u32, component: usize, epoch: u32) -> bool {
        self.of(cluster).is_some_and(|epochs| epochs[component] >= epoch)
    }

    /// Adds epochs of a cluster.
    pub fn see(&mut self, cluster: u32, epochs: &[u32]) {
        let list = Rc::make_mut(self.0.get_or_insert_default());
        match list.binary_search_by_key(&cluster, |(number, _)| *number) {
            Err(at) => list.insert(at, (cluster, epochs.into())),
            Ok(at) => {
                let old = &mut list[at].1;
                if (0..epochs.len()).any(|i| epochs[i] > epoch(old, i)) {
                    *old = either(old, epochs);
                }
            }
        }
    }

    /// Adds what another knows.
    pub fn join(&mut self, other: &Known) {
        let Some(theirs) = &other.0 else { return };
        let Some(mine) = &self.0 else {
            self.0 = Some(theirs.clone());
            return;
        };
        if Rc::ptr_eq(mine, theirs) {
            return;
        }
        let (mut more_mine, mut more_theirs) = (false, false);
        let mut merged = Vec::with_capacity(mine.len().max(theirs.len()));
        let (mut a, mut b) = (mine.iter().peekable(), theirs.iter().peekable());
        loop {
            let side = match (a.peek(), b.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((x, _)), Some((y, _))) => x.cmp(y),
            };
            match side {
                Ordering::Less => {
                    more_mine = true;
                    merged.extend(a.next().cloned());
                }
                Ordering::Greater => {
                    more_theirs = true;
                    merged.extend(b.next().cloned());
                }
                Ordering::Equal => {
                    let (Some((number, x)), Some((_, y))) = (a.next(), b.next()) else {
                        break;
                    };
                    match compare(x, y) {
                        Some(Ordering::Equal) => {}
                        Some(Ordering::Greater) => more_mine = true,
                        Some(Ordering::Less) => more_theirs = true,
                        None => (more_mine, more_theirs) = (true, true),
                    }
                    merged.push((*number, latest(x, y)));
                }
            }
        }
        match (more_mine, more_theirs) {
            (_, false) => {}
            (false, true) => self.0 = Some(theirs.clone()),
            (true, true) => self.0 = Some(Rc::new(merged)),
        }
    }
}

/// What a warp knows of other clusters, and what a fence would let it know: it, or who then told it, has looked at words by which
/// others told of what they did, in loads that do not acquire.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Far {
    pub known: Known,
    /// By a fence of the device's scope, of the system's.
    pub polled: [Known; 2],
}

impl Far {
    pub fn is_empty(&self) -> bool {
        self.known.is_empty() && self.polled.iter().all(Known::is_empty)
    }

    pub fn join(&mut self, other: &Far) {
        self.known.join(&other.known);
        for (mine, theirs) in self.polled.iter_mut().zip(&other.polled) {
            mine.join(theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(of: &[(u32, [u32; 2])]) -> Known {
        let mut known = Known::default();
        of.iter().for_each(|(cluster, epochs)| known.see(*cluster, epochs));
        known
    }

    #[test]
    fn what_two_know_is_what_either_knows() {
        let mut a = known(&[(1, [1, 5]), (4, [2, 2])]);
        let b = known(&[(0, [3, 3]), (1, [2, 4]), (4, [2, 2])]);
        a.join(&b);
        assert_eq!(a, known(&[(0, [3, 3]), (1, [2, 5]), (4, [2, 2])]));
        assert!(a.has_seen(1, 1, 5) && !a.has_seen(1, 1, 6) && !a.has_seen(2, 0, 1));
        assert!(b.has_seen(1, 0, 2) && b.of(7).is_none());
    }

    #[test]
    fn who_knows_all_shares_it() {
        let all = known(&[(1, [2, 2]), (3, [1, 1])]);
        let shares = |a: &Known, b: &Known| Rc::ptr_eq(a.0.as_ref().unwrap(), b.0.as_ref().unwrap());
        for less in [
            Known::default(),
            known(&[(1, [2, 1])]),
            known(&[(1, [2, 2]), (3, [1, 1])]),
        ] {
            let mut a = all.clone();
            a.join(&less);
            assert!(shares(&a, &all), "{less:?}");
        }
        let mut b = known(&[(3, [1, 0])]);
        b.join(&all);
        assert!(shares(&b, &all));
        b.see(1, &[1, 2]);
        assert_eq!(b, all);
        b.see(1, &[3, 2]);
        assert!(b.has_seen(1, 0, 3) && !all.has_seen(1, 0, 3));
    }
}
