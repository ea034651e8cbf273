"""The descriptor's schema as data. Written by `python -m tests.unit.proto_schema`; a test holds it to the .proto."""

from __future__ import annotations

# message -> field -> (number, kind); see wire.py
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "KernelDescriptor": {
        "version": (1, "uint32"),
        "name": (2, "string"),
        "semantics": (3, "Semantics"),
        "grid": (4, "repeated Axis"),
        "cluster": (5, "repeated Axis"),
        "num_threads": (6, "uint32"),
        "thread_axis": (7, "uint32"),
        "device_mesh": (8, "repeated MeshAxis"),
        "params": (9, "repeated Param"),
        "body": (10, "Region"),
        "compiler_params": (11, "CompilerParams"),
    },
    "Semantics": {
        "false_predicate_suppresses_arrival": (1, "bool"),
        "tensor_core_barrier_tracks_copies": (2, "bool"),
        "leader_tracked_last_axis_only": (3, "bool"),
        "lowering": (4, "LoweringSemantics"),
    },
    "Axis": {
        "id": (1, "uint32"),
        "name": (2, "string"),
        "size": (3, "uint64"),
    },
    "MeshAxis": {
        "id": (1, "uint32"),
        "name": (2, "string"),
        "size": (3, "uint64"),
    },
    "CompilerParams": {
        "approx_math": (1, "bool"),
        "unsafe_no_auto_barriers": (2, "bool"),
        "reduction_scratch_bytes": (3, "uint64"),
        "skip_device_barrier": (4, "bool"),
        "is_multi_process": (5, "bool"),
        "fp_contract": (6, "FpContract"),
        "target": (7, "string"),
        "wait_timeout_ns": (8, "uint64"),
        "profile_space": (9, "uint64"),
        "profile_bounds_check": (10, "bool"),
        "precise_division": (11, "bool"),
        "profile_warps": (12, "bool"),
        "accumulate_products": (13, "bool"),
    },
    "Param": {
        "role": (1, "Role"),
        "type": (2, "Type"),
        "aliased_output": (3, "uint32"),
    },
    "Type": {
        "array": (1, "oneof ArrayType"),
        "ref": (2, "oneof RefType"),
    },
    "ArrayType": {
        "dtype": (1, "DType"),
        "shape": (2, "repeated uint64"),
        "weak": (3, "bool"),
        "key_impl": (4, "string"),
    },
    "RefType": {
        "space": (1, "Space"),
        "shape": (2, "repeated uint64"),
        "dtype": (3, "oneof DType"),
        "barrier": (4, "oneof BarrierType"),
        "cluster_barrier": (5, "oneof ClusterBarrierType"),
        "semaphore": (6, "oneof SemaphoreType"),
        "tmem_layout": (7, "Layout"),
        "tmem_collective": (8, "bool"),
        "accumulator": (9, "bool"),
    },
    "BarrierType": {
        "num_arrivals": (1, "uint64"),
        "orders_tensor_core": (2, "bool"),
    },
    "ClusterBarrierType": {
        "collective_axes": (1, "repeated Axes"),
        "num_arrivals": (2, "uint64"),
        "orders_tensor_core": (3, "bool"),
        "leader_tracked": (4, "bool"),
    },
    "SemaphoreType": {
        "kind": (1, "Kind"),
    },
    "Region": {
        "params": (1, "repeated Value"),
        "ops": (2, "repeated Op"),
        "results": (3, "repeated Operand"),
    },
    "Value": {
        "id": (1, "uint32"),
        "type": (2, "Type"),
    },
    "Op": {
        "id": (1, "uint32"),
        "primitive": (2, "string"),
        "operands": (3, "repeated Operand"),
        "results": (4, "repeated Value"),
        "attrs": (5, "repeated Attr"),
        "regions": (6, "repeated Region"),
    },
    "Operand": {
        "value": (1, "oneof uint32"),
        "literal": (2, "oneof Literal"),
        "ref": (3, "oneof RefUse"),
        "absent": (4, "oneof Absent"),
        "list": (5, "oneof OperandList"),
        "device": (6, "oneof DeviceId"),
    },
    "Absent": {
    },
    "OperandList": {
        "operands": (1, "repeated Operand"),
    },
    "Literal": {
        "type": (1, "ArrayType"),
        "data": (2, "bytes"),
    },
    "RefUse": {
        "value": (1, "uint32"),
        "transforms": (2, "repeated Transform"),
    },
    "Transform": {
        "extract_alias": (1, "oneof ExtractAlias"),
        "unswizzle": (2, "oneof Unswizzle"),
        "untile": (3, "oneof Untile"),
        "index": (4, "oneof Index"),
        "transpose": (5, "oneof Transpose"),
        "reshape": (6, "oneof Reshape"),
        "peer": (7, "oneof Peer"),
        "multicast": (8, "oneof Multicast"),
        "cluster": (9, "oneof Cluster"),
        "expand_leading_batch": (10, "oneof ExpandLeadingBatch"),
        "im2col": (11, "oneof Im2Col"),
        "bitcast": (12, "oneof Bitcast"),
        "tile": (13, "oneof Tile"),
        "swizzle": (14, "oneof Swizzle"),
        "identity": (15, "oneof Identity"),
        "collapse_leading_batch": (16, "oneof CollapseLeadingBatch"),
    },
    "ExtractAlias": {
        "dtype": (1, "DType"),
        "shape": (2, "repeated uint64"),
        "offset": (3, "uint64"),
        "group": (4, "uint32"),
        "tmem_layout": (5, "Layout"),
        "type": (6, "RefType"),
    },
    "Unswizzle": {
        "bytes": (1, "uint32"),
    },
    "Untile": {
        "tiling": (1, "repeated uint64"),
    },
    "Index": {
        "shape": (1, "repeated uint64"),
        "dims": (2, "repeated DimIndex"),
        "int_indexer_shape": (3, "repeated uint64"),
    },
    "DimIndex": {
        "at": (1, "oneof Operand"),
        "slice": (2, "oneof Slice"),
        "gather": (3, "oneof Operand"),
    },
    "Slice": {
        "static_start": (1, "oneof uint64"),
        "dynamic_start": (2, "oneof Operand"),
        "static_size": (3, "oneof uint64"),
        "dynamic_size": (4, "oneof Operand"),
        "stride": (5, "uint64"),
        "window": (6, "bool"),
    },
    "Transpose": {
        "permutation": (1, "repeated uint32"),
    },
    "Reshape": {
        "shape": (1, "repeated uint64"),
    },
    "Peer": {
        "type": (1, "DeviceIdType"),
        "device": (2, "DeviceId"),
    },
    "DeviceId": {
        "logical": (1, "oneof Operand"),
        "mesh": (2, "oneof DeviceIdList"),
        "axes": (3, "oneof DeviceIdDict"),
    },
    "DeviceIdList": {
        "ids": (1, "repeated Operand"),
    },
    "DeviceIdDict": {
        "entries": (1, "repeated DeviceIdEntry"),
    },
    "DeviceIdEntry": {
        "axes": (1, "repeated uint32"),
        "id": (2, "Operand"),
    },
    "Multicast": {
        "axes": (1, "repeated uint32"),
    },
    "Cluster": {
        "axes": (1, "repeated uint32"),
        "indices": (2, "repeated Operand"),
    },
    "ExpandLeadingBatch": {
        "shape": (1, "repeated uint64"),
    },
    "Im2Col": {
        "window": (1, "repeated uint64"),
        "padding": (2, "repeated PaddingPair"),
    },
    "PaddingPair": {
        "lo": (1, "int64"),
        "hi": (2, "int64"),
    },
    "Bitcast": {
        "dtype": (1, "DType"),
    },
    "Tile": {
        "tiling": (1, "repeated uint64"),
    },
    "Swizzle": {
        "bytes": (1, "uint32"),
    },
    "Identity": {
    },
    "CollapseLeadingBatch": {
    },
    "Attr": {
        "name": (1, "string"),
        "int": (2, "oneof int64"),
        "bool": (3, "oneof bool"),
        "float": (4, "oneof double"),
        "text": (5, "oneof string"),
        "ints": (6, "oneof Ints"),
        "dtype": (7, "oneof DType"),
        "layout": (8, "oneof Layout"),
        "type": (9, "oneof Type"),
        "axes": (10, "oneof Axes"),
        "transforms": (11, "oneof TransformLists"),
        "literal": (12, "oneof Literal"),
        "none": (13, "oneof None"),
        "attrs": (14, "oneof Attrs"),
        "bytes": (15, "oneof bytes"),
    },
    "Ints": {
        "values": (1, "repeated int64"),
    },
    "Axes": {
        "ids": (1, "repeated uint32"),
    },
    "TransformLists": {
        "lists": (1, "repeated TransformList"),
    },
    "TransformList": {
        "transforms": (1, "repeated Transform"),
    },
    "None": {
    },
    "Attrs": {
        "attrs": (1, "repeated Attr"),
    },
    "Layout": {
        "name": (1, "string"),
        "tiled": (2, "oneof TiledLayout"),
        "strided": (3, "oneof StridedLayout"),
        "splat": (4, "oneof SplatLayout"),
        "named": (5, "oneof string"),
        "args": (6, "repeated Attr"),
    },
    "TiledLayout": {
        "tiling": (1, "repeated Ints"),
        "warp_dims": (2, "repeated LayoutDim"),
        "lane_dims": (3, "repeated LayoutDim"),
        "vector_dim": (4, "int64"),
    },
    "LayoutDim": {
        "dim": (1, "oneof int64"),
        "replicated": (2, "oneof uint64"),
    },
    "StridedLayout": {
        "shape": (1, "repeated uint64"),
        "vec": (2, "uint64"),
    },
    "SplatLayout": {
        "shape": (1, "repeated uint64"),
    },
    "DebugTable": {
        "strings": (1, "repeated string"),
        "frames": (2, "repeated Frame"),
        "op_frames": (3, "repeated FrameChain"),
        "profile_dir": (4, "string"),
        "ref_names": (5, "repeated RefName"),
    },
    "RefName": {
        "value": (1, "uint32"),
        "name": (2, "uint32"),
    },
    "Frame": {
        "file": (1, "uint32"),
        "function": (2, "uint32"),
        "line": (3, "uint32"),
        "column": (4, "uint32"),
    },
    "FrameChain": {
        "frames": (1, "repeated uint32"),
    },
}

ENUMS: dict[str, dict[str, int]] = {
    "LoweringSemantics": {
        "LOWERING_SEMANTICS_UNSPECIFIED": 0,
        "LANE": 1,
        "WARPGROUP": 2,
    },
    "FpContract": {
        "FP_CONTRACT_UNSPECIFIED": 0,
        "FP_CONTRACT_ON": 1,
        "FP_CONTRACT_OFF": 2,
    },
    "Role": {
        "ROLE_UNSPECIFIED": 0,
        "INPUT": 1,
        "OUTPUT": 2,
        "SCALAR": 3,
        "MUTABLE": 4,
    },
    "Space": {
        "SPACE_UNSPECIFIED": 0,
        "GMEM": 1,
        "SMEM": 2,
        "TMEM": 3,
        "REGS": 4,
    },
    "Kind": {
        "REGULAR": 0,
        "BARRIER": 1,
        "DMA": 2,
    },
    "DType": {
        "DTYPE_UNSPECIFIED": 0,
        "BOOL": 1,
        "I2": 2,
        "I4": 3,
        "I8": 4,
        "I16": 5,
        "I32": 6,
        "I64": 7,
        "U2": 8,
        "U4": 9,
        "U8": 10,
        "U16": 11,
        "U32": 12,
        "U64": 13,
        "F16": 14,
        "BF16": 15,
        "F32": 16,
        "F64": 17,
        "F8E4M3FN": 18,
        "F8E5M2": 19,
        "F8E8M0FNU": 20,
        "F4E2M1FN": 21,
        "F8E4M3B11FNUZ": 22,
        "F8E4M3FNUZ": 23,
        "F8E5M2FNUZ": 24,
        "F8E3M4": 25,
        "F8E4M3": 26,
        "F6E2M3FN": 27,
        "F6E3M2FN": 28,
        "KEY": 29,
        "C64": 30,
        "C128": 31,
        "FLOAT0": 32,
    },
    "DeviceIdType": {
        "DEVICE_ID_TYPE_UNSPECIFIED": 0,
        "LOGICAL": 1,
        "MESH": 2,
    },
}
