"""Generator of random lines from the declarations of the messages, valid and invalid.

The generator covers each message to the coordinator in `wire/messages/` without a change here. All choices come from
one `Random`, so that a seed repeats them and hypothesis can shrink a failing sequence.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.settings.table import LIVE
from jupyter_gpushare.wire import messages

Kind = type[msgspec.Struct]
KINDS: tuple[Kind, ...] = typing.get_args(messages.Incoming)
_TYPE_INFO = {kind: typing.cast(inspect.StructType, inspect.type_info(kind)) for kind in KINDS}

# Texts with a meaning somewhere in the coordinator, which random letters would never hit.
_TEXTS = [
    *("", "share=0.5", "memory=8GiB share=10%", "memory=0.5", "memory=1e400", "service=offline", "class=online"),
    *("affinity=pair", "share=", "=", "'", "8GiB", "50%", "none", "1h", "0", "-1", "9" * 400, "nan", "inf", "auto"),
    *("\x1b[31m", "\u202e", "a\nb", "\ud7ff\ue000", "x" * 1024, "x" * 1025, "../../etc/passwd", "fcfs", "packed"),
]
_KEYS = [*LIVE, *GpuShare.class_trait_names(), "share", "limit", "memory", "resident", "service", "class", "x", ""]
_NUMBERS = [
    0,
    1,
    -1,
    2,
    63,
    64,
    65,
    127,
    1 << 16,
    (1 << 29) - 1,
    1 << 29,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
]
_NUMBERS += [(1 << 50) + 1, (1 << 53), (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30]
_FLOATS = [0.0, -0.0, 1.0, 0.5, 1e-9, 1e308, -1e308, 5e-324, 0.1, 300.0, 1e18]


class MessageGenerator:
    """Generator of messages. `clients`, `tokens` and `devices` are existing values that an attacker might guess."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.clients = ["unknown"]
        self.tokens = [""]
        self.devices = ["GPU-made-up"]
        self._made: dict[type, Callable[[Any], Any]] = {
            inspect.IntType: self._integer,
            inspect.FloatType: lambda declared: self.random.choice(_FLOATS),
            inspect.BoolType: lambda declared: self.random.random() < 0.5,
            inspect.NoneType: lambda declared: None,
            inspect.StrType: self._text,
            inspect.LiteralType: lambda declared: self.random.choice(declared.values),
            inspect.UnionType: lambda declared: self._value(self.random.choice(declared.types)),
            inspect.ListType: lambda declared: [self._value(declared.item_type) for _ in range(self._small_count())],
            inspect.DictType: self._dictionary,
            inspect.StructType: self._struct,
        }

    def line(self, kind: Kind) -> bytes:
        """Return a line without its end: a valid message of a kind, an invalid one, random bytes or a too long line."""
        how = self.random.random()
        if how < 0.6:
            return self.message(kind)
        if how < 0.75:
            return self._corrupted(self.message(kind))
        if how < 0.97:
            return self._encoded(self._with_wrong_fields(kind))
        if how < 0.999:
            return self.random.randbytes(self.random.randrange(200))
        return self._too_long(kind)

    def message(self, kind: Kind, **fields: Any) -> bytes:
        """Return a valid message of a kind."""
        return self._encoded(self._struct(_TYPE_INFO[kind]) | fields)

    def _encoded(self, message: dict[str, Any]) -> bytes:
        return json.dumps(message, ensure_ascii=self.random.random() < 0.5).encode(errors="surrogatepass")

    # --- valid values

    def _value(self, declared: Any) -> Any:
        if isinstance(declared, inspect.Metadata):
            return self._value(declared.type)
        make = self._made.get(type(declared))
        return make(declared) if make else self.anything()

    def _small_count(self) -> int:
        return self.random.choice((0, 1, 1, 1, 2, 3, 64))

    def _integer(self, declared: inspect.IntType) -> int:
        lowest = declared.ge if declared.ge is not None else declared.gt + 1 if declared.gt is not None else -(1 << 70)
        highest = declared.le if declared.le is not None else declared.lt - 1 if declared.lt is not None else 1 << 70
        found = self.random.choice((lowest, highest, *_NUMBERS))
        return int(min(max(found, lowest), highest))

    def _text(self, declared: inspect.StrType) -> str:
        pool = self.random.choice((self.clients, self.clients, self.tokens, self.devices, _TEXTS))
        found = self.random.choice(pool)
        if declared.pattern and not re.search(declared.pattern, found):
            return self.random.choice(self.clients)
        return (found or "x" * (declared.min_length or 0))[: declared.max_length]

    def _dictionary(self, declared: inspect.DictType) -> dict[str, Any]:
        return {self.random.choice(_KEYS): self._value(declared.value_type) for _ in range(self.random.randrange(4))}

    def _struct(self, declared: inspect.StructType) -> dict[str, Any]:
        made = {} if declared.tag is None else {typing.cast(str, declared.tag_field): declared.tag}
        for field in declared.fields:
            if field.required or self.random.random() < 0.6:
                made[field.encode_name] = self._field(field)
        return made

    def _field(self, field: inspect.Field) -> Any:
        """Return a value, mostly an existing name, because messages with unknown names are refused at once."""
        known = {"client": self.clients, "token": self.tokens, "uuid": self.devices, "device": self.devices}
        if field.encode_name in known and self.random.random() < 0.8:
            return self.random.choice(known[field.encode_name])
        return self._value(field.type)

    # --- invalid values

    def anything(self, depth: int = 0) -> Any:
        """Return a random JSON value."""
        how = self.random.randrange(6 if depth > 3 else 8)
        if how == 0:
            return self.random.choice((None, True, False))
        if how == 1:
            return self.random.choice(_NUMBERS)
        if how == 2:
            return self.random.choice(_FLOATS)
        if how < 6:
            return self.random.choice((*_TEXTS, *self.clients))
        if how == 6:
            return [self.anything(depth + 1) for _ in range(self.random.randrange(3))]
        return {self.random.choice(_KEYS): self.anything(depth + 1) for _ in range(self.random.randrange(3))}

    def _with_wrong_fields(self, kind: Kind) -> dict[str, Any]:
        """Return a message with fields that are missing, additional or of a wrong type."""
        made = self._struct(_TYPE_INFO[kind])
        for _ in range(self.random.choice((1, 1, 2))):
            name = self.random.choice([*made, "id", "more"])
            if self.random.random() < 0.2:
                made.pop(name, None)
            else:
                made[name] = self.anything()
        return made

    def _corrupted(self, line: bytes) -> bytes:
        """Return the line with bytes changed, removed or repeated."""
        corrupted = bytearray(line)
        for _ in range(self.random.randrange(1, 4)):
            at = self.random.randrange(len(corrupted) + 1)
            how = self.random.randrange(4)
            if how == 0:
                corrupted[at : at + 1] = self.random.randbytes(1)
            elif how == 1:
                del corrupted[at : at + self.random.randrange(1, 20)]
            elif how == 2:
                corrupted[at:at] = corrupted[self.random.randrange(len(corrupted) + 1) :][:20]
            else:
                del corrupted[at:]
        return bytes(corrupted)

    def _too_long(self, kind: Kind) -> bytes:
        """Return a line near the maximum length, or one with the deepest nesting that fits."""
        room = messages.MAX_LINE + self.random.choice((-100, -1, 0, 1, 2, 1000))
        if self.random.random() < 0.3:
            return b'{"type":"config","changes":{"a":' + b"[" * (room // 2) + b"]" * (room // 2) + b"}}"
        line = self._encoded(self._with_wrong_fields(kind))
        return line[:-1] + b',"padding":"' + b"x" * max(0, room - len(line) - 14) + b'"}'
