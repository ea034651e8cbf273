//! Compiles dumped descriptors: `cargo run --example compile -- kernel.pb… [--show PASS] [--ptx FILE]`.
//!
//! Prints one line for each (sizes and times, or the error); `--show normalize` prints the kernel after that pass, `--ptx`
//! writes the text.
use smalt::runtime::CompileOptions;
use smalt::runtime::pipeline::{Observer, compile};

fn main() {
    let (mut files, mut show, mut ptx) = (vec![], None, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--show" => show = args.next(),
            "--ptx" => ptx = args.next(),
            _ => files.push(arg),
        }
    }
    let mut failed = 0;
    for file in &files {
        let bytes = match std::fs::read(file) {
            Ok(bytes) => bytes,
            Err(e) => {
                eprintln!("{file}: {e}");
                std::process::exit(1);
            }
        };
        let options = CompileOptions::for_target("sm_90a");
        let mut observer = Observer {
            shown: Some(vec![]),
            ..Observer::default()
        };
        let start = std::time::Instant::now();
        let result = compile(&bytes, &[], &options, &mut observer);
        let micros = start.elapsed().as_micros();
        for (pass, text) in observer.shown.unwrap_or_default() {
            if show.as_deref() == Some(pass.as_str()) {
                println!("{text}");
            }
        }
        match result {
            Ok(compiled) => {
                let phases: Vec<String> = observer
                    .phases
                    .iter()
                    .map(|p| format!("{} {}", p.name, p.micros))
                    .collect();
                println!(
                    "{file}: ok, {micros} us, {} lines of PTX [{}]",
                    compiled.ptx.lines().count(),
                    phases.join(", ")
                );
                if let Some(path) = &ptx
                    && let Err(e) = std::fs::write(path, &compiled.ptx)
                {
                    eprintln!("{path}: {e}");
                }
            }
            Err(e) => {
                failed += 1;
                let place = e.loc.map_or(String::new(), |l| format!(" at {l}"));
                println!(
                    "{file}: {}{place}: {}",
                    e.fault.name(),
                    e.to_string().replace('\n', " |")
                );
            }
        }
    }
    println!("{} compiled, {failed} not", files.len() - failed);
}
