//! What works on this machine, as data; `python -m smalt doctor` prints it in words.
use super::{assembler, env};
use crate::assemble::Place;
use crate::cuda;
use serde_json::{Value, json};

/// Driver, devices, assembler, the cubin cache, settings.
pub fn doctor() -> Value {
    let result = |result: Result<Value, crate::error::Error>| match result {
        Ok(value) => value,
        Err(error) => json!({"error": error.to_string()}),
    };
    let driver = cuda::driver_version().map(|(major, minor)| json!({"cuda": format!("{major}.{minor}")}));
    let assembler = assembler().map(|found| json!({"name": found.name(), "path": found.path()}));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "xla_ffi": cfg!(feature = "xla-ffi"),
        "driver": result(driver),
        "devices": result(cuda::devices().map(|devices| json!(devices))),
        "assembler": result(assembler),
        // Null where nothing is kept.
        "cache": result(env::get().map(|env| json!(env.cache.as_ref().map(Place::state)))),
        "variables": env::documented(),
        "environment": result(env::get().and_then(|env| Ok((env, env::emulation()?))).map(|(env, emulation)| json!({
            "dump": env.dump.iter().map(|dump| format!("{dump:?}").to_lowercase()).collect::<Vec<_>>(),
            "dump_dir": env.dump_dir,
            "line_info": env.line_info,
            "racecheck": env.racecheck,
            "verify": env.verify,
            "park": format!("{:?}", env.parking).to_lowercase(),
            "schedule": emulation.schedule,
            "seed": emulation.seed,
            "check": emulation.check,
            "timeout_s": emulation.timeout.map(|limit| limit.as_secs_f64()),
        }))),
    })
}
