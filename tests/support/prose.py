"""Check of comments, docstrings, messages and documents against the style of text in CONTRIBUTING.md.

Use: `python tests/support/prose.py [--root DIR] [--count] [PATH …]`, with files or folders relative to the root.
Each finding is a line `path:line: rule: text`, and the exit status is 1 if there is any.
"""

from __future__ import annotations

import argparse
import ast
import collections
import fnmatch
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MAX_WORDS = 30  # in a sentence; CONTRIBUTING.md asks for 25, and a counter of words is not that exact
MIN_MESSAGE_WORDS = 2  # shorter string literals are keys and names

RULES = {
    "subject": "a sentence or clause begins with who, whose, whom, whether or what",
    "person": "somebody, nobody, whoever and the like name nothing",
    "speech": "programs send, report, return and log; they do not tell or hear",
    "of": "a docstring begins with “Of”",
    "imperative": "the docstring of a function does not begin with an imperative verb (VERBS has those that are known)",
    "noun": "the docstring of a module or class does not begin with a noun phrase",
    "long": f"a sentence has more than {MAX_WORDS} words",
    "line": "a line of Markdown has not exactly one sentence",
}

# Texts that stay as they are: path (a pattern), rule (a pattern), part of the sentence, reason.
ALLOWED = [
    ("CONTRIBUTING.md", "person", '"somebody"', "the rule quotes the word that it forbids"),
    ("tests/support/prose.py", "person", "", "the script names the words that it forbids"),
    ("tests/support/prose.py", "speech", "", "the script names the words that it forbids"),
    ("tests/test_prose.py", "*", "", "the test plants offences"),
    ("docs/project/*.md", "*", "", "the documents include files that are checked themselves"),
]
# Parts of documents that quote old words: path, and the heading from which on nothing is checked.
UNCHECKED_FROM = {"docs/glossary.md": "Words that are being replaced"}
UNCHECKED_FOLDERS = {".git", ".venv", "node_modules", "build", "dist", "_build", "artifacts", "__pycache__"}


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


SUBJECT = re.compile(r"(who|whose|whom|whether|what)\b(?!['’])", re.I)
SUBJECT_AFTER = re.compile(r"; (who|whose|whom|whether|what) ", re.I)
QUESTION_AFTER = re.compile(r"[^:.]+: (who|whose|whom|whether|what|how|where|when|which|why) ")
PARTICIPLE = re.compile(r"\w+(?<!e)ed (by|when|at|once|to|with|for|from|before|after|if|as|in|on|until)\b")
PERSON = re.compile(r"\b((?:some|no|every|any)body|(?:some|every|any)one|no one|who(?:so)?ever|whomever)\b", re.I)
SPEECH = re.compile(r"\b(tell|tells|told|telling|hear|hears|heard|hearing)\b(?!\()", re.I)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
HIDDEN = re.compile(r"<!--.*?-->|</?[a-z][^<>]*>|\]\([^()\s]*(?:\s\"[^\"]*\")?\)|\{[a-z:]+\}(?=`)", re.S)
END = re.compile(r"(?<!\.\.)[.!?][\"'”’)\]*_]*(?=\s|$)")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|resp|approx|incl|al|No|Fig|Sec|[A-Z])\.$")
DIRECTIVE = re.compile(r"^\s*(type: ignore|noqa|pragma|fmt:|!|-\*-|eslint-|@ts-|prettier-ignore|clang-format)")
QUESTION_WORDS = word_set("where when why how which who whose whom whether what whatever whoever")
NO_NOUN_PHRASE = QUESTION_WORDS | word_set(
    "of from as for at by in on to with without until since before after between beside against under up if once while "
    "so and or but also then it its they their them those these this that he she we our you"
)
DETERMINERS = word_set(
    "the a an its their each every all both no some any whether what who whom how when where if it them one"
)
# "Time until …" is a noun phrase, although "Time" could be a verb.
NOUNS = word_set("exit name number result state time work")
AFTER_NOUNS = word_set("and per since status that until")
# Verbs for people; a program does none of this.
PEOPLE = word_set("forget hear know look say see tell think want")
# Verbs that may begin the docstring of a function: those that are nouns or adjectives as well, then all.
NOUN_VERBS = word_set(
    "abort account address answer balance benchmark bind block book bound build call cancel cap change charge check "
    "claim clock close connect copy correct count cover crash cross debug delay deny display draw drop dump edge end "
    "estimate exit export fail feed filter fill fix flag flush fork format guard guess hand handle head hold hook "
    "import interrupt issue join journal judge jump kill label launch lead leave limit line link list load lock log "
    "loop map mark match measure meter mount move name note number offer open order pack page park pass patch pause "
    "permit place plan plot poll post present print probe process profile prompt query queue quote race rank rate read "
    "rebuild record refund release render repeat reply report request rerun reserve reset rest result resume retry "
    "return revert review ring roll round run sample save scale scan schedule score scope search seed set shape share "
    "shift ship show sign signal simulate size skip sleep slice snapshot sort spread start state step stop store stub "
    "stream sum support swap switch target test time total touch trace track transfer trap trigger trim try turn "
    "update use value view visit wait walk warn watch work wrap write yield "
    "clean clear complete double duplicate fake free lower own separate"
)
VERBS = NOUN_VERBS | word_set(
    "abandon accept accumulate acknowledge acquire act activate adapt add adjust admit adopt advance advertise "
    "aggregate align allocate allow analyse annotate announce append apply approximate arm arrange ask assemble assert "
    "assign assume attach attempt audit authenticate authorise avoid await back become begin bless break bring "
    "broadcast bump calculate canonicalise carry cast catch chain choose clamp classify clone coalesce "
    "collapse collect combine commit compare compile complete compose compute concatenate configure confirm consider "
    "construct consume contact continue convert coordinate cope create cut deallocate decide declare decline decode "
    "decrease defer define delegate delete deliver demand derive describe deserialise destroy detach detect determine "
    "differentiate disable discard disconnect discover dismiss dispatch dispose distribute divide do dock "
    "download drain drive edit elect emit emulate enable encode enforce enqueue ensure enter enumerate erase "
    "escape establish evaluate evict examine exceed exchange exclude exec execute exempt expand expect expire explain "
    "expose express extend extract fetch find finish fire fit flip fold follow force forward freeze "
    "gather generate get give go grant group grow halt hang hash have hide identify ignore implement improve include "
    "increase increment index infer inform inherit initialise initialize inject inline insert inspect install "
    "instantiate intercept interpolate interpret introduce invalidate inverse invert invoke keep lay learn let "
    "lift limit locate lose maintain make manage merge migrate mirror mix mock modify monitor mutate "
    "narrow negate negotiate nest normalise normalize notice notify obtain occupy omit overlap override overwrite "
    "parse partition pay perform pick pin poke pop populate prefer prefetch preempt prefix preload prepare prepend "
    "prescribe preserve press pretend prevent produce project promise propagate propose protect prove provide prune "
    "publish pull purge push put quantise quit raise randomise reach react rearm recall receive reclaim recognise "
    "recompute reconcile reconnect reconstruct recover redirect redraw reduce refer refill refresh refuse register "
    "reject relate relay reload remember remove rename reopen reorder repair replace replay represent reproduce "
    "require reschedule resize resolve respect respond restart restore restrict resubmit retain retire retrieve reuse "
    "reverse rewind rewrite rotate satisfy scrub seal seek select send serialise serialize serve "
    "settle simplify sit smooth spawn specify spend split squeeze stack stage stand stash stay stretch strip submit "
    "subscribe substitute subtract summarise summarize supersede supervise suppress suspend synchronise synchronize "
    "take tear terminate throttle throw tick toggle tokenise transform translate treat truncate tune "
    "unblock undo unfreeze uninstall unite unlink unload unlock unmap unpack unpark unpin unregister unset "
    "unsubscribe unwind unwrap upgrade upload validate vary verify wake weigh widen withdraw withhold zero"
)


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


class Text(NamedTuple):
    """A piece of prose with the number of each of its lines.

    `kind` is one of paragraph, cell, heading, comment and message, or, for the docstring of that, module, class,
    function, property, test and item (a C or TypeScript declaration).
    """

    kind: str
    lines: list[tuple[int, str]]


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
DOCSTRINGS = {"module", "class", "function", "property", "test", "item"}


# --- sources to texts --------------------------------------------------------------------------------------------


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
    if heading := UNCHECKED_FROM.get(path):
        end = next((i for i, (_, line) in enumerate(lines) if re.match(rf"#+ {heading}", line)), len(lines))
        lines = lines[:end]
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


# --- texts to findings -------------------------------------------------------------------------------------------


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


def words(sentence: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in sentence.split())


def docstring_rule(kind: str, sentence: str) -> str | None:
    """Return the rule that the beginning of a docstring breaks."""
    found = re.match(r"[\"'“(*]*([A-Za-z][\w’']*)(?:\s+(`?)(\w*))?", sentence + " ")
    first, second = (found[1].lower(), "`" if found[2] else (found[3] or "").lower()) if found else ("", "")
    if first == "of":
        return "of"
    is_question = first in QUESTION_WORDS and not sentence.endswith("?")
    if kind == "function":
        is_noun = (second == "of" and first != "dispose") or (first in NOUNS and second in AFTER_NOUNS)
        return None if first in VERBS and not is_noun else "imperative"
    if kind == "test":
        return "subject" if is_question and first in {"what", "who", "whose", "whom", "whether"} else None
    if kind == "property":
        return "imperative" if is_question else None
    if kind in {"module", "class"}:
        base = {first, first.removesuffix("s"), first.removesuffix("es"), re.sub("ies$", "y", first)}
        is_verb = base & (VERBS - NOUN_VERBS | PEOPLE) or (base & NOUN_VERBS and second in DETERMINERS | {"`"})
        is_clause = is_verb or PARTICIPLE.match(sentence) or QUESTION_AFTER.match(sentence)
        return "noun" if is_question or first in NO_NOUN_PHRASE or is_clause else None
    return None


def check_text(text: Text) -> Iterator[tuple[int, str, str]]:
    """Yield (line, rule, sentence) of what a text breaks."""
    offsets, whole = [], ""
    for number, line in text.lines:
        offsets.append((len(whole), number))
        whole += line + " "
    hidden = masked(whole)

    def line_at(offset: int) -> int:
        return max((start, number) for start, number in offsets if start <= offset)[1]

    ends: dict[int, int] = collections.Counter()
    for index, (start, end) in enumerate(sentences(hidden)):
        sentence, plain = hidden[start:end].strip(), whole[start:end].strip()
        shown = plain if len(plain) <= 120 else plain[:117] + "…"
        rule = docstring_rule(text.kind, sentence) if index == 0 and text.kind in DOCSTRINGS else None
        if rule:
            yield line_at(start), rule, shown
        if re.match("Of ", sentence) and text.kind == "item" and index == 0 and not rule:
            yield line_at(start), "of", shown
        opening = sentence.lstrip("\"'“(*_ ")
        is_sentence = text.kind != "heading" and words(sentence) > 1 and not re.search(r"\?\W*$", sentence)
        if is_sentence and not rule and SUBJECT.match(opening):
            yield line_at(start), "subject", shown
        for pattern, name in ((SUBJECT_AFTER, "subject"), (PERSON, "person"), (SPEECH, "speech")):
            if name != "subject" or is_sentence:
                yield from (
                    (line_at(start + match.start()), name, shown) for match in pattern.finditer(hidden[start:end])
                )
        if text.kind not in {"message", "heading"} and words(sentence) > MAX_WORDS:
            yield line_at(start), "long", f"{words(sentence)} words: {shown}"
        if words(sentence):
            ends[line_at(start)] += 1
            if text.kind == "paragraph" and ends[line_at(start)] == 2:
                yield line_at(start), "line", f"a second sentence: {shown}"
            if text.kind == "paragraph" and line_at(start) != line_at(end - 1):
                yield line_at(end - 1), "line", f"a sentence of several lines: {shown}"


def is_allowed(path: str, rule: str, sentence: str) -> bool:
    return any(
        fnmatch.fnmatch(path, where) and fnmatch.fnmatch(rule, which) and part in sentence
        for where, which, part, _ in ALLOWED
    )


def check(source: str, path: str) -> list[Finding]:
    """Return what the text of a file breaks, in the order of its lines."""
    rules = RULES.keys() if path.endswith(".md") else RULES.keys() - {"line"}
    findings = set()
    for text in READERS[Path(path).suffix](source, path):
        whole = " ".join(line for _, line in text.lines)
        for line, rule, sentence in check_text(text):
            if rule in rules and not is_allowed(path, rule, whole):
                findings.add(Finding(path, line, rule, sentence))
    return sorted(findings)


def files(root: Path, paths: list[str]) -> Iterator[str]:
    """Yield the files to check, relative to the root: those that git has or would add, or else all."""
    command = ["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if not UNCHECKED_FOLDERS & set(path.parts)]
    else:
        names = listed.stdout.split("\0")
    wanted = [os.path.relpath(root / path, root) for path in paths or ["."]]
    for name in sorted(set(names)):
        path = root / name
        is_wanted = any(folder in (".", name) or name.startswith(folder + "/") for folder in wanted)
        is_text = path.suffix in READERS if path.suffix else path.name in {"Makefile", "run"}
        if is_wanted and is_text and path.is_file() and not path.is_symlink():
            yield name


def print_counts(found: list[Finding]) -> None:
    table = collections.Counter((str(Path(finding.path).parent), finding.rule) for finding in found)
    table += collections.Counter(("all", finding.rule) for finding in found)
    folders = sorted({folder for folder, _ in table}, key=lambda folder: (folder == "all", folder))
    width = max(map(len, [*folders, "folder"]))
    print("folder".ljust(width), *(f"{rule:>10}" for rule in RULES), "       all")
    for folder in folders:
        counts = [table[folder, rule] for rule in RULES]
        print(folder.ljust(width), *(f"{count or '.':>10}" for count in [*counts, sum(counts)]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--root", type=Path, default=root, help="the folder of the repository")
    parser.add_argument("--count", action="store_true", help="print counts by folder and rule instead of the findings")
    parser.add_argument("paths", nargs="*", help="files or folders, relative to the root; by default all")
    options = parser.parse_args(arguments)
    found = []
    for name in files(options.root, options.paths):
        found += check((options.root / name).read_text(encoding="utf-8"), name)
    if options.count:
        print_counts(found)
    else:
        print(*found, sep="\n", end="\n" if found else "")
        for rule, meaning in RULES.items():
            if count := sum(finding.rule == rule for finding in found):
                print(f"{rule}: {count} ({meaning})", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
