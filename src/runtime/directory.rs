//! The key-value store of a job of several processes: JAX's coordination service, which Python reaches.
use crate::error::{Error, Fault};
use crate::lock::lock;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Answers a request; both are JSON.
pub type Ask = Arc<dyn Fn(&str) -> Vec<u8> + Send + Sync>;

static ASK: Mutex<Option<Ask>> = Mutex::new(None);

/// What this process is in its job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct Job {
    pub process: u32,
    pub processes: u32,
    /// GPUs that JAX uses in this process.
    pub local_devices: u32,
}

/// The callback, which Python sets once.
pub fn set(ask: Ask) {
    *lock(&ASK) = Some(ask);
}

/// None: Python has reported none.
pub fn job() -> Result<Option<Job>, Error> {
    match ask(&json!({ "job": true }))? {
        Some(answer) => decode(answer),
        None => Ok(None),
    }
}

pub fn put(key: &str, value: &Value) -> Result<(), Error> {
    let answer = ask(&json!({ "put": { "key": key, "value": value.to_string() } }))?;
    answer.map(drop).ok_or_else(no_directory)
}

/// What was stored under keys that begin with `prefix`, by all processes until now.
pub fn list(prefix: &str) -> Result<BTreeMap<String, String>, Error> {
    decode(ask(&json!({ "list": prefix }))?.ok_or_else(no_directory)?)
}

fn no_directory() -> Error {
    Error::internal("a job of several processes, and no directory of it")
}

fn decode<T: for<'a> Deserialize<'a>>(answer: Value) -> Result<T, Error> {
    serde_json::from_value(answer).map_err(|error| Error::internal(format!("the job's directory: {error}")))
}

fn ask(request: &Value) -> Result<Option<Value>, Error> {
    let ask = lock(&ASK).clone();
    let Some(ask) = ask else { return Ok(None) };
    let mut answer: Value = serde_json::from_slice(&ask(&request.to_string()))
        .map_err(|error| Error::internal(format!("the job's directory: {error}")))?;
    match answer.get("error").and_then(Value::as_str) {
        None => Ok(Some(answer["answer"].take())),
        Some(text) => Err(
            Error::new(Fault::Environment, "the processes of the job cannot find each other")
                .expected("jax.distributed.initialize() in each of them, and its coordinator alive")
                .got(text),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store of one process.
    fn answer(request: &str) -> Vec<u8> {
        static STORE: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
        let request: Value = serde_json::from_str(request).unwrap();
        let mut store = STORE.lock().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let reply = if let Some(put) = request.get("put") {
            store.insert(text(&put["key"]), text(&put["value"]));
            json!({ "answer": null })
        } else if let Some(prefix) = request.get("list") {
            match prefix.as_str() {
                Some("gone") => json!({ "error": "UNAVAILABLE: no coordinator" }),
                _ => json!({ "answer": store.clone() }),
            }
        } else {
            json!({ "answer": { "process": 1, "processes": 4, "local_devices": 2 } })
        };
        reply.to_string().into_bytes()
    }

    #[test]
    fn python_is_called_and_its_errors_are_reported() {
        assert_eq!(job(), Ok(None), "no directory");
        assert!(put("a", &json!(1)).is_err());
        set(Arc::new(answer));
        let expected = Job {
            process: 1,
            processes: 4,
            local_devices: 2,
        };
        assert_eq!(job(), Ok(Some(expected)));
        put("a/1", &json!({ "x": [1, 2] })).unwrap();
        assert_eq!(list("a/").unwrap()["a/1"], r#"{"x":[1,2]}"#);
        let error = list("gone").unwrap_err();
        assert_eq!(error.fault, Fault::Environment);
        let text = error.to_string();
        assert!(
            text.contains("cannot find each other") && text.contains("UNAVAILABLE"),
            "{text}"
        );
    }
}
