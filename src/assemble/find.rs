//! Which assembler there is.
use super::cache::{Cache, Place};
use super::nvjitlink::NvJitLink;
use super::ptxas::Ptxas;
use super::{Output, Request};
use crate::error::{Error, Fault};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Which assembler to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// ptxas if it is there, else the driver's.
    #[default]
    Auto,
    /// Only on request: it ignores `setmaxnreg`.
    NvJitLink,
    Ptxas,
    /// The driver's own, at load time.
    Driver,
}

impl Choice {
    pub fn from_name(name: &str) -> Option<Choice> {
        Some(match name {
            "auto" => Choice::Auto,
            "nvjitlink" => Choice::NvJitLink,
            "ptxas" => Choice::Ptxas,
            "driver" => Choice::Driver,
            _ => return None,
        })
    }
}

/// Where to look.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Config {
    pub choice: Choice,
    /// A `ptxas` to use before any other.
    pub ptxas: Option<PathBuf>,
    /// Folders that hold Python packages (`site-packages`), where pip puts `nvidia/…`.
    pub packages: Vec<PathBuf>,
    /// A CUDA toolkit.
    pub cuda_home: Option<PathBuf>,
    /// The folders of `PATH`.
    pub path: Vec<PathBuf>,
    /// Where cubins are kept between processes; none: nowhere.
    pub cache: Option<Place>,
}

/// An assembler that was found and answered with its version.
pub struct Assembler {
    kind: Kind,
    pub(super) cache: Option<Cache>,
}

enum Kind {
    NvJitLink(NvJitLink),
    Ptxas(Ptxas),
    Driver,
}

impl Assembler {
    /// The first assembler of `config`. A requested assembler that is not there is an error.
    pub fn find(config: &Config) -> Result<Assembler, Error> {
        let kind = match config.choice {
            Choice::Driver => Kind::Driver,
            Choice::NvJitLink => Kind::NvJitLink(nvjitlink(config).ok_or_else(|| missing("nvJitLink", config))?),
            Choice::Ptxas => Kind::Ptxas(ptxas(config).ok_or_else(|| missing("ptxas", config))?),
            // A ptxas that was named is meant.
            Choice::Auto if config.ptxas.is_some() => {
                Kind::Ptxas(ptxas(config).ok_or_else(|| missing("ptxas", config))?)
            }
            Choice::Auto => ptxas(config).map_or(Kind::Driver, Kind::Ptxas),
        };
        let cache = config.cache.clone().map(Cache::new);
        Ok(Assembler { kind, cache })
    }

    /// Name and version.
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::NvJitLink(library) => format!("nvJitLink {}", library.version()),
            Kind::Ptxas(program) => format!("ptxas {}", program.version()),
            Kind::Driver => "the driver".into(),
        }
    }

    /// Where it lies.
    pub fn path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::NvJitLink(library) => Some(library.path()),
            Kind::Ptxas(program) => Some(program.path()),
            Kind::Driver => None,
        }
    }

    /// What distinguishes its cubins from another's; none: it makes none.
    pub(super) fn identity(&self) -> Option<&str> {
        match &self.kind {
            Kind::NvJitLink(library) => Some(library.identity()),
            Kind::Ptxas(program) => Some(program.identity()),
            Kind::Driver => None,
        }
    }

    pub(super) fn run(&self, request: &Request<'_>, options: &[String]) -> Result<Option<Output>, Error> {
        match &self.kind {
            Kind::NvJitLink(library) => library.run(request, options).map(Some),
            Kind::Ptxas(program) => program.run(request, options).map(Some),
            Kind::Driver => Ok(None),
        }
    }
}

fn nvjitlink(config: &Config) -> Option<NvJitLink> {
    let mut folders = Vec::new();
    for package in &config.packages {
        // CUDA 13 packages share one folder, CUDA 12 packages have their own.
        folders.push(package.join("nvidia/cu13/lib"));
        folders.push(package.join("nvidia/nvjitlink/lib"));
    }
    if let Some(home) = &config.cuda_home {
        folders.push(home.join("lib64"));
    }
    let files = folders
        .iter()
        .flat_map(|folder| ["13", "12"].map(|major| folder.join(format!("libnvJitLink.so.{major}"))));
    files
        .filter(|file| file.is_file())
        .find_map(|file| NvJitLink::open(&file))
}

fn ptxas(config: &Config) -> Option<Ptxas> {
    if let Some(program) = &config.ptxas {
        return Ptxas::open(program);
    }
    let mut files = Vec::new();
    for package in &config.packages {
        files.push(package.join("nvidia/cu13/bin/ptxas"));
        files.push(package.join("nvidia/cuda_nvcc/bin/ptxas"));
    }
    if let Some(home) = &config.cuda_home {
        files.push(home.join("bin/ptxas"));
    }
    files.extend(config.path.iter().map(|folder| folder.join("ptxas")));
    files
        .iter()
        .filter(|file| file.is_file())
        .find_map(|file| Ptxas::open(file))
}

#[cold]
fn missing(what: &str, config: &Config) -> Error {
    Error::new(
        Fault::Environment,
        format!("the assembler {what} was asked for and is not there, or does not run"),
    )
    .got(format!(
        "ptxas {:?}, packages in {:?}, CUDA_HOME {:?}",
        config.ptxas, config.packages, config.cuda_home
    ))
    .remedy("pip install nvidia-cuda-nvcc nvidia-nvjitlink, or set SMALT_ASSEMBLER=auto")
}
