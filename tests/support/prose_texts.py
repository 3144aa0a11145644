"""Texts of source files and documents for the check of the style: comments, docstrings, messages and paragraphs."""

from __future__ import annotations

import ast
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MIN_MESSAGE_WORDS = 2  # shorter string literals are keys and names
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
HIDDEN = re.compile(r"<!--.*?-->|</?[a-z][^<>]*>|\]\([^()\s]*(?:\s\"[^\"]*\")?\)|\{[a-z:]+\}(?=`)", re.S)
END = re.compile(r"(?<!\.\.)[.!?][\"'”’)\]*_]*(?=\s|$)")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|resp|approx|incl|al|No|Fig|Sec|[A-Z])\.$")
DIRECTIVE = re.compile(r"^\s*(type: ignore|noqa|pragma|fmt:|!|-\*-|eslint-|@ts-|prettier-ignore|clang-format)")


class Text(NamedTuple):
    """A piece of prose with the number of each of its lines.

    `kind` is one of paragraph, cell, heading, comment and message, or, for the docstring of that, module, class,
    function, property, test and item (a C or TypeScript declaration).
    """

    kind: str
    lines: list[tuple[int, str]]


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
DOCSTRINGS = {"module", "class", "function", "property", "test", "item"}


def paragraphs(lines: Iterable[tuple[int, str]], *, kind: str = "paragraph") -> Iterator[Text]:
    """Split Markdown, or the text of a docstring or comment, into its paragraphs, list items and cells of tables."""
    current: list[tuple[int, str]] = []
    fence, in_list, after_blank = "", False, True

    def done() -> Iterator[Text]:
        nonlocal kind
        if current:
            yield Text(kind, current.copy())
            current.clear()
            kind = "paragraph" if kind in DOCSTRINGS else kind

    for number, raw in lines:
        line = raw.rstrip()
        stripped = line.strip()
        opening = re.match(r"(`{3,}|~{3,}|:{3,})(.*)", stripped)
        if fence:
            fence = "" if stripped.startswith(fence) and not stripped.strip("`~") else fence
        elif opening and "`" not in opening[2]:
            yield from done()
            prose = opening[1][0] == ":" or re.match(r"\{(note|warning|tip|important|admonition|caution)\}", opening[2])
            fence = "" if prose else opening[1]
        elif not stripped or re.fullmatch(r"[-=*_]{3,}|\(.*\)=", stripped):
            yield from done()
            after_blank = True
            continue
        elif after_blank and not in_list and re.match(r" {4}|\t", line) and not current:
            continue  # a block of code
        elif heading := re.match(r"#{1,6} (.*)", stripped):
            yield from done()
            in_list = False
            yield Text("heading", [(number, heading[1])])
        elif stripped.startswith("|"):
            yield from done()
            masked = CODE.sub(lambda code: code[0].replace("|", "x"), stripped).strip("|")
            start = stripped.index(masked) if masked in stripped else 1
            for cell in re.finditer(r"(?:\\\||[^|])+", masked):
                yield Text("cell", [(number, stripped[start + cell.start() : start + cell.end()].strip())])
        elif item := re.match(r"\s*(?:>\s*)?(?:[-*+•]|\d+[.)]|@\w+)\s+(.*)", line):
            yield from done()
            in_list = True
            current.append((number, item[1]))
        elif not re.match(r"\[[^\]]+\]: ", stripped):
            in_list = in_list and (not after_blank or line[0] in " \t")
            current.append((number, stripped.removeprefix("> ")))
        after_blank = False
    yield from done()


def of_markdown(source: str, path: str) -> Iterator[Text]:
    lines = list(enumerate(source.split("\n"), 1))
    if lines and lines[0][1] == "---":
        lines = lines[next((i for i, (_, line) in enumerate(lines[1:], 2) if line == "---"), 0) :]
    text = "\n".join(line for _, line in lines)
    text = re.sub(r"<!--.*?-->", lambda comment: re.sub(r"[^\n]", " ", comment[0]), text, flags=re.S)
    yield from paragraphs((number, line) for (number, _), line in zip(lines, text.split("\n"), strict=False))


def of_notebook(source: str, path: str) -> Iterator[Text]:
    for cell in json.loads(source)["cells"]:
        text = "".join(cell["source"])
        where = source.count("\n", 0, max(source.find(json.dumps(text.split("\n")[0])[1:-1]), 0)) + 1
        texts = of_markdown(text, path) if cell["cell_type"] == "markdown" else hash_comments(text)
        yield from (Text(kind, [(where + number - 1, line) for number, line in lines]) for kind, lines in texts)


def hash_comments(source: str) -> Iterator[Text]:
    """Yield the comments of a file whose comments begin with `#`, found without its grammar."""
    found = ((i, re.search(r"(?:^|(?<=\s))#(?!!)\s?(.*)", line)) for i, line in enumerate(source.splitlines(), 1))
    yield from joined([(number, match.start(), match[1], True) for number, match in found if match])


def joined(comments: list[tuple[int, int, str, bool]]) -> Iterator[Text]:
    """Join line comments (line, column, text, whether it is alone on its line) that follow each other in a column."""
    lines: list[tuple[int, str]] = []
    last = (0, 0)
    for number, column, text, alone in comments:
        if DIRECTIVE.match(text):
            continue
        if lines and not (alone and (number - 1, column) == last):
            yield from paragraphs(lines, kind="comment")
            lines = []
        lines.append((number, text))
        last = (number, column)
    yield from paragraphs(lines, kind="comment")


def of_python(source: str, path: str) -> Iterator[Text]:
    comments = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            comments.append((token.start[0], token.start[1], token.string.lstrip("#").removeprefix(" "), alone))
    yield from joined(comments)
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node, clean=False)) is not None:
            statement = node.body[0]
            assert isinstance(statement, ast.Expr)
            docstrings.add(id(statement.value))
            yield from paragraphs(enumerate(cleaned(text), statement.lineno), kind=kind_of(node))
    in_f_strings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            in_f_strings |= {id(value) for value in node.values}
            parts = [value.value if isinstance(value, ast.Constant) else "`x`" for value in node.values]
            yield from message("".join(map(str, parts)), node.lineno, node.end_lineno, source)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | in_f_strings
        ):
            yield from message(node.value, node.lineno, node.end_lineno, source)


def cleaned(docstring: str) -> list[str]:
    """Return the lines of a docstring without their common indentation."""
    first, newline, rest = docstring.partition("\n")
    return [first.strip(), *textwrap.dedent(rest).split("\n")] if newline else [first.strip()]


def kind_of(node: ast.AST) -> str:
    if isinstance(node, ast.Module | ast.ClassDef):
        return "module" if isinstance(node, ast.Module) else "class"
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
    is_property = re.search(r"property\b|\.setter\b", decorators)
    return "property" if is_property else "test" if node.name.startswith("test_") else "function"


def message(text: str, first: int, last: int | None, source: str, *, is_shown: bool = False) -> Iterator[Text]:
    """Yield the lines of a string literal that lies on lines `first` to `last`, if it is prose."""
    if not is_shown and len(re.findall(r"[A-Za-z]{2,}", text)) < MIN_MESSAGE_WORDS:
        return
    if "\n" in text.strip():
        try:
            ast.parse(textwrap.dedent(text))
            return  # a program
        except (SyntaxError, ValueError):
            pass
    lines = source.split("\n")[first - 1 : last]
    numbered = []
    for line in text.split("\n"):
        beginning = re.split(r"[`\\{\"%]", line.strip())[0][:20].strip() or line.strip()
        number = next((number for number, code in enumerate(lines, first) if beginning in code), first)
        numbered.append((number, line))
    yield from paragraphs(numbered, kind="message")


JSX_TEXT = re.compile(r"<[A-Za-z][\w.]*(?:\s[^<>]*)?>\s*([^<>{}=;]*[A-Za-z]{2}[^<>{}=;]*?)\s*</")
TOKENS = re.compile(
    r"(?P<block>/\*.*?\*/)|(?P<line>//[^\n]*)|(?P<string>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)"
    r"|(?P<regex>(?<=[(,=:\[!&|?{};])\s*/(?![/*>])(?:\\.|\[(?:\\.|[^\]\n])*\]|[^/\n\\])+/)",
    re.S,
)


def of_c(source: str, path: str) -> Iterator[Text]:
    """Yield the comments and messages of C, TypeScript, JavaScript or CSS."""
    is_c, is_css = path.endswith((".c", ".h", ".def", ".cu")), path.endswith(".css")
    pattern = re.compile(TOKENS.pattern.replace("|`(?:\\\\.|[^`\\\\])*`", ""), re.S) if is_c or is_css else TOKENS
    comments = []
    for token in pattern.finditer(source):
        text, number = token[0], source.count("\n", 0, token.start()) + 1
        column = token.start() - source.rfind("\n", 0, token.start()) - 1
        if token["block"]:
            lines = [re.sub(r"^\s*\*+ ?", "", line) for line in text[2:-2].lstrip("*!").split("\n")]
            if not DIRECTIVE.match(lines[0]):
                lines[1:] = textwrap.dedent("\n".join(lines[1:])).split("\n") if lines[1:] else []
                kind = "item" if text.startswith("/**") or (is_c and column == 0) else "comment"
                yield from paragraphs(list(enumerate(map(str.strip, lines), number)), kind=kind)
        elif token["line"] and not is_css:
            alone = not source[source.rfind("\n", 0, token.start()) + 1 : token.start()].strip()
            comments.append((number, column, text.lstrip("/").removeprefix(" "), alone))
        elif token["string"] and not is_css:
            text = re.sub(r"\$\{[^}]*\}", "x", text[1:-1])
            last, is_shown = number + text.count("\n"), source[: token.start()].rstrip().endswith(".__(")
            yield from message(text.replace("\\n", "\n"), number, last, source, is_shown=is_shown)
    yield from joined(comments)
    for found in JSX_TEXT.finditer(source) if path.endswith(".tsx") else ():
        number = source.count("\n", 0, found.start(1)) + 1
        yield from message(found[1], number, number + found[1].count("\n"), source, is_shown=True)


def of_data(source: str, path: str) -> Iterator[Text]:
    """Yield the comments and texts of a Makefile or of a file in TOML, YAML or JSON."""
    if not path.endswith(".json"):
        yield from hash_comments(source)
    for number, line in enumerate(source.split("\n"), 1):
        found = re.match(r"\s*(?:- )?(?:\"?[\w$-]+\"?: *)?[\"'>|]*([^#]*)", line)
        if found and len(re.findall(r"[A-Za-z]{2,}", found[1])) > MIN_MESSAGE_WORDS:
            yield Text("message", [(number, re.sub(r"[\"'],?$", "", found[1]))])


READERS = {
    **dict.fromkeys([".py", ".pyi"], of_python),
    **dict.fromkeys([".c", ".h", ".def", ".cu", ".ts", ".tsx", ".mjs", ".js", ".css"], of_c),
    **dict.fromkeys([".md"], of_markdown),
    **dict.fromkeys([".ipynb"], of_notebook),
    **dict.fromkeys([".yaml", ".yml", ".toml", ".json", ".conf", ""], of_data),
}


def masked(text: str) -> str:
    """Return the text, as long as before, with code as one word and without links and tags."""
    text = CODE.sub(lambda code: "`" + "x" * (len(code[0]) - 2) + "`", text)
    return HIDDEN.sub(lambda hidden: " " * len(hidden[0]), text)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each sentence of a masked text begins and ends."""
    start = 0
    for end in END.finditer(text):
        if text[end.start()] != "." or not ABBREVIATION.search(text[start : end.start() + 1]):
            yield start, end.end()
            start = end.end() + len(text[end.end() :]) - len(text[end.end() :].lstrip())
    if text[start:].strip():
        yield start, len(text)
