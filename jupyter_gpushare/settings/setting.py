"""Row of a table of settings: type, range, default and help, with the check of a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import units

AUTO = "auto"

_UNITS = ("seconds", "days")
_NUMBERS = ("number", *_UNITS, "count", "fraction", "size")
_SWITCH = {"true": True, "1": True, "false": False, "0": False}
_MIN_SIZE_BYTES = 1 << 20  # of sizes that users write, because 1 or 8 is nearly always a size without its unit
_MAX_SIZE_BYTES = (1 << 62) - 1
_JSON_TYPES = {
    "count": "integer",
    "switch": "boolean",
    "text": "string",
    "size": "string",
    "object": "object",
    "quota": "object",
    "list": "array",
}
_PART_OF_DEVICE = r"^([0-9]+(\.[0-9]*)?\s*%|[01]?\.[0-9]+)$"


@dataclass(frozen=True)
class Setting:
    """One setting or one field of a quota.

    `type` is number, seconds, days, count, fraction, size, switch, choice, text, quota, object or list.
    `more` continues `help` where there is room for details.
    `zero` is the meaning of 0 where 0 lies outside of the range, and `auto` permits the word "auto".
    `choices` maps each word to its meaning.
    `note` states what a live change leaves as it is.
    A `live` setting can be changed while a coordinator runs.
    A setting `per_device` can have another value on some devices.
    """

    name: str
    type: str
    default: Any
    help: str
    more: str = ""
    range: tuple[float, float] = (0.0, math.inf)
    zero: str = ""
    auto: bool = False
    choices: Mapping[str, str] = field(default_factory=dict)
    live: bool = False
    per_device: bool = False
    title: str = ""
    note: str = ""

    @property
    def allowed(self) -> str:
        """The description of the allowed values; empty for a type without a range."""
        if self.type == "fraction":
            return f"a fraction from {self.range[0]:g} to {self.range[1]:g}, for example 0.5 or 50%"
        if self.type == "size":
            return "a size from 1 MiB, for example 8GiB; a number without a unit counts bytes"
        if self.type == "switch":
            return "true and false"
        if self.type not in _NUMBERS:
            return ", ".join(self.choices)
        unit = f" {self.type}" if self.type in _UNITS else ""
        low, high = (f"{bound:.15g}" for bound in self.range)
        texts = [f"{'whole numbers from ' if self.type == 'count' else ''}{low} to {high}{unit}"]
        texts += [f"0 for {self.zero}"] if self.zero else []
        texts += [f"'{AUTO}'"] if self.auto else []
        return ", or ".join((", ".join(texts[:-1]), texts[-1])) if texts[1:] else texts[0]

    @property
    def full_help(self) -> str:
        """The help with the allowed values and the details, as `--help-all` shows it."""
        meanings = ", ".join(f"'{word}' ({meaning})" for word, meaning in self.choices.items())
        allowed = "" if self.type == "switch" else meanings or self.allowed
        return " ".join(
            [self.help, *([f"Allowed: {allowed}."] if allowed else []), *([self.more] if self.more else [])]
        )

    def read(self, value: Any) -> Any:
        """Return the checked value for `value`, which is a text that a user wrote or the value itself.

        Raises ValueError with a message that begins with the name and names the allowed values.
        """
        parse: Callable[[Any], Any] | None = {"fraction": units.parse_fraction, "size": units.parse_size}.get(self.type)
        if parse:
            out_of_range = ValueError(f"{self.name}={value} is out of range: allowed is {self.allowed}")
            try:
                value = parse(value)
            except ValueError as error:
                if str(value).strip().startswith("-"):
                    raise out_of_range from None
                raise ValueError(f"{self.name}: {error}") from None
            if self.type == "size" and value < _MIN_SIZE_BYTES:
                raise out_of_range
        elif isinstance(value, str) and self.type in (*_NUMBERS, "switch"):
            value = self._parsed(value)
        return self.check(value)

    def check(self, value: Any) -> Any:
        """Return `value` if it is allowed. Raises ValueError as `read` does."""
        if self.type == "choice":
            if not isinstance(value, str) or value not in self.choices:
                raise self._refusal(value, "is unknown")
        elif self.type == "switch":
            if not isinstance(value, bool):
                raise self._refusal(value, "is unknown")
        elif self.type in _NUMBERS and not (self.auto and value == AUTO):
            return self._checked_number(value)
        return value

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the setting's values, with the texts that a form shows."""
        about: dict[str, Any] = {"title": self.title or self.name.capitalize().replace("_", " ")}
        about |= {"description": self.help, "default": self.default, "readOnly": not self.live}
        if self.choices:
            titles = [{"const": word, "title": f"{word}: {meaning}"} for word, meaning in self.choices.items()]
            return about | {"type": "string", "oneOf": titles}
        if self.type in _NUMBERS:
            about["description"] = f"{self.help.rstrip('.')}: {self.allowed}."
            about |= {"errorMessage": f"Allowed: {self.allowed}.", "unit": self.type}
        if self.type == "size" and self.default is None:
            return about | {
                "type": ["integer", "string", "null"],
                "minimum": _MIN_SIZE_BYTES,
                "pattern": _PART_OF_DEVICE,
            }
        if self.type in _NUMBERS and self.type != "size":
            about |= {"minimum": 0 if self.zero else self.range[0], "maximum": self.range[1]}
        if self.auto:
            return about | {"type": ["number", "string"], "pattern": f"^{AUTO}$"}
        return about | {"type": _JSON_TYPES.get(self.type, "number")}

    def _parsed(self, word: str) -> Any:
        plain = word.strip().lower()
        if self.auto and plain == AUTO:
            return AUTO
        if self.zero and plain == self.zero:
            return 0
        if self.type == "switch":
            return _SWITCH.get(plain, word)
        try:
            return float(plain)
        except ValueError:
            if self.type != "seconds":
                return word
        try:
            return units.parse_duration(plain)
        except ValueError:
            return word

    def _checked_number(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refusal(value, "is not a number")
        whole = self.type in ("count", "size")
        if whole and isinstance(value, float) and not value.is_integer():
            raise self._refusal(value, "is not a whole number")
        lowest, highest = (1, _MAX_SIZE_BYTES) if self.type == "size" else self.range
        if not (lowest <= value <= highest or (value == 0 and self.zero)):
            raise self._refusal(value, "is out of range")
        return int(value) if whole else float(value)

    def _refusal(self, value: Any, problem: str) -> ValueError:
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        verb = "is" if self.type in ("fraction", "size") else "are"
        return ValueError(f"{self.name}={shown} {problem}: allowed {verb} {self.allowed}")


def schema(table: Iterable[Setting]) -> dict[str, Any]:
    """Return the JSON schema of an object with the settings of `table`."""
    return {"type": "object", "properties": {setting.name: setting.schema() for setting in table}}
