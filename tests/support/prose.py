"""Check of comments, docstrings, messages and documents against the style of text in CONTRIBUTING.md.

Use: `python -m tests.support.prose [--root DIR] [--count] [PATH …]`, with files or folders relative to the root.
Each finding is a line `path:line: rule: text`, and the exit status is 1 if there is any.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .prose_texts import DOCSTRINGS, READERS, Text, masked, sentences

MAX_WORDS = 30  # in a sentence; CONTRIBUTING.md asks for 25, and a counter of words is not that exact

RULES = {
    "subject": "a sentence or clause begins with who, whose, whom, whether or what",
    "person": "somebody, nobody, whoever and the like name nothing",
    "speech": "programs send, report, return and log; they do not tell, hear, know, want, think, say or notice",
    "of": "a docstring begins with “Of”",
    "imperative": "the docstring of a function does not begin with an imperative verb (VERBS has those that are known)",
    "noun": "the docstring of a module or class does not begin with a noun phrase",
    "pronoun": "a sentence begins with a pronoun, whose noun is in another sentence",
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
UNCHECKED_FOLDERS = {".git", ".venv", "node_modules", "build", "dist", "_build", "artifacts", "__pycache__"}


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


SUBJECT = re.compile(r"(who|whose|whom|whether|what)\b(?!['’])", re.I)
SUBJECT_AFTER = re.compile(r"; (who|whose|whom|whether|what) ", re.I)
QUESTION_AFTER = re.compile(r"[^:.]+: (who|whose|whom|whether|what|how|where|when|which|why) ")
PARTICIPLE = re.compile(r"\w+(?<!e)ed (by|when|at|once|to|with|for|from|before|after|if|as|in|on|until)\b")
PERSON = re.compile(r"\b((?:some|no|every|any)body|(?:some|every|any)one|no one|who(?:so)?ever|whomever)\b", re.I)
# Programs do not tell or hear, and no named program knows, wants, thinks, says or notices.
SPEECH = re.compile(
    r"\b(tell|tells|told|telling|hear|hears|heard|hearing)\b(?!\()|"
    r"\b(?:agent|client|coordinator|driver|gate|kernel|process|program|scheduler|server|shim)(?:s|es)? "
    r"(?:(?:do|did|can|could|may|might|must|should|will|would)(?:es)? (?:not )?|cannot |already |never |then |now )*"
    r"(?:know|known|knew|want|wanted|think|thought|say|said|notice|noticed)s?\b",
    re.I,
)
PRONOUN = re.compile(
    r"(?:(?:also|and|but|even|here|now|only|otherwise|so|then|there|thus),? )?"
    r"(?:it|they|he|she|its|their|his|them|the (?:latter|former)|\w+ of (?:it|them)|those (?:that|who|with|of))\b",
    re.I,
)
# These words are pronouns only before a verb or a comma: "This is", but not "This process".
SINGULAR_PRONOUN = re.compile(r"(?:This|That|Each|Either|Neither|None|One|Another)(,| [a-z]+)")
PLURAL_PRONOUN = re.compile(r"(?:These|Those|All|Both|Some|Many|Few|Several|Others|The others)(,| [a-z]+)")
# Auxiliary verbs, and adverbs that stand before a verb.
NO_NOUN_AFTER_PRONOUN = word_set(
    "is are was were has have had does do did can cannot could may might must shall should will would "
    "also always alone ever never not often still then therefore thus too usually ,"
)
NOUN_IN_S = re.compile(r"[a-z]*[suia]s|series")  # other words in "s" after "This" are verbs
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


def begins_with_pronoun(sentence: str) -> bool:
    """Return true if the subject of a sentence, or the owner of the subject, is a pronoun.

    A comment that begins with a small letter is no sentence: its pronoun stands for the code beside it.
    """
    if not sentence[:1].isupper():
        return False
    following = found[1].strip() if (found := SINGULAR_PRONOUN.match(sentence)) else ""
    if following in NO_NOUN_AFTER_PRONOUN or (following.endswith("s") and not NOUN_IN_S.fullmatch(following)):
        return True
    following = found[1].strip() if (found := PLURAL_PRONOUN.match(sentence)) else ""
    return following in NO_NOUN_AFTER_PRONOUN | (VERBS - NOUN_VERBS) or PRONOUN.match(sentence) is not None


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
        if is_sentence and begins_with_pronoun(opening.replace("**", "")):
            yield line_at(start), "pronoun", shown
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
