"""The writer's schema is the .proto's, and its bytes are protobuf's."""

from __future__ import annotations

import pathlib

import pytest
from smalt._messages import schema
from smalt._messages.wire import message, varint
from tests.corpus.decode import decode
from tests.unit import proto_schema


def test_schema_is_the_proto_file():
    messages, enums = proto_schema.parse(proto_schema.PROTO.read_text())
    assert schema.MESSAGES == messages
    assert schema.ENUMS == enums


def test_schema_module_is_generated():
    path = pathlib.Path(schema.__file__)
    wanted = proto_schema.render(*proto_schema.parse(proto_schema.PROTO.read_text()))
    assert path.read_text() == wanted, "run python -m tests.unit.proto_schema"


def test_field_numbers_are_unique():
    for name, fields in schema.MESSAGES.items():
        numbers = [number for number, _ in fields.values()]
        assert len(set(numbers)) == len(numbers), name


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**64 - 1, -1, -(2**63)])
def test_varint_round_trips(value):
    attr = message("Attr", name="n", int=value) if value < 2**63 else None
    if attr is not None:
        assert decode("Attr", attr) == {"name": "n", "int": value}
    assert varint(value)[-1] < 0x80


def test_defaults_are_left_out_except_in_a_oneof():
    assert message("ArrayType", dtype="DTYPE_UNSPECIFIED", shape=[], weak=False) == b""
    assert decode("Attr", message("Attr", name="a", bool=False)) == {"name": "a", "bool": False}
    assert decode("DimIndex", message("DimIndex", slice=message("Slice", static_start=0, static_size=0))) == {
        "slice": {"static_start": 0, "static_size": 0}
    }


def test_wrong_nesting_is_an_error():
    with pytest.raises(TypeError, match="Operand.literal: expected a Literal, got Absent"):
        message("Operand", literal=message("Absent"))
    with pytest.raises(TypeError, match="Op has no field"):
        message("Op", primitives="add")
    with pytest.raises(TypeError, match="Axis.size"):
        message("Axis", size=-1)


def test_bytes_are_protobuf():
    """The protobuf package, given the same schema, decodes and re-encodes to the same bytes."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields

    messages, enums = proto_schema.parse(proto_schema.PROTO.read_text())
    scalars = {
        "uint32": 13,
        "uint64": 4,
        "int64": 3,
        "bool": 8,
        "double": 1,
        "string": 9,
        "bytes": 12,
    }
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, members in enums.items():
        e = file.enum_type.add(name=name)
        for member, number in members.items():
            e.value.add(name=f"{name}_{member}", number=number)
    for name, fields in messages.items():
        m = file.message_type.add(name=name)
        oneof = any(kind.startswith("oneof ") for _, kind in fields.values())
        for field, (number, kind) in fields.items():
            label, _, scalar = kind.rpartition(" ")
            f = m.field.add(name=field, number=number, label=3 if label == "repeated" else 1)
            if scalar in scalars:
                f.type = scalars[scalar]
            else:
                f.type, f.type_name = (14 if scalar in enums else 11), f".t.{scalar}"
            if label == "oneof":
                # One oneof per field is enough to give it presence.
                f.oneof_index = len(m.oneof_decl)
                m.oneof_decl.add(name=f"one_{field}")
        assert oneof == bool(m.oneof_decl)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    from tests.corpus import golden

    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.KernelDescriptor"))
    for which in golden.versions():
        for key, data in golden.read(which).items():
            parsed = kind()
            parsed.ParseFromString(data)
            assert len(unknown_fields.UnknownFieldSet(parsed)) == 0
            assert parsed.SerializeToString(deterministic=True) == data, f"{which}/{key}"
