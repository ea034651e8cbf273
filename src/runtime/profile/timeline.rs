//! The tracks of one launch as events, in the trace-event format.
use super::Machine;
use crate::kernel_ir::ProfileScope;
use crate::kernel_ir::profile::Tracks;
use crate::lower::profile::Ranges;
use crate::ptx::launch::Profile;
use crate::runtime::printing::records::index_text;
use serde_json::{Value, json};

/// What a launch has recorded.
pub struct Timeline {
    pub json: Value,
    /// Marks for which there was no room.
    pub dropped: u64,
    /// Ranges of the track that made the most marks.
    pub most: u64,
}

/// One track, as it is in memory.
struct Track<'a> {
    /// In the launch.
    number: u64,
    sm: u32,
    made: u32,
    /// `%globaltimer` and `%clock64`.
    begin: [u64; 2],
    end: [u64; 2],
    /// Range and `%clock` of each.
    marks: &'a [u64],
}

impl Track<'_> {
    fn read<'a>(number: u64, words: &'a [u64], room: u32) -> Track<'a> {
        let (made, header) = ((words[0] >> 32) as u32, (Profile::HEADER / 8) as usize);
        Track {
            number,
            sm: words[0] as u32,
            made,
            begin: [words[1], words[2]],
            end: [words[3], words[4]],
            marks: &words[header..][..made.min(room) as usize],
        }
    }

    /// Each mark: its first word, and the clock since the track's begin. A mark has the clock's low half; two marks differ by less than 2^32.
    fn marks(&self) -> impl Iterator<Item = (u32, u64)> {
        let mut now = self.begin[1];
        self.marks.iter().map(move |mark| {
            let clock = (mark >> 32) as u32;
            now += u64::from(clock.wrapping_sub(now as u32));
            (*mark as u32, now - self.begin[1])
        })
    }
}

/// What kernel `name` has recorded in `memory`.
pub fn of(name: &str, profile: &Profile, ranges: &Ranges, memory: &[u64], machine: Machine, device: i32) -> Timeline {
    let words = (profile.track_bytes() / 8) as usize;
    let all = memory.chunks_exact(words);
    let mut tracks: Vec<Track<'_>> = (0..)
        .zip(all)
        .map(|(n, words)| Track::read(n, words, profile.marks))
        .collect();
    tracks.sort_by_key(|track| track.begin[0]);
    let start = tracks.first().map_or(0, |track| track.begin[0]);
    let scale = Scale::of(&tracks, machine);
    let mut events = vec![];
    let mut sms: Vec<u32> = tracks.iter().map(|track| track.sm).collect();
    sms.sort_unstable();
    sms.dedup();
    for sm in sms {
        events.push(json!({"name": "process_name", "ph": "M", "pid": 1 + sm, "args": {"name": format!("SM {sm}")}}));
    }
    for track in &tracks {
        // Warps of which none has made a mark.
        if track.made == 0 {
            continue;
        }
        let (pid, tid) = (1 + track.sm, 1 + track.number);
        let label = label(profile, ranges, track.number);
        events.push(json!({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": label}}));
        let mut event = |range: u32, edge: &str, clock: u64| {
            let range = ranges.names.get(range as usize).map_or("?", String::as_str);
            let time = scale.micros((track.begin[0] - start) as f64, clock as f64);
            events.push(json!({"name": range, "ph": edge, "ts": time, "pid": pid, "tid": tid}));
        };
        let (mut open, mut last) = (vec![], 0);
        for (mark, clock) in track.marks() {
            let range = mark & !Profile::ENDS;
            if mark & Profile::ENDS == 0 {
                open.push(range);
                event(range, "B", clock);
            } else {
                open.pop();
                event(range, "E", clock);
            }
            last = clock;
        }
        // Those whose ends found no room.
        for range in open.into_iter().rev() {
            event(range, "E", last);
        }
    }
    let dropped = |track: &Track<'_>| u64::from(track.made.saturating_sub(profile.marks));
    let total = tracks.iter().map(dropped).sum::<u64>();
    let most = tracks.iter().map(|track| track.made).max().unwrap_or(0);
    let time = match machine {
        Machine::Gpu => "from the launch's first block on; clock cycles of each block, scaled to its nanoseconds",
        Machine::Emulator => "one microsecond is one step (micro-op of a warp) of smalt's emulator; no GPU's time",
    };
    let about = json!({
        "kernel": name, "device": device, "time": time, "nanoseconds_per_cycle": scale.per_cycle(), "dropped": total,
    });
    Timeline {
        json: json!({"displayTimeUnit": "ns", "traceEvents": events, "otherData": about}),
        dropped: total,
        most: (u64::from(most) / 2).saturating_sub(1),
    }
}

/// `block (0, 1), warpgroup 1`, or `warp 3` of one.
fn label(profile: &Profile, ranges: &Ranges, number: u64) -> String {
    let (block, track) = (number / u64::from(profile.tracks), number % u64::from(profile.tracks));
    let index = index_text(&ranges.blocks, block);
    let block = match ranges.blocks.len() {
        0 => "block 0".to_owned(),
        1 => format!("block {index}"),
        _ => format!("block ({index})"),
    };
    match (ranges.tracks, ranges.scope) {
        (Tracks::Warpgroups, _) => format!("{block}, warpgroup {track}"),
        (Tracks::Warps, ProfileScope::Warpgroup) if track % 4 == 0 => format!("{block}, warpgroup {}", track / 4),
        (Tracks::Warps, _) if ranges.warpgroups == 1 => format!("{block}, warp {track}"),
        (Tracks::Warps, _) => format!("{block}, warpgroup {}, warp {}", track / 4, track % 4),
    }
}

/// What a cycle is in time.
enum Scale {
    /// Nanoseconds of a cycle. The timer ticks slowly, so that all tracks give the number.
    Cycles(f64),
    Steps,
}

impl Scale {
    fn of(tracks: &[Track<'_>], machine: Machine) -> Scale {
        if machine == Machine::Emulator {
            return Scale::Steps;
        }
        let sum = |at: usize| {
            tracks
                .iter()
                .map(|t| t.end[at].saturating_sub(t.begin[at]))
                .sum::<u64>() as f64
        };
        let ratio = sum(0) / sum(1);
        // Multiprocessors have some 0.2 to 3 GHz: what is outside is a timer too slow for so short a kernel.
        Scale::Cycles(if (0.3..5.0).contains(&ratio) { ratio } else { 1.0 })
    }

    /// When it is in the viewer's microseconds, so many cycles after a track began.
    fn micros(&self, begin: f64, cycles: f64) -> f64 {
        match self {
            Scale::Cycles(nanos) => (begin + cycles * nanos) / 1e3,
            Scale::Steps => begin + cycles,
        }
    }

    fn per_cycle(&self) -> Option<f64> {
        match self {
            Scale::Cycles(nanos) => Some(*nanos),
            Scale::Steps => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: u32 = 6;

    fn launch(tracks: u32) -> Profile {
        Profile {
            buffer: 0,
            tracks,
            marks: MARKS,
        }
    }

    fn ranges(tracks: Tracks) -> Ranges {
        Ranges {
            names: vec!["Init".into(), "a".into(), "b".into()],
            blocks: vec![2],
            warpgroups: 1,
            tracks,
            scope: ProfileScope::Warpgroup,
            space: u64::from(MARKS / 2 - 1),
        }
    }

    const END: u32 = Profile::ENDS;

    /// A track on multiprocessor 3 that begins at (timer, clock), and its marks at clocks.
    fn track(begin: [u64; 2], end: [u64; 2], marks: &[(u32, u64)]) -> Vec<u64> {
        let made = marks.len() as u64;
        let mut words = vec![3 | made << 32, begin[0], begin[1], end[0], end[1]];
        words.extend(
            marks
                .iter()
                .take(MARKS as usize)
                .map(|(mark, clock)| u64::from(*mark) | clock << 32),
        );
        words.resize(5 + MARKS as usize, !0);
        words
    }

    /// (name, phase, time, tid) of what is no name of a track.
    fn events(made: &Timeline) -> Vec<(String, String, f64, u64)> {
        let all = made.json["traceEvents"].as_array().unwrap().iter();
        let text = |event: &Value, of: &str| event[of].as_str().unwrap().to_owned();
        all.filter(|event| event["ph"] != "M")
            .map(|e| {
                (
                    text(e, "name"),
                    text(e, "ph"),
                    e["ts"].as_f64().unwrap(),
                    e["tid"].as_u64().unwrap(),
                )
            })
            .collect()
    }

    fn event(name: &str, phase: &str, time: f64, tid: u64) -> (String, String, f64, u64) {
        (name.into(), phase.into(), time, tid)
    }

    #[test]
    fn cycles_become_nanoseconds_of_one_axis() {
        // Two blocks; a clock that passes 2^32; half a nanosecond a cycle.
        let clock = (1 << 32) - 1000;
        let mut memory = track([7000, clock], [9000, clock + 4000], &[(1, clock), (1 | END, 1000)]);
        memory.extend(track(
            [5000, 50],
            [7000, 4050],
            &[(2, 50), (1, 250), (1 | END, 450), (2 | END, 4050)],
        ));
        let made = of("k", &launch(1), &ranges(Tracks::Warpgroups), &memory, Machine::Gpu, 0);
        assert_eq!(made.json["otherData"]["nanoseconds_per_cycle"], 0.5);
        assert_eq!(
            events(&made),
            [
                event("b", "B", 0.0, 2),
                event("a", "B", 0.1, 2),
                event("a", "E", 0.2, 2),
                event("b", "E", 2.0, 2),
                event("a", "B", 2.0, 1),
                event("a", "E", 3.0, 1),
            ]
        );
        let names = made.json["traceEvents"].as_array().unwrap();
        let name = |n: usize| names[n]["args"]["name"].as_str().unwrap();
        assert_eq!((name(0), name(1)), ("SM 3", "block 1, warpgroup 0"));
        assert_eq!(made.dropped, 0);
    }

    #[test]
    fn what_found_no_room_is_counted_and_closed() {
        let marks = [
            (1, 10),
            (2, 20),
            (2 | END, 30),
            (2, 40),
            (2 | END, 50),
            (2, 60),
            (2 | END, 70),
            (1 | END, 80),
        ];
        let memory = track([0, 0], [90, 90], &marks);
        let made = of(
            "k",
            &launch(1),
            &ranges(Tracks::Warpgroups),
            &memory,
            Machine::Emulator,
            0,
        );
        assert_eq!((made.dropped, made.most), (2, 3));
        assert_eq!(made.json["otherData"]["dropped"], 2);
        let all = events(&made);
        assert_eq!(
            &all[5..],
            [
                event("b", "B", 60.0, 1),
                event("b", "E", 60.0, 1),
                event("a", "E", 60.0, 1)
            ]
        );
    }

    #[test]
    fn warps_without_marks_have_no_row() {
        let mut memory = track([0, 0], [90, 90], &[(1, 10), (1 | END, 20)]);
        for _ in 0..2 {
            memory.extend(track([0, 0], [90, 90], &[]));
        }
        memory.extend(track([0, 0], [90, 90], &[(2, 10), (2 | END, 20)]));
        let made = of("k", &launch(4), &ranges(Tracks::Warps), &memory, Machine::Emulator, 0);
        let all = made.json["traceEvents"].as_array().unwrap().iter();
        let rows: Vec<_> = all
            .filter(|e| e["name"] == "thread_name")
            .map(|e| e["args"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(rows, ["block 0, warpgroup 0", "block 0, warp 3"]);
    }
}
