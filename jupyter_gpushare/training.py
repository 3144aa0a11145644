"""Training steps and progress of this program, for `import jupyter_gpushare as gs`.

The functions store numbers in the shim, whose agent copies them to the page once a second.
So a call sends no message. A call of `step` costs less than a microsecond, unless the turn ends at that step.
In a program without the shim, `step` does nothing, and `progress` only checks its arguments.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import operator
from typing import TYPE_CHECKING, Any, overload

from .kernel.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

MAX_COUNT = 1 << 53  # of parts, because JavaScript has no exact integers beyond
MAX_TEXT_BYTES = 64  # in UTF-8, as the page has room for
_TEXTS = (str, bytes, bytearray)


class Step:
    """Result of `step`, for use in a `with` statement."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        _end_step()


_STEP = Step()


def step() -> Step:
    """Count one training step, at its end, or as `with gs.step():` around it. The function never raises.

    A turn that is about to end ends at the next call, or at the end of the `with` statement.
    """
    _count_step()
    return _STEP


@overload
def progress(done: float, total: float | None = None, text: str | None = None) -> None: ...
@overload
def progress(done: Iterable[T], total: float | None = None, text: str | None = None) -> Iterator[T]: ...
def progress(done: Any, total: Any = None, text: str | None = None) -> Any:
    """Show that `done` of `total` parts of the work are done, or iterate over parts and show that.

    The numbers are whole, and None is an unknown total. `progress(loader)` yields the items of an iterable, and takes
    the total from its length. `text` is shown before the numbers and cut after 64 bytes. Raise UsageError.
    """
    shown_text = _encode_text(text)
    whole_total = None if total is None else _to_count("total", total)
    if not _is_number(done):
        return _iterate(_to_iterator(done), _length(done) if whole_total is None else whole_total, shown_text)
    whole_done = _to_count("done", done)
    if whole_total is not None and whole_done > whole_total:
        raise UsageError(f"done: {whole_done} is more than the total, {whole_total}")
    _show_progress(whole_done, whole_total or 0, shown_text)
    return None


def _iterate(items: Iterator[T], total: int | None, text: bytes) -> Iterator[T]:
    _show_progress(0, total or 0, text)
    for done, item in enumerate(items, 1):
        yield item
        # More items than expected must not end the loop of the program, so the total is unknown from there on.
        _show_progress(done, total if total and done <= total else 0, text)


def _is_number(value: Any) -> bool:
    """Return whether a value is one number; texts, and arrays with dimensions, are none.

    Arrays with one element may allow `float`. An array without dimensions is a number, although its type has a length.
    """
    dimensions = getattr(value, "ndim", None)
    has_length = dimensions > 0 if isinstance(dimensions, int) else hasattr(type(value), "__len__")
    if has_length or isinstance(value, _TEXTS):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return isinstance(value, int)
    return True


def _to_count(name: str, value: Any) -> int:
    """Return a whole number that is not negative. Raise UsageError."""
    is_truth_value = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))  # also NumPy's
    if not _is_number(value) or is_truth_value:
        raise UsageError(f"{name}: {value!r} is not a number")
    try:
        count = operator.index(value)
    except TypeError:
        number = float(value)
        if not math.isfinite(number) or number != int(number):
            raise UsageError(f"{name}: {value!r} is not a whole number") from None
        count = int(number)
    if count < 0:
        raise UsageError(f"{name}: {count if count > -MAX_COUNT else 'the number'} is negative")
    if count > MAX_COUNT:
        raise UsageError(f"{name}: the number is too large, at most 2**53 is allowed")
    return count


def _to_iterator(value: Any) -> Iterator[Any]:
    if not isinstance(value, _TEXTS):
        with contextlib.suppress(TypeError):
            return iter(value)
    raise UsageError(f"done: {value!r} is neither a number nor an iterable")


def _length(items: Any) -> int | None:
    """Return the length; None for items without one, or with an unknown length."""
    try:
        return len(items)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def _encode_text(text: str | None) -> bytes:
    """Return the text in UTF-8, cut at a character. Raise UsageError."""
    if not isinstance(text, (str, type(None))):
        raise UsageError(f"text: {text!r} is not a text")
    encoded = (text or "").replace("\0", " ").encode("utf-8", "replace")[:MAX_TEXT_BYTES]
    return encoded.decode("utf-8", "ignore").encode()


def _load() -> tuple[Callable[[], object], Callable[[], object], Callable[[int, int, bytes], object]]:
    """Return the functions of the shim, or functions that do nothing in a process without the shim."""
    shim = ctypes.PyDLL(None)  # keeps the interpreter lock, which is faster for calls as short as these
    try:
        count, end, show = shim.gpushare_step, shim.gpushare_step_end, shim.gpushare_progress
    except AttributeError:
        return (lambda: None), (lambda: None), (lambda done, total, text: None)
    count.restype = end.restype = show.restype = None
    count.argtypes, end.argtypes, show.argtypes = (), (), (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p)
    return count, end, show


_count_step, _end_step, _show_progress = _load()
