"""Decodes descriptors with the schema alone, and prints them for people."""

from __future__ import annotations

import struct
from typing import Any

from smalt._messages.schema import ENUMS, MESSAGES

_BY_NUMBER = {
    kind: {number: (name, text) for name, (number, text) in fields.items()} for kind, fields in MESSAGES.items()
}


class Malformed(Exception):
    """Bytes that are not a message of the schema."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def decode(kind: str, data: bytes) -> dict[str, Any]:
    """A message as a dict; repeated fields are lists, enums names, unset fields are left out."""
    out: dict[str, Any] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if number not in _BY_NUMBER[kind]:
            raise Malformed(f"{kind} has no field {number}")
        name, text = _BY_NUMBER[kind][number]
        label, _, scalar = text.rpartition(" ")
        if wire == 2:
            size, at = _varint(data, at)
            body = data[at : at + size]
            at += size
            if len(body) != size:
                raise Malformed(f"{kind}.{name}: truncated")
            if scalar in MESSAGES:
                value: Any = decode(scalar, body)
            elif scalar == "string":
                value = body.decode()
            elif scalar == "bytes":
                value = body
            else:  # packed
                values, i = [], 0
                while i < len(body):
                    v, i = _varint(body, i)
                    values.append(_scalar(scalar, v))
                out.setdefault(name, []).extend(values)
                continue
        elif wire == 1:
            (value,) = struct.unpack("<d", data[at : at + 8])
            at += 8
        elif wire == 0:
            raw, at = _varint(data, at)
            value = _scalar(scalar, raw)
        else:
            raise Malformed(f"{kind}.{name}: wire type {wire}")
        if label == "repeated":
            out.setdefault(name, []).append(value)
        else:
            out[name] = value
    return out


def _scalar(kind: str, raw: int) -> Any:
    if kind in ENUMS:
        for member, number in ENUMS[kind].items():
            if number == raw:
                return member
        raise Malformed(f"{kind} has no member {raw}")
    if kind == "bool":
        return bool(raw)
    if kind == "int64" and raw >= 1 << 63:
        return raw - (1 << 64)
    return raw


# ------------------------------------------------------------------------------------------ text


def show(data: bytes) -> str:
    """A descriptor as text, close to a jaxpr."""
    d = decode("KernelDescriptor", data)
    axes = {a["id"]: a.get("name", "") or f"axis{a['id']}" for k in ("grid", "cluster", "device_mesh") for a in d.get(k, [])}
    head = [f"kernel {d.get('name', '')}  threads={d.get('num_threads')}  thread_axis={d.get('thread_axis', 0)}"]
    for key in ("grid", "cluster", "device_mesh"):
        if key in d:
            head.append(f"  {key}: " + ", ".join(f"{axes[a['id']]}#{a['id']}={a.get('size', 0)}" for a in d[key]))
    head.append(f"  semantics: {d.get('semantics', {})}")
    head.append(f"  params: {d.get('compiler_params', {})}")
    for i, p in enumerate(d.get("params", []), 1):
        alias = f" -> {p['aliased_output']}" if "aliased_output" in p else ""
        head.append(f"  %{i}: {p['role']} {_type(p['type'])}{alias}")
    return "\n".join(head + _region(d["body"], "  ")) + "\n"


def _region(r: dict[str, Any], pad: str) -> list[str]:
    out = []
    if "params" in r:
        out.append(pad + "^(" + ", ".join(_value(v) for v in r["params"]) + ")")
    for op in r.get("ops", []):
        results = ", ".join(_value(v) for v in op.get("results", []))
        attrs = ", ".join(_attr(a) for a in op.get("attrs", []))
        operands = ", ".join(_operand(o) for o in op.get("operands", []))
        line = f"{pad}{op['id']:>3} {results + ' = ' if results else ''}{op['primitive']}"
        out.append(line + (f"[{attrs}]" if attrs else "") + (f" {operands}" if operands else ""))
        for i, inner in enumerate(op.get("regions", [])):
            out += [pad + f"    region {i}:", *_region(inner, pad + "      ")]
    if "results" in r:
        out.append(pad + "    -> " + ", ".join(_operand(o) for o in r["results"]))
    return out


def _value(v: dict[str, Any]) -> str:
    return f"%{v['id']}:{_type(v['type'])}"


def _array(t: dict[str, Any]) -> str:
    weak = "~" if t.get("weak") else ""
    return f"{weak}{t.get('dtype', '?').lower()}[{','.join(map(str, t.get('shape', [])))}]"


def _type(t: dict[str, Any]) -> str:
    if "array" in t:
        return _array(t["array"])
    r = t["ref"]
    shape = ",".join(map(str, r.get("shape", [])))
    for key in ("barrier", "cluster_barrier", "semaphore"):
        if key in r:
            return f"{r['space'].lower()}<{key}{r[key]}[{shape}]>"
    extra = " acc" if r.get("accumulator") else ""
    extra += f" {_layout(r['tmem_layout'])}" if "tmem_layout" in r else ""
    return f"{r['space'].lower()}<{r['dtype'].lower()}[{shape}]{extra}>"


def _operand(o: dict[str, Any]) -> str:
    if "value" in o:
        return f"%{o['value']}"
    if "literal" in o:
        return _literal(o["literal"])
    if "ref" in o:
        return f"%{o['ref']['value']}" + "".join(_transform(t) for t in o["ref"].get("transforms", []))
    if "absent" in o:
        return "_"
    if "list" in o:
        return "(" + ", ".join(_operand(i) for i in o["list"].get("operands", [])) + ")"
    return f"device{o['device']}"


_FORMATS = {"I32": "<i", "F32": "<f", "BOOL": "<?", "I64": "<q", "F64": "<d", "U32": "<I", "I8": "<b", "U8": "<B", "F16": "<e"}


def _literal(x: dict[str, Any]) -> str:
    t = x["type"]
    if not t.get("shape") and t.get("dtype") in _FORMATS:
        return f"{struct.unpack(_FORMATS[t['dtype']], x.get('data', b''))[0]}:{_array(t)}"
    return f"{x.get('data', b'').hex()[:32]}:{_array(t)}"


def _transform(t: dict[str, Any]) -> str:
    ((kind, body),) = t.items()
    if kind == "index":
        return "[" + ",".join(_dim(d) for d in body.get("dims", [])) + "]"
    if kind == "untile":
        return f".untile{body['tiling']}"
    if kind == "unswizzle":
        return f".unswizzle({body['bytes']})"
    return f".{kind}{body}"


def _dim(d: dict[str, Any]) -> str:
    if "slice" not in d:
        ((kind, operand),) = d.items()
        return ("" if kind == "at" else "gather ") + _operand(operand)
    s = d["slice"]
    start = _operand(s["dynamic_start"]) if "dynamic_start" in s else str(s["static_start"])
    size = _operand(s["dynamic_size"]) if "dynamic_size" in s else str(s["static_size"])
    stride = f":{s['stride']}" if s.get("stride", 1) != 1 else ""
    return f"{start}+{size}{stride}"


def _layout(x: dict[str, Any]) -> str:
    return x.get("name") or next((k for k in ("tiled", "strided", "splat") if k in x), "?")


def _attr(a: dict[str, Any]) -> str:
    (value,) = (v for k, v in a.items() if k != "name")
    key = next(k for k in a if k != "name")
    if key == "layout":
        value = _layout(value)
    elif key == "ints":
        value = value.get("values", [])
    elif key == "axes":
        value = "axes" + str(value.get("ids", []))
    elif key == "attrs":
        value = "{" + ", ".join(_attr(i) for i in value.get("attrs", [])) + "}"
    elif key == "transforms":
        lists = [t.get("transforms", []) for t in value.get("lists", [])]
        value = "[" + "; ".join("".join(_transform(t) for t in chain) for chain in lists) + "]"
    return f"{a['name']}={value}"
