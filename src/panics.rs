//! No panic leaves the library.
use crate::error::Error;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// How many `contain_panics` this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Message and place of the last contained panic.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `body`; a panic becomes an internal error that says what and where, and prints nothing.
///
/// What `body` shares with the outside must stay sound when it stops half-way: our caches take poisoned locks over,
/// for each of their operations is complete or undone.
pub fn contain_panics<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    install_hook();
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(body));
    DEPTH.with(|depth| depth.set(depth.get() - 1));
    result.unwrap_or_else(|payload| {
        // Dropping a foreign payload may panic again.
        std::mem::forget(payload);
        let message = LAST
            .with(|last| last.borrow_mut().take())
            .unwrap_or_else(|| "a panic".into());
        Err(Error::internal(message))
    })
}

/// The hook of this library's own copy of the standard library: quiet inside `contain_panics`, as before elsewhere.
fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if DEPTH.with(Cell::get) == 0 {
                return previous(info);
            }
            let payload = info.payload();
            let message = payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "a panic without a message".into());
            let place = info
                .location()
                .map(|place| format!(" ({}:{})", place.file(), place.line()));
            LAST.with(|last| *last.borrow_mut() = Some(message + &place.unwrap_or_default()));
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_place() {
        let error = contain_panics(|| -> Result<(), Error> { panic!("boom {}", 7) }).unwrap_err();
        assert!(error.what.starts_with("boom 7 (src/panics.rs:"), "{error}");
        assert_eq!(error.fault.name(), "Internal");
        let index = 3;
        let error = contain_panics(|| Ok([1, 2][index])).unwrap_err();
        assert!(error.what.contains("index out of bounds"), "{error}");
    }

    #[test]
    fn nested_containers_keep_their_own_panics() {
        let outer = contain_panics(|| {
            let inner = contain_panics(|| -> Result<(), Error> { panic!("inner") });
            assert!(inner.unwrap_err().what.starts_with("inner"));
            Ok(5)
        });
        assert_eq!(outer, Ok(5));
    }
}
