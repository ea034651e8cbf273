//! What a kernel needs at launch, in the driver's terms.
use crate::error::Error;
use arrayvec::ArrayVec;

/// `cuTensorMapEncodeTiled` takes 1 to 5 dimensions.
pub const MAX_TENSOR_RANK: usize = 5;

/// A launch, all but its pointers.
#[derive(Clone, Debug)]
pub struct Plan {
    pub entry: String,
    pub grid: [u32; 3],
    pub cluster: [u32; 3],
    pub block: u32,
    /// Dynamic shared memory in bytes.
    pub smem_bytes: u32,
    pub params: Vec<Param>,
    /// Tensor maps that go to device memory ([`super::encode_map`]), and whose addresses the kernel sets: `buffer` and `byte_offset`
    /// mean nothing.
    pub map_templates: Vec<TensorMap>,
    /// The kernel waits for its predecessor itself (`griddepcontrol.wait`), so that it may start early.
    pub programmatic_launch: bool,
}

/// A parameter of the entry.
#[derive(Clone, Debug)]
pub enum Param {
    /// The address of a buffer.
    Pointer { buffer: u32 },
    /// A tensor map over a buffer, by value.
    TensorMap(TensorMap),
}

/// The arguments of `cuTensorMapEncodeTiled`; no interleave, element strides 1, out-of-bounds elements read as zero.
#[derive(Clone, Debug)]
pub struct TensorMap {
    pub buffer: u32,
    /// Added to the buffer's address; the sum must be a multiple of 16.
    pub byte_offset: u64,
    /// A `CUtensorMapDataType`.
    pub data_type: u32,
    /// Elements, minor dimension first.
    pub dims: ArrayVec<u64, MAX_TENSOR_RANK>,
    /// Bytes between neighbours along dimensions 1 and up.
    pub strides: ArrayVec<u64, { MAX_TENSOR_RANK - 1 }>,
    pub box_dims: ArrayVec<u32, MAX_TENSOR_RANK>,
    /// A `CUtensorMapSwizzle`.
    pub swizzle: u32,
}

impl Plan {
    /// What no device could launch, described rather than reported as `CUDA_ERROR_INVALID_VALUE`.
    pub fn check(&self) -> Result<(), Error> {
        let ctas = self.cluster.iter().product::<u32>();
        for axis in 0..3 {
            let (grid, cluster) = (self.grid[axis], self.cluster[axis]);
            if grid == 0 || cluster == 0 || grid % cluster != 0 {
                return Err(Error::internal(format!(
                    "a grid of {:?} CTAs is no multiple of its cluster {:?}",
                    self.grid, self.cluster
                )));
            }
            let limit = if axis == 0 { i32::MAX as u32 } else { 65_535 };
            if grid > limit {
                return Err(Error::internal(format!(
                    "a grid of {:?} CTAs: axis {axis} ends at {limit}",
                    self.grid
                )));
            }
        }
        if ctas > 16 {
            return Err(Error::invalid(format!("a cluster of {ctas} CTAs")).expected("at most 16"));
        }
        if self.block == 0 || self.block > 1024 {
            return Err(Error::invalid(format!("a block of {} threads", self.block)).expected("1 to 1024"));
        }
        Ok(())
    }

    /// Buffers that the parameters name: one more than the highest.
    pub fn buffers(&self) -> usize {
        let highest = self.params.iter().map(|param| match param {
            Param::Pointer { buffer } => buffer + 1,
            Param::TensorMap(map) => map.buffer + 1,
        });
        highest.max().unwrap_or(0) as usize
    }
}
