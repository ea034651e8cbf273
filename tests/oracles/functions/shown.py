"""What kernels do beside computing with arrays, and the tests that show it: rows of `docs/SUPPORT.md`."""

from __future__ import annotations

B, I, G, M, W, P = (f"tests/suites/suite_{name}.py" for name in ("barriers", "inline_ptx", "inline_wgmma", "inline_mgpu", "warps", "profile"))
LC, BF, N = (f"tests/suites/suite_{name}.py" for name in ("launch_context", "barrier_forms", "narrow"))
PY = "tests/emulated/tools/test_"

#: What, the page that describes it, and `file: test` that show it.
ROWS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # Barriers
    ("named barriers, by numbers that are known or computed", "BARRIERS.md", (f"{I}: ping_pong_by_named_barriers", f"{B}: named_barriers_by_computed_numbers")),
    ("mbarriers: phases, arrivals and bytes that the author counts", "BARRIERS.md", (f"{B}: a_ring_by_computed_phases", f"{B}: random_rings")),
    ("waits and arrivals of single warps, of every thread, of one", "BARRIERS.md", (f"{B}: warps_arrive_and_wait_by_themselves", f"{B}: every_thread_arrives")),
    ("cluster barriers, over groups of axes, and of a leader", "BARRIERS.md", (f"{B}: cluster_barriers_over_groups_of_axes", f"{B}: barriers_of_a_leader")),
    ("warp-specialised matmuls, in turns, and with K shared by a cluster", "BARRIERS.md", (f"{B}: matmuls",)),
    # Order
    ("threads of a block: named barriers, mbarriers, relaxed mbarriers and fences", "BARRIERS.md", (f"{B}: within_a_block",)),
    ("blocks of a cluster: cluster barriers, mbarriers, relaxed ones and fences, `st.async`, `sync_restrict`", "BARRIERS.md", (f"{B}: pushes_within_a_cluster",)),
    ("blocks of a cluster that load from each other", "BARRIERS.md", (f"{B}: pulls_within_a_cluster",)),
    ("blocks of a grid by flags in device memory", "BARRIERS.md", (f"{B}: blocks_by_a_flag",)),
    ("threads to copies, copies and threads to tensor cores, and back", "BARRIERS.md", (f"{B}: threads_hand_on_to_a_copy", f"{B}: copies_and_threads_feed_a_product")),
    ("ordered loads, stores, atomics, compare-and-swap", "BARRIERS.md", (f"{B}: ordered_loads_and_stores_of_each_type", f"{B}: atomics", f"{B}: compare_and_swap")),
    ("stores and reductions into other blocks that signal a barrier", "BARRIERS.md", (f"{B}: async_store_smem", f"{B}: reductions_into_peers")),
    ("what the emulator's checker says, against PTX's memory model", "ARCHITECTURE.md", (f"{B}: litmus", f"{B}: words_of_shared_memory")),
    # Warps
    ("arrays, products, layouts of one warp", "WARPS.md", (f"{W}: arrays", f"{W}: products", f"{W}: a_layout_of_one_warp")),
    ("scratch, barriers and device memory of one warp", "WARPS.md", (f"{W}: scopes_follow_each_other_in_loops", f"{W}: barriers_of_scopes", f"{W}: device_memory_of_scopes")),
    ("producers and consumers in one warpgroup, semaphores", "WARPS.md", (f"{W}: a_producer_and_consumers_in_one_warpgroup", f"{W}: semaphores_order_arrays")),
    # Code of one's own
    ("inline PTX per lane, per warp, once", "inline-ptx.md", (f"{I}: types", f"{I}: lanes_and_shuffles", f"{B}: once")),
    ("loops and branches that lanes leave apart", "inline-ptx.md", (f"{I}: loops_that_lanes_leave_apart", f"{I}: random_programs")),
    ("carries, cache policies, unchecked texts", "inline-ptx.md", (f"{I}: random_programs_with_carries", f"{I}: cache_policies", f"{I}: a_text_that_nobody_reads")),
    ("`wgmma` and sparse `wgmma` in texts and functions", "inline-ptx.md", (f"{G}: products", f"{G}: sparse_products", f"{G}: functions")),
    ("`mma.sync` in every form, sparse ones too", "inline-ptx.md", (f"{I}: sparse_products",)),
    ("`plgpu.inline_mgpu`", "inline-ptx.md", (f"{M}: each_register_is_the_element_that_jax_says", f"{M}: loops_and_conditionals", f"{M}: tiled_memory")),
    ("the launch context of `inline_mgpu`, places of blocks", "inline-ptx.md", (f"{LC}: tiles_are_stored", f"{LC}: slices_of_device_memory", f"{LC}: places_of_blocks")),
    ("barriers of the cluster and mbarriers in every form", "inline-ptx.md", (f"{BF}: rendezvous_of_a_cluster", f"{BF}: waits_for_a_phase")),
    ("scalars narrower than a byte, transposed allocations", "API.md", (f"{N}: scalars_are_loaded_and_stored", f"{N}: transposed_allocations")),
    ("`plgpu.as_torch_kernel`", "API.md", ("tests/suites/suite_torch.py: trees_several_kernels_and_jit",)),
    # Instruments
    ("prints and checks", "PRINTING.md", (f"{PY}debug_print.py: what_is_printed", f"{PY}debug_print.py: debug_checks_check_where_they_are_enabled")),
    ("profiles of named scopes", "SEEING.md", (f"{P}: scopes_nest", f"{P}: a_persistent_matmul")),
    ("traces of the emulator", "SEEING.md", (f"{PY}trace.py: a_ring_of_slots",)),
    ("drawings of layouts and of shared memory", "SEEING.md", (f"{PY}draw_layout.py: named_layouts_are_mosaics", f"{PY}draw_smem.py: kernels_have_elements_where_they_are_drawn")),
    ("reports: what is moved, bank conflicts, relayouts, instructions, differences", "SEEING.md", (f"{PY}inspect.py: what_is_moved", f"{PY}inspect.py: bank_conflicts", f"{PY}inspect.py: differences")),
)


def lines() -> list[str]:
    """The rows as a table, each with its tests' names."""
    out = ["## Barriers, order, warps, code of one's own, instruments", ""]
    out += [ "On a GPU and in the emulator; traces and the checker are the emulator's, reports and drawings need neither.", "", "| what | page | tests |", "|---|---|---|"]
    for what, page, tests in ROWS:
        named = ", ".join(f"[{name}](../{file})" for file, name in (test.split(": ") for test in tests))
        out.append(f"| {what} | [{page}]({page}) | {named} |")
    return out
