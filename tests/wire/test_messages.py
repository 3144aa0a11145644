"""Tests of the decoding of messages: accepted and refused values, and ignored fields."""

from __future__ import annotations

import typing

import msgspec
import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import encode

decoder = msgspec.json.Decoder(messages.Incoming)


def test_unknown_fields_are_ignored() -> None:
    """A newer version may send more fields."""
    assert decoder.decode(b'{"type":"status","since":"2031"}') == messages.Status()
    hello = decoder.decode(b'{"type":"hello","client":"a","wire":99,"colour":{"deep":[1]}}')
    assert (hello.client, hello.wire) == ("a", 99)


def test_every_message_has_a_type_of_its_own() -> None:
    for direction in (messages.Incoming, messages.Outgoing):
        tags = [kind.__struct_config__.tag for kind in typing.get_args(direction)]
        assert len(set(tags)) == len(tags)
        assert all(tags)


@pytest.mark.parametrize("kind", typing.get_args(messages.Incoming), ids=lambda kind: kind.__struct_config__.tag)
def test_a_message_survives_the_wire(kind: type[msgspec.Struct]) -> None:
    values: dict[str, object] = {
        "client": "c-1.2:3@host", "token": "t", "seq": 5, "request": "m_1", "state": "end", "label": "β\n\x00☃",
        "device": "GPU-0", "session": "3f6e", "after": 7, "number": 3,
    }  # fmt: skip
    fields = {field.name: values[field.name] for field in msgspec.structs.fields(kind) if field.name in values}
    message = kind(**fields)
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decoder.decode(line) == message


@pytest.mark.parametrize("identity", ["", "a b", "a/b", "../a", "a\n", "a\x00", "x" * 129, 'a"'])
def test_identities_are_names(identity: str) -> None:
    """IDs become parts of file names and log lines."""
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.json.encode({"type": "release", "client": identity}))


@pytest.mark.parametrize(
    ("field", "value"), [("wire", 1.5), ("pid", "1"), ("label", "x" * 1025), ("devices", [{}] * 65)]
)
def test_values_have_bounds(field: str, value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.json.encode({"type": "hello", "client": "a", field: value}))
