"""Tests of the check of the style of text: each rule finds its offence and accepts the corrected sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .support import prose

REPOSITORY = Path(__file__).parents[1]
FUNCTION = 'def f():\n    """{}"""\n'
METHOD = 'class A:\n    """Queue."""\n\n    @property\n    def f(self):\n        """{}"""\n'
CLASS = 'class A:\n    """{}"""\n'
LONG = "a " + "very " * prose.MAX_WORDS + "long sentence."

# Path, frame of the text, rule, offence, correction.
CASES = [
    ("a.py", "x = 1  # {}\n", "subject", "who sends more is delayed", "a client that sends more is delayed"),
    ("a.py", "# {}\n", "subject", "Whose turn ends leaves.", "A client leaves when its turn ends."),
    ("a.py", "# One\n# line. {}\n", "subject", "What is left stays.", "The rest stays."),
    ("a.py", "# {}\n", "subject", "A client waits; who is next enters.", "A client waits; the next client enters."),
    ("a.py", 'log("%s", "{}")\n', "subject", "Whether it runs is unknown.", "The state is unknown."),
    ("a.c", "int a; /* {} */\n", "subject", "whom the page belongs to", "the owner of the page"),
    ("a.ts", "/** {} */\n", "subject", "What a lane shows.", "The text of a lane."),
    ("a.md", "{}\n", "subject", "Whom it concerns is in the log.", "The log has the client."),
    ("a.md", "| word | {} |\n", "subject", "what the client has", "the memory of the client"),
    ("a.md", "> * {}\n", "subject", "Who waits is shown.", "Waiting clients are shown."),
    ("a.py", "# {}\n", "person", "Nobody waits.", "No client waits."),
    ("a.py", 'raise Error(f"{{x}}: {}")\n', "person", "somebody has it", "another client has it"),
    ("a.h", "// {}\n", "person", "Whoever enters rings.", "A process that enters rings."),
    ("a.tsx", "const a = trans.__('{}');\n", "person", "nobody", "no client"),
    ("a.tsx", "const a = <p>{}</p>;\n", "person", "Nobody waits.", "No client waits."),
    ("a.css", "/* {} */\n", "person", "everybody’s panel", "the panel of each user"),
    ("a.ts", "const a = /'/.test(b) ? `${{x}} {}` : '';\n", "person", "waits for anyone", "waits for a client"),
    ("a.yaml", "description: {}\n", "person", "The clients of everybody else.", "The clients of other users."),
    (
        "a.ipynb",
        '{{"cells": [{{"cell_type": "markdown", "source": ["{}"]}}]}}',
        "person",
        "Nobody runs.",
        "No client runs.",
    ),
    ("Makefile", "# {}\n", "speech", "A clock tells the time.", "A clock shows the time."),
    ("a.mjs", "it('{}', () => 1);\n", "speech", "tells the user", "shows a message"),
    ("a.c", "/* {} */\n", "speech", "The agent knows the turn.", "The agent reads the turn."),
    ("a.md", "{}\n", "speech", "Programs want a turn.", "Programs request a turn."),
    ("a.md", "{}\n", "speech", "A kernel does not know the turn.", "A kernel does not read the turn."),
    ("a.md", "{}\n", "speech", "The server then noticed the end.", "The server then recorded the end."),
    ("a.py", "# {}\n", "speech", "The client hears of it.", "The client receives it, see file.tell()."),
    ("a.py", FUNCTION, "of", "Of a client that waits.", "Return the client that waits."),
    ("a.py", CLASS, "of", "Of one client.", "Counters of one client."),
    ("a.c", "/* {} */\n", "of", "Of each process.", "The pages of each process."),
    ("a.py", FUNCTION, "imperative", "The client that waits.", "Return the client that waits."),
    ("a.py", FUNCTION, "imperative", "Whether a client waits.", "Return whether a client waits."),
    ("a.py", FUNCTION, "imperative", "Seconds until the end.", "Return the seconds until the end."),
    ("a.py", FUNCTION, "imperative", "Returns the client.", "Return the client."),
    ("a.py", FUNCTION, "imperative", "State of the client.", "State the reason."),
    ("a.py", FUNCTION, "imperative", "Say hello.", "Send hello."),
    ("a.py", "async " + FUNCTION, "imperative", "`size` in bytes.", "Set `size` in bytes."),
    ("a.py", METHOD, "imperative", "Whether it runs.", "True while the client runs."),
    ("a.py", '"""{}"""\n', "noun", "What runs in kernels.", "Extension that runs in kernels."),
    ("a.py", '"""{}"""\n', "noun", "Traces: what is recorded.", "Traces: files with workloads."),
    ("a.py", '"""{}"""\n', "noun", "Builds the native parts.", "Build of the native parts."),
    ("a.py", '"""{}"""\n', "noun", "Runs the demo.", "Runs of the demo."),
    ("a.py", CLASS, "noun", "Keep the devices between cells.", "Request to keep the devices between cells."),
    ("a.py", CLASS, "noun", "Called by the edge.", "Callback of the edge."),
    ("a.py", CLASS, "noun", "For admins only.", "Request of an admin."),
    ("a.py", CLASS, "noun", "Knows the clients.", "Registry of the clients."),
    ("a.py", "# A client waits. {}\n", "pronoun", "It enters.", "The client enters."),
    ("a.py", CLASS, "pronoun", "Queue of clients. They wait.", "Queue of clients that wait."),
    ("a.py", 'log("{}")\n', "pronoun", "the turn is over. Its end was late", "the turn is over. The end was late"),
    ("a.c", "/* {} */\n", "pronoun", "Pages. So they are small.", "Pages. So pages are small."),
    ("a.c", "int a; /* {} */\n", "pronoun", "One of them is empty.", "one of them is empty"),
    ("a.ts", "/** {} */\n", "pronoun", "Draw lanes. These begin.", "Draw lanes. These lanes begin."),
    ("a.ts", "// {}\n", "pronoun", "This also ends the wait.", "This call also ends the wait."),
    ("a.tsx", "trans.__('{}');\n", "pronoun", "This means a wait.", "This process waits."),
    ("a.md", "{}\n", "pronoun", "**That** is measured.", "**That figure** is measured."),
    ("a.md", "{}\n", "pronoun", "Both have a turn.", "Both clients have a turn."),
    ("a.md", "{}\n", "pronoun", "Those with a turn run.", "Those clients run."),
    ("a.md", "* {}\n", "pronoun", "None is left.", "No client is left."),
    ("a.md", "| {} |\n", "pronoun", "A client waits. He is next.", "A client waits. The user is next."),
    ("a.yaml", "description: {}\n", "pronoun", "All turns. They end.", "All turns that end."),
    ("a.py", CLASS, "long", "A queue. A queue is " + LONG, "A queue. A queue is long."),
    ("a.md", "{}\n", "long", "A queue is\n" + LONG, "A queue is `" + LONG + "`"),
    ("a.c", "/* {} */\n", "long", "A queue is " + LONG, "A queue is long."),
    ("a.md", "* {}\n", "line", "One sentence. Another one.", "One sentence, e.g. version 1.2."),
    ("a.md", "{}\n", "line", "One sentence\non two lines.", "One sentence on a line.\nAnother one on the next."),
]


@pytest.mark.parametrize(("path", "frame", "rule", "offence", "correction"), CASES)
def test_a_rule_finds_its_offence_and_accepts_the_correction(
    path: str, frame: str, rule: str, offence: str, correction: str
) -> None:
    assert rule in {finding.rule for finding in prose.check(frame.format(offence), path)}
    assert prose.check(frame.format(correction), path) == []


def test_every_rule_has_a_case() -> None:
    assert {rule for _, _, rule, _, _ in CASES} == prose.RULES.keys()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.md", "```python\n# nobody is told\n```\n"),
        ("a.md", "The user `nobody` runs `tell`.\n"),
        ("a.md", "Who has the device?\n"),
        ("a.md", "<!-- nobody -->\n\n    somebody = 1\n"),
        ("a.md", "| what | where |\n| --- | --- |\n| One sentence. | One. Another. |\n"),
        ("a.py", "somebody = told['nobody']  # noqa: E501\n"),
        ("a.py", 'PROGRAM = """\nimport os\nprint("nobody is told")\n"""\n'),
        ("a.c", "int told = tell(nobody);\n"),
    ],
)
def test_code_questions_and_names_are_no_offence(path: str, text: str) -> None:
    assert prose.check(text, path) == []


def test_a_finding_has_the_line_of_its_sentence() -> None:
    docstring = '"""Queue of clients.\n\nThe queue has an order.\nNobody is first.\n"""\n'
    assert [str(finding) for finding in prose.check(docstring, "a.py")] == ["a.py:4: person: Nobody is first."]
    string = 'f(\n    "one line; "\n    "told twice"\n)\n'
    assert [finding.rule for finding in prose.check(string, "a.py")] == ["speech"]


def test_the_script_checks_the_files_of_another_folder(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.md").write_text("Nobody waits.\n")
    (tmp_path / "b.md").write_text("Nobody waits.\n")
    script = [sys.executable, "-m", "tests.support.prose", "--root", str(tmp_path)]

    def check(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*script, *arguments], cwd=REPOSITORY, capture_output=True, text=True)

    found = check("part")
    assert (found.returncode, found.stdout) == (1, "part/a.md:1: person: Nobody waits.\n")
    counts = check("--count")
    assert counts.returncode == 1 and counts.stdout.splitlines()[-1].split()[-1] == "2"
    (tmp_path / "part" / "a.md").write_text("No client waits.\n")
    assert check("part/a.md").returncode == 0
