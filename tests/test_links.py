"""Links between the documents, and from the tour on Binder to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "binder").glob("*.ipynb")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", document.read_text())
    assert [one for one in links if not one.startswith("https:") and not (document.parent / one).exists()] == []
