"""Tests of the documents: links, names of files and folders, code blocks, and generated pages."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager

from .native.test_layering import TREES
from .support.markdown_blocks import DOCS, ROOT

MARKDOWN = [*sorted(ROOT.glob("*.md")), *(path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts)]
DOCUMENTS = [*MARKDOWN, *(ROOT / "native").glob("*/README.md"), *(ROOT / "binder").glob("*.ipynb")]
SOURCES = {"jupyter_gpushare", "native", "labextension/src", "labextension/ui-tests", "tests"}
FILE = re.compile(r"[\w*-][\w./*-]*\.(?:py|c|h|def|cu|ptx|ts|tsx|mjs|css|md|yaml|yml|toml|json|ipynb|conf|service)")
FOLDER = re.compile(r"[\w*-][\w./*-]*/")
WITHOUT_SOURCES = {".git", ".venv", "node_modules", "lib", "build", "dist", "_build", "__pycache__"}
# Files and folders that users and programs make.
MADE = {
    *("train.py", "train.ipynb", "explore.ipynb", "jupyter_server_config.py", "jupyter_gpushare_config.py"),
    *("build/gpu/report.json", "dist/", "ui-tests/artifacts/", "jupyter_gpushare/native/page.h"),
}
PARTS = ["jupyter_gpushare", "jupyter_gpushare/core", "jupyter_gpushare/coordinator", "native"]
BLOCK = re.compile(r"^ *```(?P<language>\w+)\n(?P<text>.*?)^ *```$", re.S | re.M)
GENERATED = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]


def included(document: Path) -> Path | None:
    """Return the file that is the whole text of a document."""
    found = re.match(r"```{include} (\S+)", document.read_text())
    return (document.parent / found[1]).resolve() if found else None


# Documents of the site that `make docs` builds.
ON_SITE = {included(path) or path for path in MARKDOWN if DOCS in path.parents}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub and Sphinx give to the headings of a document."""
    text = (included(document) or document).read_text()
    headings = re.findall(r"^#+ (.*)", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(document: Path, text: str) -> Iterator[str]:
    """Yield the links in `text`, relative to `document`, that lead to no file, to no heading or out of the site."""
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", text)
    for link in links:
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if link.startswith("https:"):
            continue
        is_outside = document in ON_SITE and target != document and DOCS not in target.resolve().parents
        if is_outside or not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    assert list(broken(document, document.read_text())) == []


def test_broken_links_are_found() -> None:
    text = '[a](no.md) [b](#no) [c](SECURITY.md#no) [d](SECURITY.md#not-promised) <img src="no.png">'
    assert list(broken(ROOT / "README.md", text)) == ["no.md", "#no", "SECURITY.md#no", "no.png"]
    assert list(broken(DOCS / "index.md", "[a](glossary.md) [b](../README.md)")) == ["../README.md"]


def test_documents_install_from_a_clone() -> None:
    """No index has the package, so each installation is that of the folder of the project, or of a wheel."""
    commands = {name_of(path): re.findall(r"pip install [^`\n]*", path.read_text()) for path in MARKDOWN}
    assert commands["README.md"] == ["pip install ."]
    by_name = re.compile(r"(?<![/\w.-])jupyter-gpushare(?![\w-])")
    found = {name: [one for one in lines if by_name.search(one)] for name, lines in commands.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_audited_actions_are_documented() -> None:
    """Each action that the coordinator records is in the list of the page on hosts with many users."""
    sources = (ROOT / "jupyter_gpushare" / "coordinator").rglob("*.py")
    calls = [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    records = [call for call in calls if ast.unparse(call.func).endswith("_audit.record")]
    literals = {node.value for call in records for node in ast.walk(call.args[1]) if isinstance(node, ast.Constant)}
    (line,) = re.findall(r"^`what` is (.*)$", (DOCS / "how-to" / "multiuser.md").read_text(), re.M)
    assert {"quota", "suspend", "stop"} <= literals
    assert literals <= set(re.findall(r"[a-z]+", line))


def test_sources_name_documents_that_exist() -> None:
    files = [*MARKDOWN, ROOT / "Makefile", *(path for folder in SOURCES for path in (ROOT / folder).rglob("*.*"))]
    sources = {".py", ".pyi", ".c", ".h", ".ts", ".tsx", ".mjs", ".md", ".yaml", ".service", ""}
    for file in files:
        if file.suffix in sources and file.is_file():
            named = re.findall(r"\bdocs/[\w/-]+\.(?:md|png|svg|py)\b", file.read_text())
            assert [path for path in named if not (ROOT / path).exists()] == [], file


def source_paths() -> str:
    """Return a line for each file and folder of the sources: "/", its path and, for a folder, "/"."""
    lines = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in WITHOUT_SOURCES]
        above = "/" + (name_of(Path(folder)) + "/" if folder != str(ROOT) else "")
        lines += [above, *(above + name for name in files)]
    return "\n".join(lines)


def missing(text: str, paths: str) -> list[str]:
    """Return the names of files and folders in backquotes of which `paths` has none; `*` stands for any characters.

    A name may lack the folders above it.
    """
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.S | re.M)
    words = [word.strip("(),;:") for code in re.findall(r"`([^`\n]+)`", prose) for word in code.split()]
    names = [word for word in words if (FILE.fullmatch(word) or FOLDER.fullmatch(word)) and word not in MADE]
    patterns = {name: re.escape(name).replace(r"\*", "[^/\n]*") for name in names}
    return [name for name, pattern in patterns.items() if not re.search(f"/{pattern}$", paths, re.M)]


def test_documents_name_files_that_exist() -> None:
    paths = source_paths()
    found = {name_of(document): missing(document.read_text(), paths) for document in MARKDOWN}
    assert {document: names for document, names in found.items() if names} == {}


def absent_tests(text: str) -> list[str]:
    """Return the names `file.py::test` that are no tests; a file without a folder is one of the driver facts."""
    names = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    files = [(ROOT / "tests" / (file if "/" in file else f"driver_facts/{file}"), test) for file, test in names]
    return [
        f"{file.name}::{test}"
        for file, test in files
        if not (file.exists() and re.search(rf"^def {test}\(", file.read_text(), re.M))
    ]


def test_the_table_of_behaviours_names_tests_that_exist() -> None:
    text = (ROOT / "tests" / "README.md").read_text()
    assert text.count(".py::test_") > 60
    assert absent_tests(text) == []
    assert absent_tests("`core/test_hold.py::test_no` `test_vmm.py::test_no`") == [
        "test_hold.py::test_no",
        "test_vmm.py::test_no",
    ]


def test_names_of_missing_files_are_found() -> None:
    text = "`core/scheduler.py` (`base/page.h`, `page.*`), `no.py`, `handlers/`, `core/no/`, `a.b`, `/x.py`\n"
    text += "```\n`no.c`\n```\n"
    assert missing(text, source_paths()) == ["no.py", "core/no/"]


def test_the_design_names_every_folder() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (DOCS / "explanation" / "design.md").read_text(), re.M)
    named = {name for row in rows for name in re.findall(r"`([^`]+/)`", row)}
    sources = [path for part in PARTS for kind in ("*/*.py", "*/*.c", "*/*.md") for path in (ROOT / part).glob(kind)]
    paths = sorted(
        {name_of(path.parent) for path in sources} | {f"native/shim/{folder}" for folder in TREES["shim"].folders}
    )
    assert [path for path in paths if not any(f"/{path}/".endswith(f"/{name}") for name in named)] == []


class Block(NamedTuple):
    document: Path
    language: str
    text: str


def blocks() -> list[Block]:
    return [
        Block(path, found["language"], textwrap.dedent(found["text"]))
        for path in MARKDOWN
        for found in BLOCK.finditer(path.read_text())
    ]


def parse(language: str, text: str) -> None:
    """Raise an exception if a block is not of its language; other tests run the blocks of shells."""
    if language == "python":
        cell = text if not text.startswith("%%") else text.partition("\n")[2]
        ast.parse(TransformerManager().transform_cell(cell))
    elif language == "json":
        for value in [text] if text.startswith("{\n") else text.splitlines():  # one value in all, or one on each line
            json.loads(value)
    elif language == "yaml":
        yaml.safe_load(text)
    else:
        assert language in {"bash", "console", "sh", "text"}


@pytest.mark.parametrize("block", blocks(), ids=lambda block: f"{name_of(block.document)}-{block.text.splitlines()[0]}")
def test_code_blocks_parse(block: Block) -> None:
    parse(block.language, block.text)


@pytest.mark.parametrize(
    ("language", "text"), [("python", "a b"), ("python", "%%time\na b"), ("json", "{"), ("yaml", "[")]
)
def test_blocks_that_do_not_parse_are_found(language: str, text: str) -> None:
    with pytest.raises((SyntaxError, ValueError, yaml.YAMLError)):
        parse(language, text)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / "reference" / name).read_text() == GENERATED[name](), "run `make reference`"
