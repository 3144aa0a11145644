"""Line magic `%gpushare`, which shows and changes how this kernel shares its GPU, and the completion of its lines.

The syntax is `%gpushare SUBCOMMAND key=value …`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .client_api import QUOTA_KEYS, SERVICE_CLASSES, WIRE_KEYS, join_words, parse_changes
from .display import result_messages
from .errors import GpuShareError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .client_api import ClientApi
    from .node_moves import NodeMoves

SUBCOMMANDS = {
    "status": "show the state of this kernel and its device (the default)",
    "why": "show what limits this kernel now",
    "quota": "show or change the quota of this kernel: %gpushare quota memory=8GiB share=0.5",
    "hold": "keep the GPU for some time, also between cells: %gpushare hold 5min; 0 ends the hold",
    "release": "give up the rest of the turn, and end the hold",
    "evict": "move the memory of this kernel off the GPU; the memory returns with the next turn",
    "move": "move this kernel to another GPU of the same type (%gpushare move 1) or, on a node, to another node",
    "suspend": "take no turns and move the memory of this kernel off the GPU, until %gpushare resume",
    "resume": "take turns again after %gpushare suspend",
    "history": "plot the turns and waits of this kernel in the last minutes",
    "help": "show this text",
}

_HELP_WORDS = ("--help", "-h", "?")  # other words for `help`


class GpuShareMagics:
    """Line magic `%gpushare` of one kernel."""

    def __init__(self, calls: ClientApi, node_moves: NodeMoves) -> None:
        self._calls = calls
        self._node_moves = node_moves

    def run(self, line: str) -> Any:
        """Execute a line, and return a text or an object with `_repr_html_` for display. Raise GpuShareError."""
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
        if name == "move":
            return self._move(" ".join(words[1:]))
        if len(words) > 1:
            surplus = " ".join(words[1:])
            raise UsageError(f"%gpushare {name} takes no arguments: remove {surplus!r}")
        actions: dict[str, Callable[[], Any]] = {
            "status": self._calls.status,
            "why": self._why,
            "release": lambda: result_messages.released(self._calls.release()),
            "evict": lambda: result_messages.evicted(self._calls.evict()),
            "suspend": self._suspend,
            "resume": lambda: result_messages.resumed(self._calls.resume()),
            "history": self._calls.history,
            "help": help_text,
        }
        return actions[name]()

    def _why(self) -> Any:
        report = self._calls.status()
        return result_messages.limits(report.own, report.state) if report.own and not report.problem else report

    def _quota(self, text: str) -> str:
        changes = parse_changes(text)
        return result_messages.quota(self._calls.quota(changes), bool(changes))

    def _hold(self, time: str) -> str:
        return result_messages.hold_changed(self._calls.hold(time or None), "; %gpushare release ends the hold")

    def _move(self, device: str) -> str:
        device = device.strip("\"'")
        if not device:
            raise UsageError("%gpushare move needs a device, by its index, name or UUID: for example %gpushare move 1")
        if self._node_moves.is_node(device):
            self._node_moves.move(device)
        try:
            return result_messages.moved(self._calls.move(device))
        except KeyboardInterrupt:
            print(result_messages.MOVE_INTERRUPTED)
            raise
        except GpuShareError as error:
            if not self._node_moves.hint or self._is_device(device):
                raise
            raise UsageError(f"{error}{self._node_moves.hint}") from None

    def _is_device(self, word: str) -> bool:
        """Return whether a word is the index, the name or the UUID of a device."""
        devices = enumerate(self._calls.status().devices)
        return any(word in (str(index), one["name"], one["uuid"]) for index, one in devices)

    def _suspend(self) -> str:
        how = f"you run %gpushare resume, or in a terminal: jupyter gpushare resume {self._calls.client}"
        # Without the full stop, because it would seem to be part of the client id.
        return result_messages.suspended(self._calls.suspend(), how)[:-1]


def help_text() -> str:
    """Return the text of `%gpushare help`."""
    lines = ["%gpushare shows and changes how this kernel shares its GPU with other clients.", ""]
    lines += [f"  %gpushare {name:<8} {text}" for name, text in SUBCOMMANDS.items()]
    lines += ["", "%gpushare key=value … changes the quota. As the first line of a cell, %%gpushare key=value …"]
    lines += ["changes the quota for that cell only. Keys:", ""]
    lines += [f"  {key:<9} {text}" for key, text in QUOTA_KEYS.items()]
    return "\n".join(lines)


def register(shell: Any, calls: ClientApi, node_moves: NodeMoves) -> None:
    """Register `%gpushare` and its completion with IPython."""
    from IPython.display import display

    magic = GpuShareMagics(calls, node_moves)

    def gpushare(line: str) -> None:
        with usage_errors():
            shown = magic.run(line)
            if isinstance(shown, str):
                print(shown)
            else:
                display(shown)  # type: ignore[no-untyped-call]

    gpushare.__doc__ = help_text()
    shell.register_magic_function(gpushare, "line", "gpushare")
    _register_completion(shell)


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Replace errors of the package by IPython's UsageError, which IPython shows without a traceback."""
    from IPython.core.error import UsageError as IPythonUsageError

    try:
        yield
    except GpuShareError as error:
        raise IPythonUsageError(str(error)) from None


def _unknown_subcommand(name: str) -> str:
    import difflib  # here, because the import would slow down every start of a kernel

    close = difflib.get_close_matches(name, SUBCOMMANDS, 1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    if name in QUOTA_KEYS:
        hint = f" (a quota needs a value: {name}=…)"
    keys = ", ".join(f"{key}=" for key in QUOTA_KEYS)
    return f"unknown sub-command {name!r}{hint}: allowed are {', '.join(SUBCOMMANDS)}, or a quota: {keys}"


_VALUES = {"class": [*SERVICE_CLASSES], "service": [*SERVICE_CLASSES], "hold": ["1min", "5min", "0"]}


def complete(line: str) -> list[str]:
    """Return the completions of the last word of a line.

    The line begins with `%gpushare` or `%%gpushare` and ends at the cursor.
    """
    magic, *words = line.split()
    if line[-1:].isspace():
        words.append("")
    if not words:
        return []
    first, word = words[0], words[-1]
    key, equals, _ = word.partition("=")
    if len(words) == 2 and first == "hold" and magic == "%gpushare":
        possible = list(_VALUES["hold"])
    elif equals:
        possible = [f"{key}={value}" for value in _VALUES.get(key, [])]
    else:
        possible = []
        if magic == "%%gpushare" or len(words) == 1 or first == "quota" or "=" in first:
            used = {WIRE_KEYS.get(one.partition("=")[0], one.partition("=")[0]) for one in words[:-1]}
            possible = [f"{known}=" for known in QUOTA_KEYS if WIRE_KEYS.get(known, known) not in used]
        if magic == "%gpushare" and len(words) == 1:
            possible = [*SUBCOMMANDS, *possible]
    return [one for one in possible if one.startswith(word)]


def _register_completion(shell: Any) -> None:
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        # Before IPython 8.6, a hook can only add completions, and a word begins after the last "=".
        for magic in ("%gpushare", "%%gpushare"):
            shell.set_hook("complete_command", lambda _, event: _values(complete(event.line)), str_key=magic)
        return

    @context_matcher()  # type: ignore[untyped-decorator]
    def gpushare_matcher(context: Any) -> dict[str, Any]:
        line = context.line_with_cursor[: context.cursor_position].lstrip()
        is_magic = line.startswith(("%gpushare ", "%%gpushare "))
        words = [SimpleCompletion(text=word) for word in complete(line)] if is_magic else []
        fragment = line.rsplit(None, 1)[-1] if is_magic and not line[-1].isspace() else ""
        return {"completions": words, "matched_fragment": fragment, "suppress": True}

    shell.Completer.custom_matchers.append(gpushare_matcher)


def _values(words: list[str]) -> list[str]:
    return [word.rpartition("=")[2] or word for word in words]
