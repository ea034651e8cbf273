"""Reads proto/descriptor.proto: the plain subset of proto3 that it uses."""

from __future__ import annotations

import re

from tests import ROOT

PROTO = ROOT / "proto" / "descriptor.proto"

_TOKEN = re.compile(r'"[^"]*"|[A-Za-z_][A-Za-z0-9_.]*|\d+|[{}=;]')

Messages = dict[str, dict[str, tuple[int, str]]]
Enums = dict[str, dict[str, int]]


def parse(text: str) -> tuple[Messages, Enums]:
    """Returns messages {name: {field: (number, kind)}} and enums {name: {member: number}}.

    A kind is the type's name, preceded by "repeated " or "oneof " where the field is one.
    """
    tokens = _TOKEN.findall(re.sub(r"//[^\n]*", "", text))
    messages: Messages = {}
    enums: Enums = {}
    at = 0

    def take(expected: str | None = None) -> str:
        nonlocal at
        token = tokens[at]
        at += 1
        if expected is not None and token != expected:
            raise ValueError(f"token {at}: expected {expected!r}, got {token!r}")
        return token

    def message() -> None:
        name = take()
        take("{")
        fields = messages.setdefault(name, {})
        while tokens[at] != "}":
            if tokens[at] == "enum":
                take()
                enum()
            elif tokens[at] == "oneof":
                take()
                take()
                take("{")
                while tokens[at] != "}":
                    field(fields, "oneof ")
                take("}")
            elif tokens[at] == "repeated":
                take()
                field(fields, "repeated ")
            else:
                field(fields, "")
        take("}")

    def field(fields: dict[str, tuple[int, str]], prefix: str) -> None:
        kind, name = take(), take()
        take("=")
        fields[name] = (int(take()), prefix + kind)
        take(";")

    def enum() -> None:
        name = take()
        take("{")
        members = enums.setdefault(name, {})
        while tokens[at] != "}":
            member = take()
            take("=")
            members[member] = int(take())
            take(";")
        take("}")

    while at < len(tokens):
        match take():
            case "syntax":
                take("=")
                take()
                take(";")
            case "package":
                take()
                take(";")
            case "message":
                message()
            case "enum":
                enum()
            case other:
                raise ValueError(f"unexpected {other!r}")
    return messages, enums


def render(messages: Messages, enums: Enums) -> str:
    """The text of jax_plugin/smalt/_messages/schema.py."""
    lines = [
            '"""The descriptor\'s schema as data. Written by `python -m tests.unit.proto_schema`; a test holds it to the .proto."""',
            "",
            "from __future__ import annotations",
            "",
            "# message -> field -> (number, kind); see wire.py",
            "MESSAGES: dict[str, dict[str, tuple[int, str]]] = {",
    ]
    for name, fields in messages.items():
        lines.append(f'    "{name}": {{')
        lines += [f'        "{field}": ({number}, "{kind}"),' for field, (number, kind) in fields.items()]
        lines.append("    },")
    lines += ["}", "", "ENUMS: dict[str, dict[str, int]] = {"]
    for name, members in enums.items():
        lines.append(f'    "{name}": {{')
        lines += [f'        "{member}": {number},' for member, number in members.items()]
        lines.append("    },")
    lines += ["}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    target = ROOT / "jax_plugin" / "smalt" / "_messages" / "schema.py"
    target.write_text(render(*parse(PROTO.read_text())))
