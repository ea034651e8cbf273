//! Timelines of runs in the emulator, for Perfetto and `chrome://tracing`: `SMALT_TRACE`, `smalt.trace`.
//!
//! A file is a JSON object in the trace-event format, and is whole after every run: the next run's events take the place of its end. Runs
//! stand one behind another on one axis of time. A process of the file is a CTA, a thread is one of its tracks. The format has no unit but
//! microseconds: one is one step of the emulator.
use super::{Locations, env};
use crate::emulate::trace::{CtaId, Event, Recorded, Track, What};
use crate::emulate::{Names, trace::Trace};
use crate::error::{Error, Fault};
use crate::lock::lock;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

/// Most events of one file.
const MAX_EVENTS: u64 = 1 << 19;
/// Of steps, between two runs.
const GAP: u64 = 100;

/// A file that runs are written to.
pub struct TraceFile {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    file: File,
    /// Where the list of events ends, in bytes.
    end: u64,
    events: u64,
    dropped: u64,
    runs: u64,
    /// Processes that have numbers.
    processes: u64,
    /// Where the next run begins on the axis of time.
    time: u64,
}

/// The file that `smalt.trace` has chosen.
static CHOSEN: Mutex<Option<Arc<TraceFile>>> = Mutex::new(None);

impl TraceFile {
    /// Creates the file, or empties it.
    fn create(path: &Path) -> Result<TraceFile, Error> {
        let open = || -> std::io::Result<TraceFile> {
            let mut file = File::create(path)?;
            let head = b"{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
            file.write_all(head)?;
            let mut state = State {
                file,
                end: head.len() as u64,
                events: 0,
                dropped: 0,
                runs: 0,
                processes: 0,
                time: 0,
            };
            state.write("")?;
            Ok(TraceFile {
                path: path.to_owned(),
                state: Mutex::new(state),
            })
        };
        open().map_err(|error| {
            Error::new(Fault::Environment, "a trace cannot be written")
                .expected("a file in a folder that exists and can be written")
                .got(format!("{}: {error}", path.display()))
        })
    }
}

impl State {
    /// Appends events, and the end of the file behind them.
    fn write(&mut self, events: &str) -> std::io::Result<()> {
        let about = json!({
            "time": "one microsecond is one step (micro-op of a warp) of smalt's emulator; no GPU's time",
            "runs": self.runs,
            "dropped": self.dropped,
        });
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(events.as_bytes())?;
        self.file
            .write_all(format!("\n], \"otherData\": {about}}}\n").as_bytes())?;
        let length = self.file.stream_position()?;
        self.file.set_len(length)?;
        self.end += events.len() as u64;
        Ok(())
    }
}

/// From here on, runs are written to this file; to `SMALT_TRACE`'s, if any, where it is `None`.
pub fn choose(path: Option<&str>) -> Result<(), Error> {
    let file = path.map(|path| TraceFile::create(Path::new(path))).transpose()?;
    *lock(&CHOSEN) = file.map(Arc::new);
    Ok(())
}

/// The file of `SMALT_TRACE`, made at the first run. That it cannot be written is reported once, and fails nothing.
fn of_environment() -> Option<Arc<TraceFile>> {
    static FILE: OnceLock<Option<Arc<TraceFile>>> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = env::get().ok()?.trace.as_ref()?;
        match TraceFile::create(path) {
            Ok(file) => Some(Arc::new(file)),
            Err(error) => {
                eprintln!("smalt: SMALT_TRACE: {error}");
                None
            }
        }
    })
    .clone()
}

/// A run that is traced.
pub struct Tracing {
    file: Arc<TraceFile>,
    pub trace: Arc<Trace>,
}

/// What the run that begins now is to be traced by, if it is.
pub fn begin() -> Option<Tracing> {
    let chosen = lock(&CHOSEN).clone();
    let file = chosen.or_else(of_environment)?;
    let room = {
        let state = lock(&file.state);
        MAX_EVENTS.saturating_sub(state.events)
    };
    Some(Tracing {
        file,
        trace: Arc::new(Trace::new(room)),
    })
}

impl Tracing {
    /// Writes what the run has left, failed or not.
    pub fn write(self, kernel: &str, locations: &Locations, names: &Names, failed: Option<&Error>) {
        let recorded = self.trace.take();
        let mut state = lock(&self.file.state);
        let text = render(&state, kernel, locations, names, &recorded, failed);
        state.runs += 1;
        state.events += recorded.events.len() as u64;
        state.dropped += recorded.dropped;
        state.processes += ctas(&recorded).len() as u64;
        state.time += recorded.end + GAP;
        if recorded.dropped > 0 {
            eprintln!(
                "smalt: {} events of a run of `{kernel}` were dropped: {} has room for {MAX_EVENTS}",
                recorded.dropped,
                self.file.path.display()
            );
        }
        if let Err(error) = state.write(&text) {
            eprintln!("smalt: the trace {}: {error}", self.file.path.display());
        }
    }
}

fn ctas(recorded: &Recorded) -> BTreeSet<CtaId> {
    recorded.events.iter().map(|event| event.cta).collect()
}

/// `file:line function` of an op.
fn line(locations: &Locations, event: &Event) -> Option<String> {
    let frames = locations.frames(event.loc?);
    let frame = frames.first()?;
    Some(format!("{}:{} {}", frame.file, frame.line, frame.function))
}

fn track_name(track: Track, names: &Names) -> String {
    let row = |row: u32| {
        if row == 0 {
            String::new()
        } else {
            format!(" ({})", row + 1)
        }
    };
    match track {
        Track::Warp(warp) => format!("warp {warp}"),
        Track::Copies { row: n } => format!("TMA{}", row(n)),
        Track::TensorCore { warp, row: n } => format!("tensor core, warp {warp}{}", row(n)),
        Track::Mbarrier(offset) => names.mbarrier(offset),
    }
}

/// The events as JSON, each with the comma or line break before it.
fn render(
    state: &State,
    kernel: &str,
    locations: &Locations,
    names: &Names,
    recorded: &Recorded,
    failed: Option<&Error>,
) -> String {
    let mut out = String::new();
    let mut first = state.events == 0 && state.runs == 0;
    let mut push = |event: Value| {
        out.push_str(if std::mem::take(&mut first) { "\n" } else { ",\n" });
        out.push_str(&event.to_string());
    };
    let pids: BTreeMap<CtaId, u64> = ctas(recorded).into_iter().zip(state.processes + 1..).collect();
    let run = match state.runs {
        0 => String::new(),
        n => format!(", run {}", n + 1),
    };
    let several = pids.keys().any(|cta| cta.device > 0);
    for (cta, pid) in &pids {
        let [z, y, x] = cta.zyx;
        let device = if several {
            format!(" of device {}", cta.device)
        } else {
            String::new()
        };
        let name = format!("{kernel}, CTA ({x}, {y}, {z}){device}{run}");
        push(json!({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}));
        push(json!({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}));
    }
    let mut tracks: BTreeMap<CtaId, BTreeSet<Track>> = BTreeMap::new();
    for event in &recorded.events {
        tracks.entry(event.cta).or_default().insert(event.track);
    }
    let mut tids: BTreeMap<(CtaId, Track), u64> = BTreeMap::new();
    for (cta, tracks) in &tracks {
        for (tid, track) in (1u64..).zip(tracks) {
            tids.insert((*cta, *track), tid);
            let (pid, name) = (pids[cta], locations.resolve(&track_name(*track, names)));
            push(json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}));
            push(json!({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}));
        }
    }
    let mut order: Vec<&Event> = recorded.events.iter().collect();
    // Stable: events of one step stay in their order, longer spans first.
    order.sort_by_key(|event| (event.start, event.cta, event.track, std::cmp::Reverse(event.end)));
    for event in order {
        let (category, name, mut args) = describe(event);
        let name = locations.resolve(&name);
        for arg in args.values_mut() {
            if let Value::String(text) = arg {
                *text = locations.resolve(text);
            }
        }
        if let Some(line) = line(locations, event) {
            args.insert("line".into(), json!(line));
        }
        if let Some(warp) = event.by {
            args.insert("warp".into(), json!(warp));
        }
        if event.unfinished {
            args.insert("unfinished".into(), json!(true));
        }
        let moment = matches!(event.what, What::Arrives { .. } | What::Prints);
        let (pid, tid) = (pids[&event.cta], tids[&(event.cta, event.track)]);
        let mut value = json!({
            "name": name, "cat": category, "pid": pid, "tid": tid, "ts": state.time + event.start, "args": args,
        });
        if moment {
            value["ph"] = json!("i");
            value["s"] = json!("t");
        } else {
            value["ph"] = json!("X");
            value["dur"] = json!(event.end - event.start);
        }
        push(value);
    }
    if let Some(error) = failed {
        let args = json!({"error": locations.describe(error)});
        let (pid, ts) = (state.processes + 1, state.time + recorded.end);
        push(
            json!({"name": locations.resolve(&error.what), "cat": "error", "ph": "i", "s": "g", "pid": pid, "tid": 0, "ts": ts, "args": args}),
        );
    }
    out
}

/// Category, name and arguments of an event.
fn describe(event: &Event) -> (&'static str, String, Map<String, Value>) {
    let (category, name, args) = match &event.what {
        What::Runs => ("run", "runs".to_owned(), json!({})),
        What::Waits { on, what } => ("wait", format!("waits for {what}"), json!({"for": on})),
        What::Copies {
            kind,
            bytes,
            from,
            to,
            read,
        } => {
            let mut args = json!({"bytes": bytes, "from": from, "to": to});
            if let Some(read) = read {
                args["source read after"] = json!(read - event.start);
            }
            ("copy", format!("{kind}, {bytes} bytes"), args)
        }
        What::Multiplies { shape, group } => ("wgmma", format!("wgmma {shape}"), json!({"group": group})),
        What::Phase {
            number,
            arrivals,
            expected,
            bytes,
        } => {
            let args = json!({"arrivals": arrivals, "expected arrivals": expected, "bytes": bytes});
            ("phase", format!("phase {number}"), args)
        }
        What::Arrives { warp, count, bytes } => match warp {
            None => ("land", format!("{bytes} bytes land"), json!({"bytes": bytes})),
            Some(_) if *count == 0 => ("expect", format!("expects {bytes} bytes"), json!({"bytes": bytes})),
            Some(_) => (
                "arrive",
                format!("{count} arrive"),
                json!({"arrivals": count, "expected bytes": bytes}),
            ),
        },
        What::Prints => ("print", "prints".to_owned(), json!({})),
    };
    let args = match args {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    (category, name, args)
}
