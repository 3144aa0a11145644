"""Jupyter's configuration files with `c.GpuShare`: their faults, and the socket that they name for commands."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_path

NAME = "jupyter_gpushare_config"


class FaultCollector(logging.Filter):
    """Filter for the logger of an application, which keeps the faults of configuration files out of the log.

    traitlets only logs a file that it cannot read, and goes on without that file.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not isinstance(record.args, tuple) or not record.args:
            return True
        self.faults.append(describe_fault(str(record.args[0]), error))
        return False


def describe_fault(file: str, error: BaseException) -> str:
    """Return a message with the file, the line and the error."""
    if isinstance(error, (SyntaxError, json.JSONDecodeError)):
        line, reason = error.lineno, error.msg
    else:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        line, reason = (lines[-1] if lines else None), str(error)
    place = f"{file}, line {line}" if line else file
    return f"{place}: {type(error).__name__}: {reason}; no setting of this file is in force"


def place_of(name: str, files: Iterable[str]) -> str:
    """Return the file and the line that have the last word of the setting `name`, or "" if none of the files has it."""
    word = name.rpartition(".")[2]
    for file in files:
        for number, line in enumerate(Path(file).read_text(errors="replace").splitlines(), 1):
            if word in line:
                return f"{file}, line {number}"
    return ""


def describe_wrong_value(error: Exception, section: Mapping[str, Any], files: Iterable[str]) -> str:
    """Return a message with the error and the place of the wrong setting, which is in the section `c.GpuShare`."""
    name = next((word for word in re.findall(r"\w+", str(error)) if word in set(section)), "")
    place = place_of(name, files) if name else ""
    text = re.sub(r"^GpuShare\.", "c.GpuShare.", str(error))
    return f"{place}{': ' if place else ''}{text}; no setting of c.GpuShare in the files is in force"


def coordinator_socket() -> tuple[str, list[str]]:
    """Return the value of `c.GpuShare.coordinator` in the files, or "", and the faults of the files."""
    names = [f"{stem}.{suffix}" for stem in ("jupyter_config", NAME) for suffix in ("py", "json")]
    if not any(Path(folder, name).exists() for folder in jupyter_config_path() for name in names):
        return "", []
    from jupyter_core.application import JupyterApp  # takes longer to import than most commands run
    from traitlets import TraitError
    from traitlets.config import Config

    from .traits import GpuShare

    reader, collector = JupyterApp(config_file_name=NAME), FaultCollector()
    reader.log.addFilter(collector)
    try:
        reader.load_config_file()
    finally:
        reader.log.removeFilter(collector)
    section = reader.config.get("GpuShare", Config())
    try:
        return str(GpuShare(config=reader.config).coordinator), collector.faults
    except TraitError as error:
        return "", [*collector.faults, describe_wrong_value(error, section, reversed(reader.loaded_config_files))]
