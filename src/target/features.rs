//! What machines have or have not, by parts.
//!
//! A machine is no number that is larger than another's: sm_100a has no `wgmma`, and sm_120a has what neither has. Whoever chooses asks for a
//! part, and each row of the instruction table says which it needs.
bitflags::bitflags! {
    /// Parts of a machine.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Features: u32 {
        /// Minima and maxima with the exclusive or of the signs.
        const XORSIGN = 1;
        /// Conversions and `mma` of fp8.
        const FP8 = 1 << 1;
        /// Sums, differences, products, comparisons and all conversions of bf16 (`fma`, minima, and conversions from and to f32 are everywhere).
        const BF16 = 1 << 2;
        /// Sums, minima and maxima of pairs of 16-bit integers.
        const PACKED_INTEGERS = 1 << 3;
        /// Conversions to tf32 other than to nearest, ties away.
        const TF32_ROUNDED = 1 << 4;
        /// `mma` of doubles in shapes of sixteen rows.
        const F64_PRODUCTS = 1 << 5;
        /// Atomics of bf16.
        const BF16_ATOMICS = 1 << 6;
        /// Atomics of adjacent floats.
        const VECTOR_ATOMICS = 1 << 7;
        /// `stmatrix`.
        const STMATRIX = 1 << 8;
        /// `elect`.
        const ELECT = 1 << 9;
        /// Clusters, their barriers, and shared memory of other blocks.
        const CLUSTERS = 1 << 10;
        /// Transactions of an mbarrier, waits that sleep, arrivals of several, and arrivals and waits that order nothing.
        const TRANSACTIONS = 1 << 11;
        /// Bulk copies, with or without a tensor map; the async proxy.
        const BULK_COPIES = 1 << 12;
        /// `griddepcontrol`.
        const DEPENDENT_LAUNCH = 1 << 13;
        /// Products of a warpgroup.
        const WGMMA = 1 << 14;
        /// `setmaxnreg`.
        const SET_MAX_REG = 1 << 15;
        /// `tensormap.replace`.
        const REPLACE_MAPS = 1 << 16;
        /// Tensor memory, and the products that accumulate in it (`tcgen05`).
        const TENSOR_MEMORY = 1 << 17;
        /// Such products of 8-bit integers.
        const TENSOR_INTEGERS = 1 << 18;
    }
}

impl Features {
    /// What sm_90 brought, and all since have.
    pub const HOPPER: Features = Features::XORSIGN
        .union(Features::FP8)
        .union(Features::BF16)
        .union(Features::PACKED_INTEGERS)
        .union(Features::TF32_ROUNDED)
        .union(Features::F64_PRODUCTS)
        .union(Features::BF16_ATOMICS)
        .union(Features::VECTOR_ATOMICS)
        .union(Features::STMATRIX)
        .union(Features::ELECT)
        .union(Features::CLUSTERS)
        .union(Features::TRANSACTIONS)
        .union(Features::BULK_COPIES)
        .union(Features::DEPENDENT_LAUNCH);

    /// How to do without, where kernels ask for them by name.
    pub fn without(self) -> &'static str {
        if self.intersects(Features::WGMMA | Features::TENSOR_MEMORY | Features::TENSOR_INTEGERS) {
            "multiply arrays (jnp.dot, plgpu.mma), which is compiled for every GPU"
        } else if self.contains(Features::CLUSTERS) {
            "launch without a cluster, and let each block copy what it needs"
        } else if self.contains(Features::DEPENDENT_LAUNCH) {
            "leave it out: kernels then run one behind the other"
        } else if self.contains(Features::TRANSACTIONS) {
            "copy with plgpu.copy_gmem_to_smem, which arrives by itself, and arrive with plgpu.barrier_arrive"
        } else {
            "write it with JAX's operations on arrays and references, which are compiled for every GPU"
        }
    }

    /// One part, as an error calls it.
    fn text(self) -> &'static str {
        match self {
            Features::XORSIGN => "minima and maxima with `.xorsign.abs`",
            Features::FP8 => "instructions on fp8",
            Features::BF16 => "bf16 arithmetic",
            Features::PACKED_INTEGERS => "arithmetic on pairs of 16-bit integers",
            Features::TF32_ROUNDED => "conversions to tf32 with this rounding",
            Features::F64_PRODUCTS => "products of doubles of this shape",
            Features::BF16_ATOMICS => "atomics of bf16",
            Features::VECTOR_ATOMICS => "atomics of vectors",
            Features::STMATRIX => "`stmatrix`",
            Features::ELECT => "`elect.sync`",
            Features::CLUSTERS => "clusters",
            Features::TRANSACTIONS => "transactions of barriers",
            Features::BULK_COPIES => "bulk copies (TMA)",
            Features::DEPENDENT_LAUNCH => "programmatic dependent launch",
            Features::WGMMA => "wgmma",
            Features::SET_MAX_REG => "`setmaxnreg`",
            Features::REPLACE_MAPS => "`tensormap.replace`",
            Features::TENSOR_MEMORY => "tensor memory (tcgen05)",
            Features::TENSOR_INTEGERS => "products of integers in tensor memory",
            _ => "other features",
        }
    }
}

impl std::fmt::Display for Features {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (_, part)) in self.iter_names().enumerate() {
            let between = if i == 0 { "" } else { ", " };
            write!(f, "{between}{}", part.text())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_name_of_its_own() {
        let names: Vec<&str> = Features::all().iter().map(Features::text).collect();
        assert!(!names.contains(&"other features"));
        assert_eq!(
            names.len(),
            names.iter().collect::<std::collections::HashSet<_>>().len()
        );
        assert_eq!((Features::WGMMA | Features::STMATRIX).to_string(), "`stmatrix`, wgmma");
    }
}
