"""What is computed with arrays: functions, types, layouts, reductions, warps; random programs over arrays."""
