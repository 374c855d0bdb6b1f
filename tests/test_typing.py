"""The type checkers accept what users should write and refuse what they should not.

``tests/typing/fail_*.py`` hold mistakes: the lines that a checker reports must be
exactly the lines marked ``# error``. All other files there must be clean, and must run.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "tests" / "typing"

Problem = tuple[str, int, str]  # file name, line, message


def test_samples_exist() -> None:
    names = {path.name for path in SAMPLES.glob("*.py")}
    assert {"pass_model.py", "pass_query.py", "fail_model.py", "fail_query.py"} <= names
    for path in SAMPLES.glob("*.py"):
        assert bool(marked_lines(path.read_text())) == path.name.startswith("fail_"), path.name


def test_differences_tell_both_directions() -> None:
    reported = [("a.py", 1, "wanted"), ("a.py", 2, "surprise")]
    assert differences(reported, {"a.py": {1, 3}}) == [
        "a.py:2: not marked, but reported: surprise",
        "a.py:3: marked as an error, but accepted",
    ]
    assert differences([("b.py", 1, "x"), ("b.py", 1, "y")], {"b.py": {1}}) == []
    assert differences([("c.py", 1, "x")], {}) == ["c.py:1: not marked, but reported: x"]


def test_marked_lines() -> None:
    assert marked_lines("x = 1\ny = 2  # error\nz = 3  # error  # noqa: F821\n# errors\n") == {2, 3}


def test_samples_run() -> None:
    modules = sorted(p.stem for p in SAMPLES.glob("*.py") if not p.name.startswith("fail_"))
    code = f"import {', '.join(modules)}"
    run([sys.executable, "-W", "error", "-B", "-c", code], expected=(0,), cwd=SAMPLES)


def mypy() -> list[Problem]:
    cache = ROOT / ".mypy_cache" / "samples"  # apart from a mypy that runs at the same time
    command = [sys.executable, "-m", "mypy", "--strict", "--output=json", f"--cache-dir={cache}"]
    output = run([*command, str(SAMPLES)], expected=(0, 1))
    found = [json.loads(line) for line in output.splitlines()]
    return [
        (Path(item["file"]).name, item["line"], item["message"])
        for item in found
        if item["severity"] == "error"
    ]


def pyright() -> list[Problem]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    output = run([*command, str(SAMPLES)], expected=(0, 1))
    report = json.loads(output)
    assert report["summary"]["filesAnalyzed"] == len(list(SAMPLES.glob("*.py")))
    return [
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1, item["message"])
        for item in report["generalDiagnostics"]
        if item["severity"] == "error"
    ]


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_checker_agrees_with_the_marks(checker: Callable[[], list[Problem]]) -> None:
    marks = {path.name: marked_lines(path.read_text()) for path in SAMPLES.glob("*.py")}
    assert not (wrong := differences(checker(), marks)), "\n" + "\n".join(wrong)


def marked_lines(source: str) -> set[int]:
    lines = enumerate(source.splitlines(), 1)
    return {number for number, line in lines if re.search(r"# error(\s|$)", line)}


def differences(reported: Iterable[Problem], marks: dict[str, set[int]]) -> list[str]:
    """What a checker reported and the marks do not, and the reverse."""
    messages: dict[tuple[str, int], str] = {}
    for file, line, message in reported:
        messages.setdefault((file, line), message)
    marked = {(file, line) for file, lines in marks.items() for line in lines}
    unmarked = {
        place: f"not marked, but reported: {message}"
        for place, message in messages.items()
        if place not in marked
    }
    accepted = dict.fromkeys(marked - messages.keys(), "marked as an error, but accepted")
    return [f"{f}:{n}: {what}" for (f, n), what in sorted({**unmarked, **accepted}.items())]


def run(command: list[str], *, expected: tuple[int, ...], cwd: Path = ROOT) -> str:
    env = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode in expected, done.stdout + done.stderr
    return done.stdout
