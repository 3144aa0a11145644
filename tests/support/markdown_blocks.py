"""Reader of code blocks of the documents, so that tests run the commands that users read."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^ *```\w+\n(?P<text>.*?)^ *```$", re.S | re.M)


def block(document: str, title: str) -> str:
    """Return the block of `docs/DOCUMENT` that begins with the comment `# TITLE…`."""
    blocks = [textwrap.dedent(found["text"]) for found in _BLOCK.finditer((DOCS / document).read_text())]
    found = [text for text in blocks if text.startswith(f"# {title}")]
    assert len(found) == 1, f"{document} has {len(found)} blocks that begin with '# {title}'"
    return found[0]
