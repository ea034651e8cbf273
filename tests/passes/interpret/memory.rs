//! Memory and views of it.
use super::{Outcome, Stop, invalid, unsupported};
use smalt::dtype::DType;
use smalt::kernel_ir::{DimIndex, Index, Step};

/// What an allocation is made of.
pub enum Memory {
    /// Elements in row-major order, packed, low bits first.
    Bits(Vec<u8>),
    Barriers(Vec<Barrier>),
    Semaphores(Vec<i32>),
}

#[derive(Clone, Default)]
pub struct Barrier {
    /// Phases that are over.
    pub phases: u64,
    pub arrived: u64,
    /// Bytes still to come in this phase.
    pub bytes: i64,
}

impl Barrier {
    pub fn arrive(&mut self, n: u64, arrivals: u64) {
        self.arrived += n;
        self.settle(arrivals);
    }

    /// Ends the phase if nothing is missing.
    pub fn settle(&mut self, arrivals: u64) {
        if self.arrived >= arrivals && self.bytes == 0 {
            self.arrived -= arrivals;
            self.phases += 1;
        }
    }
}

/// Memory that nothing has written: as a float large, as an index outside of everything.
pub const POISON: u8 = 0x7b;

pub fn bits(elements: u64, dtype: DType, fill: u8) -> Memory {
    Memory::Bits(vec![fill; dtype.bytes(elements).expect("a size in bytes") as usize])
}

pub fn read(bytes: &[u8], at: u64, width: u32) -> u64 {
    if width >= 8 && at % 8 == 0 && width % 8 == 0 {
        let start = (at / 8) as usize;
        let mut word = [0; 8];
        word[..width as usize / 8].copy_from_slice(&bytes[start..start + width as usize / 8]);
        return u64::from_le_bytes(word);
    }
    (0..u64::from(width)).fold(0, |x, i| {
        let bit = bytes[((at + i) / 8) as usize] >> ((at + i) % 8) & 1;
        x | u64::from(bit) << i
    })
}

pub fn write(bytes: &mut [u8], at: u64, width: u32, x: u64) {
    if width >= 8 && at % 8 == 0 && width % 8 == 0 {
        let start = (at / 8) as usize;
        bytes[start..start + width as usize / 8].copy_from_slice(&x.to_le_bytes()[..width as usize / 8]);
        return;
    }
    for i in 0..u64::from(width) {
        let byte = &mut bytes[((at + i) / 8) as usize];
        let bit = 1 << ((at + i) % 8);
        match x >> i & 1 {
            0 => *byte &= !bit,
            _ => *byte |= bit,
        }
    }
}

/// The elements of a view: for each its position in the allocation, in elements of the view's type.
pub struct View {
    pub shape: Vec<u64>,
    /// Row-major; `None`: outside, where nothing is.
    pub at: Positions,
}

pub enum Positions {
    /// `offset + Σ index · stride`.
    Affine {
        offset: i64,
        strides: Vec<i64>,
    },
    Listed(Vec<Option<i64>>),
}

/// Bytes on the way here would not be worth it.
const MAX_LISTED: u64 = 1 << 22;

fn row_major(shape: &[u64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d] as i64;
    }
    strides
}

/// Calls `f` with each index of an array, in row-major order.
pub fn for_each_index(shape: &[u64], mut f: impl FnMut(&[u64])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let Some(d) = (0..shape.len()).rev().find(|&d| index[d] + 1 < shape[d]) else {
            return;
        };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}

/// Whether a view may reach outside of its dimension.
#[derive(Clone, Copy, PartialEq)]
pub enum Outside {
    Nothing,
    Refused,
}

impl View {
    pub fn whole(shape: &[u64]) -> View {
        View {
            shape: shape.to_vec(),
            at: Positions::Affine {
                offset: 0,
                strides: row_major(shape),
            },
        }
    }

    pub fn len(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The positions, in row-major order.
    pub fn list(&self) -> Outcome<Vec<Option<i64>>> {
        if self.len() > MAX_LISTED {
            return Err(Stop::TooLong);
        }
        Ok(match &self.at {
            Positions::Listed(at) => at.clone(),
            Positions::Affine { offset, strides } => {
                let mut list = Vec::with_capacity(self.len() as usize);
                for_each_index(&self.shape, |index| {
                    let terms = index.iter().zip(strides).map(|(i, s)| *i as i64 * s);
                    list.push(Some(offset + terms.sum::<i64>()));
                });
                list
            }
        })
    }

    fn listed(&mut self) -> Outcome<&[Option<i64>]> {
        if let Positions::Affine { .. } = self.at {
            self.at = Positions::Listed(self.list()?);
        }
        match &self.at {
            Positions::Listed(at) => Ok(at),
            Positions::Affine { .. } => unreachable!("it was listed"),
        }
    }

    /// The view whose element `index` is the one at `of(index)` here; `None`: outside.
    fn gathered(&self, shape: Vec<u64>, of: impl Fn(&[u64]) -> Option<Vec<u64>>) -> Outcome<View> {
        if shape.iter().product::<u64>() > MAX_LISTED {
            return Err(Stop::TooLong);
        }
        let strides = row_major(&self.shape);
        let mut list = vec![];
        for_each_index(&shape, |index| {
            list.push(of(index).and_then(|from| {
                match &self.at {
                    Positions::Affine { offset, strides } => {
                        Some(offset + from.iter().zip(strides).map(|(i, s)| *i as i64 * s).sum::<i64>())
                    }
                    Positions::Listed(at) => {
                        at[from
                            .iter()
                            .zip(&strides)
                            .map(|(i, s)| *i as usize * *s as usize)
                            .sum::<usize>()]
                    }
                }
            }))
        });
        Ok(View {
            shape,
            at: Positions::Listed(list),
        })
    }

    /// The element type before, and after the step.
    pub fn step(
        mut self,
        step: &Step,
        dtype: Option<DType>,
        outside: Outside,
        index: &dyn Fn(Index) -> Outcome<i128>,
        array: &dyn Fn(smalt::kernel_ir::Value) -> Outcome<Vec<i128>>,
    ) -> Outcome<View> {
        match step {
            Step::Index(dims) => self.indexed(dims, outside, index, array),
            Step::Transpose(permutation) => {
                let shape: Vec<u64> = permutation.iter().map(|p| self.shape[*p as usize]).collect();
                if let Positions::Affine { offset, strides } = &self.at {
                    let strides = permutation.iter().map(|p| strides[*p as usize]).collect();
                    let at = Positions::Affine {
                        offset: *offset,
                        strides,
                    };
                    return Ok(View { shape, at });
                }
                let rank = shape.len();
                self.gathered(shape, |to| {
                    let mut from = vec![0; rank];
                    for (i, p) in permutation.iter().enumerate() {
                        from[*p as usize] = to[i];
                    }
                    Some(from)
                })
            }
            Step::Reshape(shape) => {
                if let Positions::Affine { offset, strides } = &self.at
                    && *strides == row_major(&self.shape)
                {
                    let at = Positions::Affine {
                        offset: *offset,
                        strides: row_major(shape),
                    };
                    return Ok(View {
                        shape: shape.to_vec(),
                        at,
                    });
                }
                self.listed()?;
                self.shape = shape.to_vec();
                Ok(self)
            }
            Step::Bitcast { dtype: to, shape } => {
                let from = dtype.expect("data has a type");
                let same = from.bits() == to.bits();
                let Positions::Affine { offset, strides } = &self.at else {
                    return match same {
                        true => {
                            self.shape = shape.to_vec();
                            Ok(self)
                        }
                        false => unsupported("a bitcast of scattered elements to another width"),
                    };
                };
                if same {
                    return View {
                        shape: self.shape.clone(),
                        at: Positions::Affine {
                            offset: *offset,
                            strides: strides.clone(),
                        },
                    }
                    .step(&Step::Reshape(shape.clone()), dtype, outside, index, array);
                }
                let bits = offset * i64::from(from.bits());
                if *strides != row_major(&self.shape) || bits % i64::from(to.bits()) != 0 {
                    return unsupported("a bitcast of strided elements to another width");
                }
                let at = Positions::Affine {
                    offset: bits / i64::from(to.bits()),
                    strides: row_major(shape),
                };
                Ok(View {
                    shape: shape.to_vec(),
                    at,
                })
            }
            Step::Untile(tiling) => {
                let (rank, tiles) = (self.shape.len(), tiling.len());
                let batch = rank - 2 * tiles;
                let mut shape = self.shape[..rank - tiles].to_vec();
                for (d, t) in shape[batch..].iter_mut().zip(tiling) {
                    *d *= t;
                }
                self.gathered(shape, |to| {
                    let (batch, inner) = to.split_at(batch);
                    let outer = inner.iter().zip(tiling).map(|(i, t)| i / t);
                    let within = inner.iter().zip(tiling).map(|(i, t)| i % t);
                    Some(batch.iter().copied().chain(outer).chain(within).collect())
                })
            }
            // Where bytes lie does not show in elements.
            Step::Unswizzle(_) => Ok(self),
            Step::Im2Col { .. } => unsupported("im2col"),
            Step::ExpandLeadingBatch(_) => unsupported("expand_leading_batch"),
            Step::ExtractAlias { .. } => unreachable!("members are found before"),
        }
    }

    fn indexed(
        self,
        dims: &[DimIndex],
        outside: Outside,
        index: &dyn Fn(Index) -> Outcome<i128>,
        array: &dyn Fn(smalt::kernel_ir::Value) -> Outcome<Vec<i128>>,
    ) -> Outcome<View> {
        // For each dimension the positions that it takes; `None`: outside.
        let mut taken: Vec<Vec<Option<u64>>> = vec![];
        let mut kept = vec![];
        let mut affine = vec![];
        for (dim, &extent) in dims.iter().zip(&self.shape) {
            let inside = |i: i128| (0..i128::from(extent)).contains(&i).then_some(i as u64);
            let mut list = vec![];
            match dim {
                DimIndex::At(at) => {
                    let at = index(*at)?;
                    match inside(at) {
                        Some(i) => list.push(Some(i)),
                        None if outside == Outside::Nothing => list.push(None),
                        None => return invalid(format!("the index {at} of {extent}")),
                    }
                    affine.push(inside(at).map(|i| (i, None)));
                }
                DimIndex::Slice { start, size, stride } => {
                    let start = index(*start)?;
                    let last = start + (i128::from(*size) - 1).max(0) * i128::from(*stride);
                    let whole = *size == 0 || inside(start).is_some() && inside(last).is_some();
                    if !whole && outside == Outside::Refused {
                        return invalid(format!("{size} positions from {start} of {extent}"));
                    }
                    list.extend((0..*size).map(|i| inside(start + i128::from(i * stride))));
                    affine.push(whole.then_some((start as u64, Some(*stride))));
                    kept.push(*size);
                }
                DimIndex::Window { start, size } => {
                    let start = index(*start)?;
                    list.extend((0..*size).map(|i| inside(start + i128::from(i))));
                    affine.push(None);
                    kept.push(*size);
                }
                DimIndex::Gather(v) => {
                    let at = array(*v)?;
                    kept.push(at.len() as u64);
                    for i in at {
                        match inside(i) {
                            None if outside == Outside::Refused => {
                                return invalid(format!("the index {i} of {extent}"));
                            }
                            i => list.push(i),
                        }
                    }
                    affine.push(None);
                }
            }
            taken.push(list);
        }
        if let (Positions::Affine { offset, strides }, Some(affine)) =
            (&self.at, affine.into_iter().collect::<Option<Vec<_>>>())
        {
            let mut next = (*offset, vec![]);
            for ((start, step), stride) in affine.into_iter().zip(strides) {
                next.0 += start as i64 * stride;
                next.1.extend(step.map(|step| step as i64 * stride));
            }
            let (offset, strides) = next;
            return Ok(View {
                shape: kept,
                at: Positions::Affine { offset, strides },
            });
        }
        let drops: Vec<bool> = dims.iter().map(|d| matches!(d, DimIndex::At(_))).collect();
        self.gathered(kept, |to| {
            let mut to = to.iter();
            let picked = taken.iter().zip(&drops).map(|(list, dropped)| match dropped {
                true => list[0],
                false => list[*to.next().expect("an index for each dimension") as usize],
            });
            picked.collect()
        })
    }
}
