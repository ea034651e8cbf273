//! Environment variables: every one that the library reads is read here, once. `docs/environment.md` has the table.
//! None changes generated code silently: `SMALT_LINEINFO` and `SMALT_RACECHECK` enter the artifact's key.
use crate::assemble::{Choice, Place};
use crate::error::{Error, Fault};
use etcetera::{BaseStrategy, choose_base_strategy};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The names of all variables of smalt, of the library, the Python package and the build: those that `docs/environment.md` has.
pub fn documented() -> Vec<&'static str> {
    let mut names: Vec<&str> = include_str!("../../docs/environment.md")
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|code| code.starts_with("SMALT_") && code.bytes().all(|b| b == b'_' || b.is_ascii_uppercase()))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What `SMALT_DUMP` can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dump {
    /// The descriptor and its debug table, as one replayable file.
    Descriptor,
    /// The kernel after each pass.
    Ir,
    Ptx,
    Cubin,
    /// The assembler's log.
    Ptxas,
    /// The artifact's report, as JSON.
    Report,
}

impl Dump {
    pub const ALL: [(&'static str, Dump); 6] = [
        ("descriptor", Dump::Descriptor),
        ("ir", Dump::Ir),
        ("ptx", Dump::Ptx),
        ("cubin", Dump::Cubin),
        ("ptxas", Dump::Ptxas),
        ("report", Dump::Report),
    ];
}

/// What becomes of what the emulator's checker finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checking {
    /// An error.
    #[default]
    Error,
    /// A line on stderr, once for each line of each kernel; the run goes on.
    Warn,
    /// There is no checker.
    Off,
}

impl Checking {
    pub const ALL: [(&'static str, Checking); 3] = [
        ("error", Checking::Error),
        ("warn", Checking::Warn),
        ("off", Checking::Off),
    ];
}

/// Whether accumulators that do not fit into registers are parked, or left to the assembler to spill.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Parking {
    /// Whichever costs less.
    #[default]
    Auto,
    Always,
    Never,
}

/// What the cubin cache holds without `SMALT_CACHE_LIMIT`; a cubin has some 10 to 100 KiB.
const CACHE_LIMIT: u64 = 1 << 30;

/// Memory for what one launch prints without `SMALT_PRINT_BYTES`.
const PRINT_BYTES: u64 = 1 << 20;

/// The settings of this process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Env {
    /// `SMALT_DUMP`
    pub dump: Vec<Dump>,
    /// `SMALT_DUMP_DIR`
    pub dump_dir: PathBuf,
    /// `SMALT_ASSEMBLER`
    pub assembler: Choice,
    /// `SMALT_PTXAS`
    pub ptxas: Option<PathBuf>,
    /// `SMALT_CACHE_DIR` and `SMALT_CACHE_LIMIT`: where cubins are kept between processes; none: nowhere.
    pub cache: Option<Place>,
    /// `SMALT_LINEINFO`
    pub line_info: bool,
    /// `SMALT_RACECHECK`
    pub racecheck: bool,
    /// `SMALT_VERIFY`: whether the compiler's own checkers run.
    pub verify: bool,
    /// `SMALT_PARK`
    pub parking: Parking,
    /// `SMALT_PRINT_BYTES`: how much one launch may print.
    pub print_bytes: u64,
    /// `SMALT_TRACE`: the file that timelines of runs in the emulator go to.
    pub trace: Option<PathBuf>,
    /// `SMALT_PROFILE_DIR`: where profiles of kernels go that another process has lowered; none: nowhere.
    pub profile_dir: Option<PathBuf>,
    /// `CUDA_HOME`, else `CUDA_PATH`
    pub cuda_home: Option<PathBuf>,
    /// `PATH`
    pub path: Vec<PathBuf>,
}

/// The process's settings, or what is wrong with them.
pub fn get() -> Result<&'static Env, Error> {
    static ENV: OnceLock<Result<Env, Error>> = OnceLock::new();
    ENV.get_or_init(|| Env::read(|name| std::env::var_os(name), user_caches()))
        .as_ref()
        .map_err(Clone::clone)
}

/// How the emulator runs kernels.
#[derive(Default)]
pub struct Emulation {
    /// `SMALT_SCHEDULE` and `SMALT_SEED`: how it orders what the hardware leaves open.
    pub schedule: Option<String>,
    pub seed: Option<u64>,
    /// `SMALT_CHECK`: what becomes of what its checker finds.
    pub check: Checking,
    /// `SMALT_TIMEOUT`: how long a run may last.
    pub timeout: Option<Duration>,
}

/// The emulator's settings as they are now: a program may change them from one run to the next.
pub fn emulation() -> Result<Emulation, Error> {
    Emulation::read(|name| std::env::var_os(name))
}

/// Seconds of `SMALT_TIMEOUT`.
fn limit(seconds: &str) -> Result<Duration, Error> {
    let parsed = seconds
        .parse()
        .ok()
        .and_then(|n: f64| Duration::try_from_secs_f64(n).ok());
    let limit = parsed.filter(|limit| !limit.is_zero());
    limit.ok_or_else(|| wrong("SMALT_TIMEOUT", "seconds, more than 0", seconds))
}

/// Where this user's caches lie: `$XDG_CACHE_HOME`, or `~/.cache`; on Windows `%LOCALAPPDATA%`. None without a home.
fn user_caches() -> Option<PathBuf> {
    let folder = choose_base_strategy().ok()?.cache_dir();
    // An empty HOME makes it one of the current folder.
    folder.is_absolute().then_some(folder)
}

/// Bytes of `512M`, `2G`, …
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let n = digits.parse::<u64>().ok().filter(|&n| n > 0)?;
    n.checked_mul(1 << shift)
}

/// The value of a variable; one that is empty counts as unset.
fn text(raw: &impl Fn(&str) -> Option<OsString>, name: &str) -> Result<Option<String>, Error> {
    match raw(name).filter(|value| !value.is_empty()).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text)),
        Some(Err(_)) => Err(wrong(name, "text", "bytes that are not UTF-8")),
    }
}

impl Emulation {
    fn read(raw: impl Fn(&str) -> Option<OsString>) -> Result<Emulation, Error> {
        let text = |name: &str| text(&raw, name);
        let mut emulation = Emulation {
            schedule: text("SMALT_SCHEDULE")?,
            timeout: text("SMALT_TIMEOUT")?.as_deref().map(limit).transpose()?,
            ..Emulation::default()
        };
        if let Some(name) = &emulation.schedule {
            if !["latest", "earliest", "seeded"].contains(&name.as_str()) {
                return Err(wrong("SMALT_SCHEDULE", "latest, earliest or seeded", name));
            }
        }
        if let Some(seed) = text("SMALT_SEED")? {
            emulation.seed = Some(
                seed.parse()
                    .map_err(|_| wrong("SMALT_SEED", "a number below 2^64", &seed))?,
            );
            if let Some(schedule) = emulation.schedule.as_deref().filter(|name| *name != "seeded") {
                let got = format!("SMALT_SCHEDULE={schedule} SMALT_SEED={seed}");
                return Err(wrong(
                    "SMALT_SEED",
                    "SMALT_SCHEDULE=seeded, or unset: no other schedule has a seed",
                    &got,
                ));
            }
        }
        if let Some(name) = text("SMALT_CHECK")? {
            let found = Checking::ALL.iter().find(|(known, _)| *known == name);
            emulation.check = found
                .ok_or_else(|| wrong("SMALT_CHECK", "error, warn or off", &name))?
                .1;
        }
        Ok(emulation)
    }
}

impl Env {
    /// `raw`: variables as they are; one that is empty counts as unset, but for `SMALT_CACHE_DIR`.
    fn read(raw: impl Fn(&str) -> Option<OsString>, user_caches: Option<PathBuf>) -> Result<Env, Error> {
        let var = |name: &str| raw(name).filter(|value| !value.is_empty());
        let text = |name: &str| text(&raw, name);
        let mut env = Env {
            dump_dir: var("SMALT_DUMP_DIR").map_or_else(|| "smalt_dump".into(), PathBuf::from),
            ptxas: var("SMALT_PTXAS").map(PathBuf::from),
            cuda_home: var("CUDA_HOME").or_else(|| var("CUDA_PATH")).map(PathBuf::from),
            path: var("PATH")
                .map(|path| std::env::split_paths(&path).collect())
                .unwrap_or_default(),
            trace: var("SMALT_TRACE").map(PathBuf::from),
            profile_dir: var("SMALT_PROFILE_DIR").map(PathBuf::from),
            print_bytes: PRINT_BYTES,
            ..Env::default()
        };
        let names = || Dump::ALL.map(|(name, _)| name).join(", ");
        for name in text("SMALT_DUMP")?.as_deref().unwrap_or("").split(',').map(str::trim) {
            match Dump::ALL.iter().find(|(known, _)| *known == name) {
                Some((_, dump)) => env.dump.push(*dump),
                None if name == "all" => env.dump = Dump::ALL.map(|(_, dump)| dump).to_vec(),
                None if name.is_empty() => {}
                None => return Err(wrong("SMALT_DUMP", &format!("all, or a list of: {}", names()), name)),
            }
        }
        if let Some(name) = text("SMALT_ASSEMBLER")? {
            env.assembler = Choice::from_name(&name)
                .ok_or_else(|| wrong("SMALT_ASSEMBLER", "auto, nvjitlink, ptxas or driver", &name))?;
        }
        let switch = |name: &str| match text(name)?.as_deref() {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(wrong(name, "0 or 1", other)),
        };
        env.line_info = switch("SMALT_LINEINFO")?;
        env.racecheck = switch("SMALT_RACECHECK")?;
        env.verify = match text("SMALT_VERIFY")?.as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(other) => return Err(wrong("SMALT_VERIFY", "on or off", other)),
        };
        env.parking = match text("SMALT_PARK")?.as_deref() {
            None | Some("auto") => Parking::Auto,
            Some("always") => Parking::Always,
            Some("never") => Parking::Never,
            Some(other) => return Err(wrong("SMALT_PARK", "auto, always or never", other)),
        };
        let limit_bytes = match text("SMALT_CACHE_LIMIT")? {
            None => CACHE_LIMIT,
            Some(limit) => {
                let expected = "a size in bytes, or with K, M or G: 512M (SMALT_CACHE_DIR= keeps nothing)";
                size(&limit).ok_or_else(|| wrong("SMALT_CACHE_LIMIT", expected, &limit))?
            }
        };
        let folder = match raw("SMALT_CACHE_DIR") {
            None => user_caches.map(|caches| caches.join("smalt")),
            Some(folder) => Some(PathBuf::from(folder)).filter(|folder| !folder.as_os_str().is_empty()),
        };
        env.cache = folder.map(|folder| Place { folder, limit_bytes });
        if let Some(bytes) = text("SMALT_PRINT_BYTES")? {
            let expected = "a size from 256 bytes to 1G, or with K, M or G: 16M";
            env.print_bytes = size(&bytes)
                .filter(|bytes| (256..=1 << 30).contains(bytes))
                .ok_or_else(|| wrong("SMALT_PRINT_BYTES", expected, &bytes))?;
        }
        Ok(env)
    }

    pub fn dumps(&self, what: Dump) -> bool {
        self.dump.contains(&what)
    }
}

fn wrong(name: &str, expected: &str, got: &str) -> Error {
    Error::new(Fault::Environment, format!("the environment variable {name}"))
        .expected(expected)
        .got(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Env, Error> {
        let var = |name: &str| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.into())
        };
        Env::read(var, Some("/home/me/.cache".into()))
    }

    fn emulation(pairs: &[(&str, &str)]) -> Result<Emulation, Error> {
        Emulation::read(|name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn what_is_read_is_documented() {
        let names = documented();
        let source = include_str!("env.rs");
        let mut read = 0;
        for call in ["var(\"SMALT_", "raw(\"SMALT_", "text(\"SMALT_", "switch(\"SMALT_"] {
            for rest in source.split(call).skip(1) {
                let name = format!("SMALT_{}", rest.split('"').next().unwrap());
                assert!(names.contains(&name.as_str()), "{name} is not in docs/environment.md");
                read += 1;
            }
        }
        assert!(read >= 10, "{read}");
        assert!(names.contains(&"SMALT_ENABLE") && names.contains(&"SMALT_LIBRARY"));
    }

    #[test]
    fn defaults() {
        let env = read(&[]).unwrap();
        assert_eq!((env.dump.len(), env.assembler, env.line_info), (0, Choice::Auto, false));
        assert_eq!(env.dump_dir, PathBuf::from("smalt_dump"));
    }

    #[test]
    fn where_cubins_are_kept() {
        let place = |pairs: &[(&str, &str)]| read(pairs).unwrap().cache;
        let at = |folder: &str, limit_bytes| {
            let folder = folder.into();
            Some(Place { folder, limit_bytes })
        };
        assert_eq!(place(&[]), at("/home/me/.cache/smalt", 1 << 30));
        assert_eq!(place(&[("SMALT_CACHE_DIR", "")]), None);
        assert_eq!(
            place(&[("SMALT_CACHE_DIR", "/a"), ("SMALT_CACHE_LIMIT", "3M")]),
            at("/a", 3 << 20)
        );
        assert_eq!(
            place(&[("SMALT_CACHE_DIR", "/a"), ("SMALT_CACHE_LIMIT", "4096")]),
            at("/a", 4096)
        );
        assert_eq!(Env::read(|_| None, None).unwrap().cache, None, "there is no home");
    }

    #[test]
    fn what_is_empty_is_unset() {
        let env = read(&[("SMALT_DUMP_DIR", ""), ("SMALT_PTXAS", ""), ("SMALT_LINEINFO", "")]).unwrap();
        assert_eq!(
            (env.dump_dir, env.ptxas, env.line_info),
            ("smalt_dump".into(), None, false)
        );
    }

    #[test]
    fn lists_and_choices() {
        let env = read(&[("SMALT_DUMP", "ptx, cubin"), ("SMALT_ASSEMBLER", "ptxas")]).unwrap();
        assert_eq!((env.dump, env.assembler), (vec![Dump::Ptx, Dump::Cubin], Choice::Ptxas));
        assert_eq!(emulation(&[("SMALT_SEED", "7")]).unwrap().seed, Some(7));
        assert_eq!(read(&[("SMALT_DUMP", "all")]).unwrap().dump.len(), Dump::ALL.len());
        assert_eq!(
            read(&[("CUDA_PATH", "/a"), ("CUDA_HOME", "/b")]).unwrap().cuda_home,
            Some("/b".into())
        );
    }

    #[test]
    fn mistakes_name_the_variable() {
        for (name, value) in [
            ("SMALT_DUMP", "ptx,asm"),
            ("SMALT_ASSEMBLER", "gas"),
            ("SMALT_LINEINFO", "yes"),
            ("SMALT_RACECHECK", "on"),
            ("SMALT_VERIFY", "0"),
            ("SMALT_PARK", "on"),
            ("SMALT_SEED", "-1"),
            ("SMALT_CACHE_LIMIT", "0"),
            ("SMALT_CACHE_LIMIT", "1.5G"),
            ("SMALT_CACHE_LIMIT", "99999999999G"),
            ("SMALT_PRINT_BYTES", "10"),
            ("SMALT_PRINT_BYTES", "2G"),
            ("SMALT_CHECK", "never"),
            ("SMALT_TIMEOUT", "0"),
            ("SMALT_TIMEOUT", "-3"),
            ("SMALT_TIMEOUT", "soon"),
        ] {
            let pairs = [(name, value)];
            let error = read(&pairs).map(drop).and(emulation(&pairs).map(drop)).unwrap_err();
            assert!(error.what.contains(name), "{error}");
            assert_eq!(error.fault, Fault::Environment);
        }
    }

    #[test]
    fn a_seed_and_a_schedule_without_one_contradict_each_other() {
        for schedule in ["latest", "earliest"] {
            let error = emulation(&[("SMALT_SCHEDULE", schedule), ("SMALT_SEED", "7")])
                .map(drop)
                .unwrap_err();
            assert!(error.to_string().contains(schedule), "{error}");
        }
        let env = emulation(&[("SMALT_SCHEDULE", "seeded"), ("SMALT_SEED", "7")]).unwrap();
        assert_eq!((env.schedule.as_deref(), env.seed), (Some("seeded"), Some(7)));
    }

    #[test]
    fn the_compilers_checkers_run_unless_they_are_off() {
        let parking = |how| read(&[("SMALT_PARK", how)]).unwrap().parking;
        assert_eq!(
            ["auto", "always", "never"].map(parking),
            [Parking::Auto, Parking::Always, Parking::Never]
        );
        let verify = |pairs: &[(&str, &str)]| read(pairs).unwrap().verify;
        assert!(verify(&[]) && verify(&[("SMALT_VERIFY", "on")]) && !verify(&[("SMALT_VERIFY", "off")]));
    }

    #[test]
    fn the_emulators_limits() {
        let set = emulation(&[("SMALT_CHECK", "warn"), ("SMALT_TIMEOUT", "2.5")]).unwrap();
        assert_eq!(
            (set.check, set.timeout),
            (Checking::Warn, Some(Duration::from_millis(2500)))
        );
        let unset = emulation(&[]).unwrap();
        assert_eq!((unset.check, unset.timeout), (Checking::Error, None));
    }
}
