"""`%gpushare`: how this kernel shares its GPU, and what its user may change about that.

One syntax everywhere: `%gpushare SUBCOMMAND key=value …`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .client_api import QUOTA_KEYS, join_words, parse_changes
from .display import result_messages
from .errors import GpuShareError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .client_api import ClientApi

SUBCOMMANDS = {
    "status": "how this kernel and its device are doing (also without a sub-command)",
    "quota": "show this kernel's quota, or change it: %gpushare quota memory=8GiB share=0.5",
    "hold": "keep the GPU between cells for a while, working or not: %gpushare hold 5min; 0: no longer",
    "release": "give up the rest of this kernel's turn, and its hold",
    "evict": "move this kernel's memory off the GPU; it comes back with the next turn",
    "suspend": "have no more turns and move this kernel's memory off the GPU, until it is resumed",
    "resume": "take part again after a suspend",
    "history": "a plot of this kernel's turns and waits of the last minutes",
    "help": "this text",
}

_HELP_WORDS = ("--help", "-h", "?")  # as well


class GpuShareMagics:
    """The `%gpushare` line magic of one kernel."""

    def __init__(self, calls: ClientApi) -> None:
        self._calls = calls

    def run(self, line: str) -> Any:
        """Return what to display: text, or an object with `_repr_html_`. Raises GpuShareError."""
        line = join_words(line)
        words = line.split()
        name = words[0] if words else "status"
        if name.startswith("hold="):
            if line.strip() == "hold=":
                raise UsageError("'hold=' is not of the form key=value, for example hold=5min")
            return self._hold(line.strip()[len("hold=") :])
        if "=" in name:
            return self._quota(line)
        if name in _HELP_WORDS:
            name = "help"
        if name not in SUBCOMMANDS:
            raise UsageError(_unknown_subcommand(name))
        if name == "quota":
            return self._quota(line.split(None, 1)[1] if len(words) > 1 else "")
        if name == "hold":
            return self._hold(" ".join(words[1:]))
        if len(words) > 1:
            surplus = " ".join(words[1:])
            raise UsageError(f"%gpushare {name} takes no arguments, but {surplus!r} was given")
        whats: dict[str, Callable[[], Any]] = {
            "status": self._calls.status,
            "release": lambda: result_messages.released(self._calls.release()),
            "evict": lambda: result_messages.evicted(self._calls.evict()),
            "suspend": self._suspend,
            "resume": lambda: result_messages.resumed(self._calls.resume()),
            "history": self._calls.history,
            "help": help_text,
        }
        return whats[name]()

    def _quota(self, text: str) -> str:
        changes = parse_changes(text)
        return result_messages.quota(self._calls.quota(changes), bool(changes))

    def _hold(self, time: str) -> str:
        return result_messages.hold_changed(self._calls.hold(time or None), "; %gpushare release ends that")

    def _suspend(self) -> str:
        resume = f"%gpushare resume, or in a terminal: jupyter gpushare resume {self._calls.client}"
        return result_messages.suspended(self._calls.suspend(), resume)[:-1]  # a full stop would look like the id's


def help_text() -> str:
    """What `%gpushare help` says."""
    lines = ["%gpushare shows and changes how this kernel shares its GPU with others.", ""]
    lines += [f"  %gpushare {name:<8} {text}" for name, text in SUBCOMMANDS.items()]
    lines += ["", "%gpushare key=value … changes the quota. As the first line of a cell, %%gpushare key=value …"]
    lines += ["changes it for that cell only. Keys:", ""]
    lines += [f"  {key:<9} {text}" for key, text in QUOTA_KEYS.items()]
    return "\n".join(lines)


def register(shell: Any, calls: ClientApi) -> None:
    """Make `%gpushare` known to IPython."""
    from IPython.display import display

    magic = GpuShareMagics(calls)

    def gpushare(line: str) -> None:
        with usage_errors():
            shown = magic.run(line)
            if isinstance(shown, str):
                print(shown)
            else:
                display(shown)  # type: ignore[no-untyped-call]

    gpushare.__doc__ = help_text()
    shell.register_magic_function(gpushare, "line", "gpushare")


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turns our errors into IPython's UsageError, which is shown without a traceback."""
    from IPython.core.error import UsageError as IPythonUsageError

    try:
        yield
    except GpuShareError as error:
        raise IPythonUsageError(str(error)) from None


def _unknown_subcommand(name: str) -> str:
    import difflib  # only now: it would slow down every start of a kernel

    close = difflib.get_close_matches(name, SUBCOMMANDS, 1)
    meant = f" (did you mean {close[0]!r}?)" if close else ""
    if name in QUOTA_KEYS:
        meant = f" (a quota needs a value: {name}=…)"
    keys = ", ".join(f"{key}=" for key in QUOTA_KEYS)
    return f"unknown sub-command {name!r}{meant}: allowed are {', '.join(SUBCOMMANDS)}, or a quota: {keys}"
