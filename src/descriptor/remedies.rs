//! What to write instead of what is not supported: one row a primitive. `tests/unit/test_remedies.py` holds every row to its word,
//! by a kernel that follows it.

/// A primitive, or a prefix of one (`random_*`), and what to do without it. The first row that fits counts.
const REMEDIES: &[(&str, &str)] = &[
    (
        "debug_callback",
        "call back outside of the kernel, in the jitted function around it, with what the kernel writes to an output",
    ),
    (
        "*callback",
        "call back outside of the kernel, in the jitted function around it",
    ),
    (
        "ffi_call",
        "call it outside of the kernel, in the jitted function around it",
    ),
    (
        "dma_start",
        "plgpu.copy_gmem_to_smem(src, dst, barrier) or plgpu.copy_smem_to_gmem(src, dst)",
    ),
    (
        "dma_wait",
        "plgpu.barrier_wait(barrier) for loads, plgpu.wait_smem_to_gmem(n) for stores",
    ),
    (
        "prng_seed",
        "jax.random.wrap_key_data(data), and jax.random.bits(key, shape)",
    ),
    (
        "prng_random_bits",
        "jax.random.bits(jax.random.wrap_key_data(data), shape)",
    ),
    ("roll", "jnp.roll(x, shift, axis)"),
    ("repeat", "jnp.repeat(x, n, axis), with a number for n"),
    ("bitcast", "x.view(dtype), or lax.bitcast_convert_type(x, dtype)"),
    (
        "fft",
        "compute it outside of the kernel, in the jitted function around it (jnp.fft)",
    ),
    (
        "psum",
        "exchange data between devices outside of the kernel, in the shard_map around it",
    ),
    (
        "all_gather",
        "exchange data between devices outside of the kernel, in the shard_map around it",
    ),
    (
        "all_to_all",
        "exchange data between devices outside of the kernel, in the shard_map around it",
    ),
    (
        "ppermute",
        "exchange data between devices outside of the kernel, in the shard_map around it",
    ),
    (
        "rng_bit_generator",
        "jax.random.bits(jax.random.wrap_key_data(data), shape), with threefry keys",
    ),
    ("async_copy_scales_to_tmem", SCALES),
    ("async_copy_sparse_metadata_to_tmem", SCALES),
    ("*cluster_cancel", PERSISTENT),
];

const SCALES: &str = "multiply dense operands without scales (plgpu.tcgen05_mma), and scale the sums";

const PERSISTENT: &str = "launch a block for each SM, jax.devices()[0].core_count of them, and let each take its tiles in turn: plgpu.nd_loop(grid, collective_axes=axis)";

const ANY: &str = "compute it outside of the kernel, in the jitted function around it, or write it with element-wise operations, \
                   reductions and loops";

/// What to do without a primitive.
pub fn instead_of(primitive: &str) -> &'static str {
    REMEDIES
        .iter()
        .find(|(pattern, _)| fits(pattern, primitive))
        .map_or(ANY, |(_, remedy)| remedy)
}

/// Stars stand for any text at either end.
fn fits(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_name_and_by_pattern() {
        assert!(instead_of("ffi_call").contains("jitted function around it"));
        assert!(instead_of("some_callback").contains("outside of the kernel"));
        assert_eq!(instead_of("async_copy_scales_to_tmem"), SCALES);
        assert_eq!(instead_of("svd"), ANY);
    }

    #[test]
    fn no_row_hides_another() {
        for (i, (pattern, _)) in REMEDIES.iter().enumerate() {
            let earlier = REMEDIES[..i].iter().find(|(p, _)| fits(p, pattern.trim_matches('*')));
            assert!(earlier.is_none(), "{pattern} is never reached: {earlier:?}");
        }
    }
}
