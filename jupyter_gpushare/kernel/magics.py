"""`%gpushare`: how this kernel shares its GPU, and what its user may change about that.

One syntax everywhere: `%gpushare SUBCOMMAND key=value …`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .connection import Refused, Unreachable
from .report import Report, quota_line, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from .session import Session

QUOTA_KEYS = {
    "share": "guaranteed fraction of the device's time, for example share=0.5",
    "limit": "largest fraction of the device's time, for example limit=0.9",
    "memory": "device memory that this kernel may allocate, for example memory=8GiB",
    "resident": "device memory that it may keep on the device while others wait, for example resident=2GiB",
    "service": "service=online, or service=offline to let others go first",
}
_VALUES = {"service": ["online", "offline"]}
SUBCOMMANDS = {
    "status": "how this kernel and its device are doing (also without a sub-command)",
    "quota": "show this kernel's quota, or change it: %gpushare quota memory=8GiB share=0.5 limit=0.9",
    "hold": "keep the GPU between cells for a while, working or not: %gpushare hold 5min; 0: no longer",
    "release": "give up the rest of this kernel's turn",
    "suspend": "have no more turns and move this kernel's memory off the GPU, until it is resumed",
    "resume": "take part again after a suspend",
    "help": "this text",
}


class Mistake(Exception):
    """What the user typed can't be done; the message names what is allowed."""


class Magic:
    """The `%gpushare` line magic of one kernel."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, line: str) -> Any:
        """Return what to display, a `Report` or text. Raises Mistake, Refused, Unreachable."""
        words = line.split()
        name = words[0] if words else "status"
        if name not in SUBCOMMANDS:
            hint = f" (to change the quota: %gpushare quota {line.strip()})" if "=" in name else ""
            allowed = ", ".join(SUBCOMMANDS)
            raise Mistake(f"unknown sub-command {name!r}: allowed are {allowed}{hint}")
        if name == "quota":
            return self._quota(words[1:])
        if name == "hold":
            return self._hold(" ".join(words[1:]))
        if len(words) > 1:
            surplus = " ".join(words[1:])
            raise Mistake(f"%gpushare {name} takes no arguments, but {surplus!r} was given")
        whats: dict[str, Callable[[], Any]] = {
            "status": self._status,
            "release": self._release,
            "suspend": self._suspend,
            "resume": self._resume,
            "help": help_text,
        }
        return whats[name]()

    def complete(self, line: str) -> list[str]:
        """What the last word of `line` may become; `line` is `%gpushare` and words up to the cursor."""
        words = line.split()[1:]
        if line[-1:].isspace():
            words.append("")
        key, equals, _ = words[-1].partition("=")
        used = {word.partition("=")[0] for word in words[1:-1]}
        if len(words) == 1:
            possible = list(SUBCOMMANDS)
        elif words[0] != "quota":
            possible = []
        elif equals:
            possible = [key + "=" + value for value in _VALUES.get(key, [])]
        else:
            possible = [known + "=" for known in QUOTA_KEYS if known not in used]
        return [word for word in possible if word.startswith(words[-1])]

    def _status(self) -> Any:
        problem = self._session.problem()
        try:
            snapshot = self._session.ask({"type": "status"})
        except Unreachable as error:
            return Report(None, self._session.client, problem or str(error))
        return Report(snapshot, self._session.client, problem)

    def _quota(self, words: list[str]) -> str:
        changes = _changes(words)
        self._must_be_shared()
        quota = self._session.ask({"type": "quota", "client": self._session.client, "changes": changes})
        return ("Quota is now: " if changes else "Quota: ") + quota_line(quota)

    def _release(self) -> str:
        self._must_be_shared()
        result = self._session.ask({"type": "release", "client": self._session.client})
        if result.get("released"):
            return "The rest of this kernel's turn is given up."
        return "This kernel has no turn now, so there is nothing to give up."

    def _hold(self, time: str) -> str:
        self._must_be_shared()
        asked = {"seconds": time} if time else {}
        result = self._session.ask({"type": "hold", "client": self._session.client, **asked})
        if result["hold_seconds_left"] is None:
            return "This kernel holds the GPU no longer."
        left = seconds(result["hold_seconds_left"])
        if result["running"]:
            return f"This kernel keeps the GPU for {left}, working or not; %gpushare release ends that."
        return f"Once this kernel has the GPU it keeps it, up to {left} from now; %gpushare release ends that."

    def _suspend(self) -> str:
        self._must_be_shared()
        client = self._session.client
        self._session.ask({"type": "suspend", "client": client})
        return (
            "This kernel is suspended: its next GPU call waits until %gpushare resume, "
            f"or in a terminal: jupyter gpushare resume {client}"
        )

    def _resume(self) -> str:
        self._must_be_shared()
        changed = self._session.ask({"type": "resume", "client": self._session.client})["changed"]
        return "This kernel takes part again." if changed else "This kernel was not suspended."

    def _must_be_shared(self) -> None:
        if not self._session.client:
            reason = self._session.problem() or "it was not started by the provisioner, the launcher or 'run'"
            raise Mistake(f"this kernel isn't shared: {reason}")


def help_text() -> str:
    """What `%gpushare help` says."""
    lines = ["%gpushare shows and changes how this kernel shares its GPU with others.", ""]
    lines += [f"  %gpushare {name:<8} {text}" for name, text in SUBCOMMANDS.items()]
    lines += ["", "Keys of %gpushare quota:", ""]
    lines += [f"  {key:<9} {text}" for key, text in QUOTA_KEYS.items()]
    return "\n".join(lines)


def register(shell: Any, session: Session) -> None:
    """Make `%gpushare` known to IPython, with its completion."""
    from IPython.core.error import UsageError
    from IPython.display import display

    magic = Magic(session)

    def gpushare(line: str) -> None:
        try:
            shown = magic.run(line)
        except Mistake as error:
            problem = str(error)
        except Unreachable as error:
            problem = f"{error}; nothing was changed"
        except Refused as error:
            problem = str(error)
        else:
            if isinstance(shown, str):
                print(shown)
            else:
                display(shown)  # type: ignore[no-untyped-call]
            return
        raise UsageError(problem)  # which IPython shows without a traceback

    gpushare.__doc__ = help_text()
    shell.register_magic_function(gpushare, "line", "gpushare")
    _register_completion(shell, magic)


def _register_completion(shell: Any, magic: Magic) -> None:
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:  # IPython < 8.6: mixed with other completions, and only of what follows the last "="
        shell.set_hook("complete_command", lambda _, event: magic.complete(event.line), str_key="%gpushare")
        return

    @context_matcher()  # type: ignore[untyped-decorator]
    def gpushare_matcher(context: Any) -> dict[str, Any]:
        line = context.line_with_cursor[: context.cursor_position].lstrip()
        ours = line.startswith("%gpushare ")
        words = [SimpleCompletion(text=word) for word in magic.complete(line)] if ours else []
        fragment = line.rsplit(None, 1)[-1] if ours and not line[-1].isspace() else ""
        return {"completions": words, "matched_fragment": fragment, "suppress": True}

    shell.Completer.custom_matchers.append(gpushare_matcher)


def _changes(words: list[str]) -> dict[str, str]:
    changes: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if not key or not value:
            raise Mistake(f"{word!r} is not of the form key=value; keys are {', '.join(QUOTA_KEYS)}")
        if key not in QUOTA_KEYS:
            raise Mistake(f"unknown quota key {key!r}: allowed are {', '.join(QUOTA_KEYS)}")
        if key in changes:
            raise Mistake(f"{key!r} is given twice")
        changes[key] = value
    return changes
