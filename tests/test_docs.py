"""Every code block of the documentation works as printed.

The ``python`` blocks of a page run in order and share their names. A ``text`` or ``output``
block right after one must be what it printed (``...`` stands for anything). There is no way to
exclude a block. Commands in ``console`` and ``sh`` blocks are checked without running them.
"""

import ast
import doctest
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECONDS = 120

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")


@dataclass(frozen=True)
class Block:
    info: str
    text: str
    line: int  # of the first line of text
    follows: bool = False  # nothing but blank lines since the block before

    @property
    def is_python(self) -> bool:
        return bool(re.match(r"(py|python|pycon|ipython)\d*\b", self.info, re.IGNORECASE))


def blocks_of(markdown: str) -> list[Block]:
    """The fenced code blocks of a page."""
    found: list[Block] = []
    lines = iter(enumerate(markdown.splitlines(), 1))
    follows = False
    for number, line in lines:
        if opening := FENCE.match(line):
            body = list(_body(lines, opening["fence"]))
            text = textwrap.dedent("".join(f"{each}\n" for each in body))
            found.append(Block(opening["info"].strip(), text, number + 1, follows))
            follows = True
        elif line.strip():
            follows = False
    return found


def _body(lines: Iterator[tuple[int, str]], fence: str) -> Iterator[str]:
    for _, line in lines:
        closing = FENCE.match(line)
        if closing and closing["fence"].startswith(fence) and not closing["info"].strip():
            return
        yield line
    raise AssertionError(f"a block opened with {fence} is never closed")


def python_blocks(markdown: str) -> list[tuple[Block, str | None]]:
    """The Python blocks of a page, each with the output that the page promises, if any."""
    blocks = blocks_of(markdown)
    for block in blocks:
        if block.is_python and block.info not in ("python", "python continue"):
            raise AssertionError(f"line {block.line}: write 'python', not {block.info!r}")
    return [
        (block, after.text if after.follows and after.info in ("text", "output") else None)
        for block, after in pairwise([*blocks, Block("", "", 0)])
        if block.is_python
    ]


def run_page(name: str, markdown: str, directory: Path) -> list[str]:
    """Run the Python blocks of a page; return complaints about what they printed."""
    blocks = python_blocks(markdown)
    page = {"file": name, "blocks": [(block.line, block.text) for block, _ in blocks]}
    runner = Path(__file__).with_name("run_page.py")
    printed = json.loads(run_python([str(runner)], directory, json.dumps(page)))
    return [
        f"{name}:{block.line}: printed\n{output}\nbut the page shows\n{promised}"
        for (block, promised), output in zip(blocks, printed, strict=True)
        if promised is not None and not same_output(promised, output)
    ]


def run_python(arguments: list[str], directory: Path, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=directory,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def same_output(promised: str, printed: str) -> bool:
    want, got = ("".join(f"{x.rstrip()}\n" for x in s.splitlines()) for s in (promised, printed))
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


def commands_of(block: Block) -> list[str]:
    """The commands of a shell block; a console block marks them with ``$``."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.info == "console":
        return [line[2:] for line in lines if line.startswith("$ ")]
    if block.info in ("sh", "bash", "shell"):
        return [line.removeprefix("$ ") for line in lines if line.strip() and line[0] != "#"]
    return []


def complaint_about(command: str) -> str | None:
    """What is wrong with a command, as far as can be seen without running it."""
    syntax = subprocess.run(["sh", "-n", "-c", command], capture_output=True, text=True)
    if syntax.returncode:
        return syntax.stderr
    match shlex.split(command, comments=True):
        case ["make", *words]:
            targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
            asked = {word for word in words if "=" not in word and word[0] != "-"}
            return f"no target {asked - targets}" if asked - targets else None
        case ["python" | "python3", "-c", code, *_]:
            return syntax_error(code)
        case ["python" | "python3", "-m", module, *_]:
            known = (ROOT / module.partition(".")[0]).is_dir() or importlib.util.find_spec(module)
            return None if known else f"no module {module}"
        case ["python" | "python3", script, *_] if "/" in script:
            return None if (ROOT / script).is_file() else f"no file {script}"
        case ["pip", "install", *words] | ["uv", "pip" | "add", *words]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            asked = set(re.findall(r"[\w-]+", " ".join(re.findall(r"\[(.*?)\]", " ".join(words)))))
            unknown = asked - project["optional-dependencies"].keys()
            return f"no extra {unknown}" if unknown else None
    return None


def syntax_error(code: str) -> str | None:
    try:
        ast.parse(code)
    except SyntaxError as error:
        return str(error)
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page(page: Path, tmp_path: Path) -> None:
    markdown = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    wrong = run_page(name, markdown, tmp_path)
    for block in blocks_of(markdown):
        for command in commands_of(block):
            if complaint := complaint_about(command):
                wrong.append(f"{name}:{block.line}: {command}: {complaint}")
    assert not wrong, "\n".join(wrong)


def test_first_program_of_the_readme_runs_as_pasted(tmp_path: Path) -> None:
    (first, promised), *_ = python_blocks(README.read_text(encoding="utf-8"))
    assert len(first.text.splitlines()) < 40
    (tmp_path / "program.py").write_text(first.text, encoding="utf-8")
    printed = run_python(["program.py"], tmp_path)
    assert printed.strip()
    assert promised is None or same_output(promised, printed)


PAGE = """\
```python
x = 1
print(x + 1)
```

```text
2
```
prose
1. in a list

   ~~~python continue
   def f():
       return x

   print(f(), "...")
   ~~~
   ```output
   ... ...
   ```
````markdown
```python
not code, but a quotation
```
````
"""


def test_blocks_are_found_with_their_lines_and_outputs() -> None:
    first, second = python_blocks(PAGE)
    assert first == (Block("python", "x = 1\nprint(x + 1)\n", 2), "2\n")
    assert second[0].line == 13
    assert second[0].text.splitlines()[1] == "    return x"
    assert second[1] == "... ...\n"
    assert blocks_of(PAGE)[-1].info == "markdown"


def test_an_output_block_must_follow_directly() -> None:
    (pair,) = python_blocks("```python\nprint(1)\n```\nelsewhere:\n```text\n2\n```\n")
    assert pair[1] is None


@pytest.mark.parametrize("info", ["python no-run", "py", "Python", "python3", "pycon", "python,x"])
def test_no_block_can_opt_out(info: str) -> None:
    with pytest.raises(AssertionError, match="write 'python'"):
        python_blocks(f"```{info}\nprint(1)\n```\n")


def test_an_unclosed_block_is_an_error() -> None:
    with pytest.raises(AssertionError, match="never closed"):
        blocks_of("```python\nprint(1)\n")


def test_blocks_share_names_and_outputs_are_compared(tmp_path: Path) -> None:
    assert run_page("page.md", PAGE, tmp_path) == []
    (wrong,) = run_page("page.md", PAGE.replace("x = 1", "x = 5"), tmp_path)
    assert wrong.startswith("page.md:2: printed\n6\n")


def test_annotations_resolve_in_a_page(tmp_path: Path) -> None:
    code = (
        "from __future__ import annotations\nimport typing\n"
        "class A: ...\nclass B:\n    a: A\n"
        "print(typing.get_type_hints(B)['a'] is A, __name__)\n"
    )
    page = f"```python\n{code}```\n```text\nTrue __main__\n```\n"
    assert run_page("page.md", page, tmp_path) == []


def test_a_failing_block_shows_its_place_in_the_page(tmp_path: Path) -> None:
    page = "# Title\n\n```python\nx = 1\nraise ValueError('no')\n```\n"
    with pytest.raises(AssertionError, match=r'(?s)"page.md", line 5.*ValueError: no'):
        run_page("page.md", page, tmp_path)


@pytest.mark.parametrize(
    ("promised", "printed", "same"),
    [
        ("a\n", "a  \n", True),
        ("a ... c\n", "a b c\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("a\n", "", False),
    ],
)
def test_same_output(promised: str, printed: str, same: bool) -> None:
    assert same_output(promised, printed) is same


def test_commands_of_shell_blocks() -> None:
    console = Block("console", "$ make demo\nmake is not a command here\n$ a \\\n  b\n", 1)
    assert commands_of(console) == ["make demo", "a    b"]
    assert commands_of(Block("sh", "# why\nmake test\n\n$ make demo\n", 1)) == [
        "make test",
        "make demo",
    ]
    assert commands_of(Block("text", "$ make demo\n", 1)) == []


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("make test", None),
        ("make bench ARGS=--json", None),
        ("make coffee", "no target"),
        ("echo 'unclosed", "(?i)quote"),
        ("python -m pytest -q", None),
        ("python -m no_such_module_here", "no module"),
        ("python tools/check.py", None),
        ("python tools/nothing.py", "no file"),
        ("python -c 'print(1)'", None),
        ("python -c 'print(1'", "was never closed"),
        ("pip install 'ontologia[postgres,arrow]'", None),
        ("pip install 'ontologia[floppy]'", "no extra"),
        ("sqlite3 app.db 'select 1'", None),
    ],
)
def test_complaints_about_commands(command: str, complaint: str | None) -> None:
    found = complaint_about(command)
    assert (found is None) if complaint is None else re.search(complaint, found or "")
