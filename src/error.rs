//! What can go wrong on the way from a descriptor to a launched kernel, and whose fault it is.
use std::fmt;

/// The op of a descriptor (its id) that an error, an instruction or a diagnosis belongs to. 0: the call site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Loc(pub u32);

impl Loc {
    pub const CALL_SITE: Loc = Loc(0);
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op{}", self.0)
    }
}

/// The reference of a descriptor (its value id) that a message is about; 0: none. Who has the debug table says what the user calls it.
/// It is written as no identifier is, so that nothing of the user's own is taken for one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct RefId(pub u32);

impl fmt::Display for RefId {
    /// With what parts it from the words behind it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            value => write!(f, "%ref{value}, "),
        }
    }
}

/// Whose fault an error is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// The kernel asks for what smalt lacks.
    Unsupported,
    /// The kernel is wrong.
    InvalidKernel,
    /// The bytes are no descriptor, or one of a newer version.
    InvalidDescriptor,
    /// The machine lacks something: a driver, an assembler, a device that fits.
    Environment,
    /// A launched or emulated kernel failed: out of bounds, a missing wait, a driver error.
    Execution,
    /// It did not end: a deadlock, or more time than was allowed.
    Timeout,
    /// The user stopped it.
    Interrupted,
    /// smalt is wrong.
    Internal,
}

impl Fault {
    /// The name that crosses the C API and picks the Python exception.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Unsupported => "Unsupported",
            Fault::InvalidKernel => "InvalidKernel",
            Fault::InvalidDescriptor => "InvalidDescriptor",
            Fault::Environment => "Environment",
            Fault::Execution => "Execution",
            Fault::Timeout => "Timeout",
            Fault::Interrupted => "Interrupted",
            Fault::Internal => "Internal",
        }
    }
}

/// One error: what, where, expected, got, and what to do.
///
/// Every layer raises this type; [`Error::loc`] is resolved to the user's line by whoever holds the debug table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Error {
    pub fault: Fault,
    /// The op that is wrong, if one is.
    pub loc: Option<Loc>,
    /// The primitive or rule, e.g. `wgmma`.
    pub what: String,
    pub expected: Option<String>,
    pub got: Option<String>,
    pub remedy: Option<String>,
}

impl Error {
    pub fn new(fault: Fault, what: impl Into<String>) -> Error {
        Error {
            fault,
            loc: None,
            what: what.into(),
            expected: None,
            got: None,
            remedy: None,
        }
    }
    /// The kernel asks for what smalt lacks.
    pub fn unsupported(what: impl Into<String>) -> Error {
        Error::new(Fault::Unsupported, what)
    }
    /// The kernel is wrong.
    pub fn invalid(what: impl Into<String>) -> Error {
        Error::new(Fault::InvalidKernel, what)
    }
    /// A broken invariant of ours.
    pub fn internal(what: impl Into<String>) -> Error {
        Error::new(Fault::Internal, what)
    }
    /// Sets the op, unless an inner layer knew it better.
    pub fn at(mut self, loc: Loc) -> Error {
        self.loc.get_or_insert(loc);
        self
    }
    pub fn expected(mut self, text: impl Into<String>) -> Error {
        self.expected = Some(text.into());
        self
    }
    pub fn got(mut self, text: impl Into<String>) -> Error {
        self.got = Some(text.into());
        self
    }
    pub fn remedy(mut self, text: impl Into<String>) -> Error {
        self.remedy = Some(text.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            Fault::Unsupported => write!(f, "not supported yet: {}", self.what)?,
            Fault::Internal => write!(f, "internal error of smalt (please report it): {}", self.what)?,
            Fault::InvalidKernel
            | Fault::InvalidDescriptor
            | Fault::Environment
            | Fault::Execution
            | Fault::Timeout
            | Fault::Interrupted => write!(f, "{}", self.what)?,
        }
        if let Some(expected) = &self.expected {
            write!(f, "\n  expected: {expected}")?;
        }
        if let Some(got) = &self.got {
            write!(f, "\n  got: {got}")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "\n  remedy: {remedy}")?;
        }
        Ok(())
    }
}

pub type Result<T> = std::result::Result<T, Error>;
