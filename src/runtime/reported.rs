//! Errors that went to XLA as text, kept for a caller that has only the text.
//!
//! XLA takes a status: a code and a message. On its way to Python it becomes an exception with that message and some of
//! XLA's own words around it; what, where, expected, got and remedy are found again by the message.
use super::{Locations, printing};
use crate::error::Error;
use crate::lock::lock;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Mutex;

/// Errors kept: more than are on their way at once.
const KEPT: usize = 256;

static KEPT_ERRORS: Mutex<VecDeque<(String, Value)>> = Mutex::new(VecDeque::new());

/// Keeps an error that is reported with `message`.
pub fn remember_reported(message: &str, error: &Error, locations: &Locations) {
    let mut kept = lock(&KEPT_ERRORS);
    kept.retain(|(known, _)| known != message);
    if kept.len() == KEPT {
        kept.pop_front();
    }
    kept.push_back((message.to_owned(), json!(locations.locate(error))));
}

/// The latest error whose message stands in `text`, as [`LocatedError`](super::LocatedError) in JSON.
pub fn find_reported(text: &str) -> Option<Value> {
    let kept = lock(&KEPT_ERRORS);
    let found = kept.iter().rev().find(|(message, _)| text.contains(message.as_str()));
    found.map(|(_, error)| error.clone()).or_else(|| failed_check(text))
}

/// The check that a kernel on a GPU made before it ended, and which failed, if that is why the driver failed with `text`.
fn failed_check(text: &str) -> Option<Value> {
    if !text.contains("CUDA_ERROR") {
        return None;
    }
    let mut error = printing::mailbox::print_remaining()?;
    error["last_words"] = json!(true);
    Some(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_found_by_its_message() {
        let error = Error::invalid("a test of messages").got("7");
        let message = "smalt: a test of messages\n  got: 7";
        remember_reported(message, &error, &Locations::default());
        let found = find_reported(&format!("INVALID_ARGUMENT: {message}; while XLA ran")).unwrap();
        assert_eq!((&found["fault"], &found["got"]), (&json!("InvalidKernel"), &json!("7")));
        assert!(find_reported("INTERNAL: something else").is_none());
    }
}
