"""Builder of the agent rule with a mutant."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jupyter_gpushare.agent import rule

from .compile_cache import cached

SHIM = Path(__file__).resolve().parent.parent.parent / "native" / "shim"
_AGENT = ("agent_step.c", "turn_lock.c", "agent_step.h", "turn_lock.h")
SOURCES = [*(SHIM / "agent" / name for name in _AGENT), SHIM / "base" / "page.h"]
FLAGS = ("-std=gnu11", f"-I{SHIM}", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")


@cache
def build_mutant(mutant: int) -> Any:
    """Return the functions of the rule, built with the mutant of this number."""
    flags = [*FLAGS, f"-DAGENT_MUTANT={mutant}", *map(str, SOURCES[:2])]
    return rule.load(cached(f"rule-{mutant}.so", SOURCES, lambda out: [["cc", *flags, "-o", str(out)]]))
