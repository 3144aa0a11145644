"""Process that runs lines of Python which a test sends, such as `tests/native/cuda_client.py`."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from .polling import WAIT_SECONDS


class Interpreter:
    """Process for lines of Python: `run` waits for the result of a line, and `start` leaves that to `result`."""

    def __init__(self, argv: Sequence[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            argv, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()  # None: the process has ended
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr
        self._errors.extend(self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_answered(self) -> bool:
        """Return whether an answer is there that nothing has taken yet."""
        return not self._answers.empty()

    def start(self, code: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def raw(self, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        with contextlib.suppress(queue.Empty):
            if (answer := self._answers.get(timeout=seconds)) is not None:
                return answer
            self._answers.put(None)
        status = self.process.poll()
        raise AssertionError(f"no answer within {seconds} s (exit status {status}): {self._errors}")

    def result(self, seconds: float = WAIT_SECONDS) -> Any:
        answer = self.raw(seconds)
        assert "error" not in answer, answer
        return answer["value"]

    def run(self, code: str, seconds: float = WAIT_SECONDS) -> Any:
        self.start(code)
        return self.result(seconds)

    def collect(self) -> str:
        """Wait for the end of the process, and return its standard error."""
        self.process.wait(WAIT_SECONDS)
        for reader in self._readers:
            reader.join(WAIT_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        return "".join(self._errors)
