"""Public functions without a call in the table, and why."""

from __future__ import annotations

_GROUPS: dict[str, str] = {
    "computes on the host, from shapes, types or files; nothing of it reaches a kernel": """
        jnp.array_repr jnp.array_str jnp.broadcast_shapes jnp.can_cast jnp.einsum_path jnp.from_dlpack jnp.frombuffer jnp.fromfile
        jnp.fromiter jnp.frompyfunc jnp.fromstring jnp.get_printoptions jnp.iscomplexobj jnp.isdtype jnp.isrealobj jnp.isscalar
        jnp.issubdtype jnp.iterable jnp.load jnp.ndim jnp.printoptions jnp.promote_types jnp.result_type jnp.save jnp.savez
        jnp.set_printoptions jnp.shape jnp.size lax.broadcast_shapes lax.conv_dimension_numbers lax.conv_general_permutations
        lax.conv_general_shape_tuple lax.conv_shape_tuple lax.conv_transpose_shape_tuple lax.dtype lax.padtype_to_pads
        lax.reduce_window_shape_tuple lax.shape_as_value lax.ConvGeneralDilatedDimensionNumbers lax.DotDimensionNumbers
        lax.PrecisionLike nn.get_scaled_dot_general_config random.key_dtype random.key_impl""",
    "the size of its result depends on the data: no static shape, so JAX itself refuses it under jit": "jnp.roots jnp.trim_zeros",
    "a collective over devices: outside of the kernel, or with plgpu's remote references and semaphores": """
        lax.all_gather lax.all_to_all lax.pbroadcast lax.pcast lax.pmax lax.pmean lax.pmin lax.ppermute lax.precv lax.psend lax.pshuffle
        lax.psum lax.psum_scatter lax.psum_scatter_start lax.pswapaxes lax.ragged_all_to_all""",
    "an id of the grid or its size: the corpus and the programs have it (tests/corpus, tests/programs/memory)": "lax.axis_index lax.axis_size",
    "orders effects or places values for XLA; there is no XLA inside of a kernel": """
        lax.after_all lax.create_token lax.dce_sink lax.stage lax.composite lax.with_sharding_constraint""",
    "XLA's own generator, whose bits are not defined": "lax.rng_bit_generator lax.rng_uniform",
    "scaled products of tensor cores that Hopper does not have": "lax.scaled_dot nn.scaled_dot_general nn.scaled_matmul",
    "has a call under another name": "lax.ragged_dot_general lax.polynomial special.erfcinv random.Key",
}  # fmt: skip

REASONS = {name: reason for reason, names in _GROUPS.items() for name in names.split()}
