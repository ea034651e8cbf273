//! The `ptxas` program.
use super::{Output, Request};
use crate::error::{Error, Fault};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub struct Ptxas {
    path: PathBuf,
    version: String,
    identity: String,
}

impl Ptxas {
    /// `None` if the file does not run or is no ptxas.
    pub fn open(path: &Path) -> Option<Ptxas> {
        let output = Command::new(path).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // "Cuda compilation tools, release 13.0, V13.0.88"
        let version = text.split_once(", V")?.1.split_whitespace().next()?.to_owned();
        Some(Ptxas {
            path: path.to_owned(),
            version,
            identity: text.into_owned(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    /// Its whole version text: two builds have one version.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    pub fn run(&self, request: &Request<'_>, options: &[String]) -> Result<Output, Error> {
        let folder = tempfile::tempdir().map_err(|error| self.cannot("make a temporary folder", &error))?;
        let (ptx, cubin) = (folder.path().join("kernel.ptx"), folder.path().join("kernel.cubin"));
        std::fs::File::create(&ptx)
            .and_then(|mut file| file.write_all(request.ptx.as_bytes()))
            .map_err(|error| self.cannot("write the PTX", &error))?;
        let mut command = Command::new(&self.path);
        command
            .args(options)
            .arg("-v")
            .arg("-o")
            .arg(&cubin)
            .arg(&ptx)
            .stdin(Stdio::null());
        let output = command.output().map_err(|error| self.cannot("start", &error))?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let name = format!("ptxas {} ({})", self.version, output.status);
            return Err(super::log::failure(&name, &log, request));
        }
        let cubin = std::fs::read(&cubin).map_err(|error| self.cannot("read the cubin", &error))?;
        Ok(Output { cubin, log })
    }

    #[cold]
    fn cannot(&self, what: &str, error: &std::io::Error) -> Error {
        Error::new(
            Fault::Environment,
            format!("the assembler {} cannot {what}: {error}", self.path.display()),
        )
    }
}
