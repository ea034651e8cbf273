//! Memory that launches on a stream leave something in for the host: prints, profiles.
//!
//! Launches on a stream come one after the other, so that one piece is enough for a call site there. It is never freed, for the stream may
//! come to it when the call site is long gone; then it serves another one, once no launch is pending.
use super::{Artifact, Locations};
use crate::error::Error;
use crate::lock::lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Such a piece of memory, and its owner.
pub struct Post<T> {
    pub device: i32,
    pub memory: T,
    owner: Mutex<Owner>,
    /// A call site has it.
    taken: Mutex<bool>,
    /// Launches whose stream has yet to come to the end of them.
    pending: AtomicUsize,
}

/// The owner: its launches write it.
#[derive(Clone)]
pub struct Owner {
    pub artifact: Arc<Artifact>,
    pub locations: Locations,
}

/// All there are of one sort.
pub struct Pool<T: 'static>(Mutex<Vec<&'static Post<T>>>);

/// Those of a call site.
pub struct Posts<T: 'static>(Mutex<Vec<Place<T>>>);

struct Place<T: 'static> {
    device: i32,
    /// None: made before a launch, and not used yet.
    stream: Option<usize>,
    post: &'static Post<T>,
}

impl<T> Post<T> {
    /// A launch is about to be queued, or has been queued.
    pub fn begin(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// One is over.
    pub fn end(&self) {
        self.pending.fetch_sub(1, Ordering::Release);
    }

    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    pub fn owner(&self) -> Owner {
        lock(&self.owner).clone()
    }
}

impl<T> Pool<T> {
    pub const fn new() -> Pool<T> {
        Pool(Mutex::new(Vec::new()))
    }

    pub fn all(&self) -> Vec<&'static Post<T>> {
        lock(&self.0).clone()
    }

    /// One on `device` that `fits`, which has no owner, else one that `make` makes.
    fn open(
        &self,
        device: i32,
        owner: Owner,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<&'static Post<T>, Error> {
        let mut all = lock(&self.0);
        for post in all.iter().filter(|post| post.device == device && fits(&post.memory)) {
            let mut taken = lock(&post.taken);
            if !*taken && !post.is_pending() {
                *taken = true;
                *lock(&post.owner) = owner;
                return Ok(post);
            }
        }
        let post: &'static Post<T> = Box::leak(Box::new(Post {
            device,
            memory: make()?,
            owner: Mutex::new(owner),
            taken: Mutex::new(true),
            pending: AtomicUsize::new(0),
        }));
        all.push(post);
        Ok(post)
    }
}

impl<T> Posts<T> {
    /// The one for launches on a device, whose context is current, and on a stream of it. Without a stream: one is there from now on, so
    /// that the first launch allocates nothing.
    pub fn at(
        &self,
        (device, stream): (i32, Option<usize>),
        pool: &Pool<T>,
        owner: impl FnOnce() -> Owner,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<&'static Post<T>, Error> {
        let mut places = lock(&self.0);
        let suits = |place: &&mut Place<T>| {
            place.device == device && (place.stream == stream || place.stream.is_none() || stream.is_none())
        };
        // Its own before one that no stream has.
        if let Some(place) = places
            .iter_mut()
            .filter(suits)
            .max_by_key(|place| place.stream == stream)
        {
            place.stream = place.stream.or(stream);
            return Ok(place.post);
        }
        let post = pool.open(device, owner(), fits, make)?;
        places.push(Place { device, stream, post });
        Ok(post)
    }
}

impl<T> Default for Posts<T> {
    fn default() -> Posts<T> {
        Posts(Mutex::new(Vec::new()))
    }
}

impl<T> Drop for Posts<T> {
    fn drop(&mut self) {
        for place in lock(&self.0).iter() {
            *lock(&place.post.taken) = false;
        }
    }
}
