//! Values that are known only at run time, and what is proven about them.
//!
//! Planners never see the kernel IR: their caller numbers its dynamic scalars ([`DynId`]) and states [`Fact`]s.
//! A plan refers to a scalar by its number, in [`DynTerm`]s.

/// The caller's number of a dynamic scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DynId(pub u32);

/// What is proven about a scalar: it is a multiple of `divisor` and lies in `min..=max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fact {
    /// At least 1.
    pub divisor: u64,
    pub min: i64,
    pub max: i64,
}

impl Fact {
    pub const UNKNOWN: Fact = Fact {
        divisor: 1,
        min: i64::MIN,
        max: i64::MAX,
    };

    pub fn multiple_of(divisor: u64) -> Fact {
        Fact {
            divisor: divisor.max(1),
            ..Fact::UNKNOWN
        }
    }
    pub fn in_range(self, min: i64, max: i64) -> Fact {
        Fact { min, max, ..self }
    }
}

/// Where a slice starts, or an integer index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    Static(u64),
    Dynamic(DynId, Fact),
}

impl Start {
    /// A number that surely divides the start (0 for the start 0).
    pub fn divisor(&self) -> u64 {
        match *self {
            Start::Static(v) => v,
            Start::Dynamic(_, fact) => fact.divisor,
        }
    }
}

/// `((value / div) % modulus) · stride`, in the context's unit. `value` is not negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DynTerm {
    pub value: DynId,
    pub div: u64,
    /// `None`: no remainder is taken.
    pub modulus: Option<u64>,
    pub stride: i64,
    /// Proven: the term is a multiple of this many units.
    pub multiple: u64,
}

impl DynTerm {
    /// Of a term in bits.
    pub fn in_bytes(self) -> DynTerm {
        DynTerm {
            stride: self.stride / 8,
            multiple: self.multiple / 8,
            ..self
        }
    }
    pub fn eval(&self, value: u64) -> i64 {
        let q = value / self.div;
        self.modulus.map_or(q, |m| q % m) as i64 * self.stride
    }
}

pub fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
