"""docs/reference.md leaves out nothing that is public, and its tables are right."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

import ontologia
from ontologia import OntologiaConfig, OntologiaError, Session

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rows() -> dict[str, list[str]]:
    """The rows of all tables by their first cell."""
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in REFERENCE.splitlines()
        if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in cells}


@pytest.mark.parametrize("name", ontologia.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert re.search(rf"`[^`]*\b{name}\b[^`]*`", REFERENCE)


@pytest.mark.parametrize("name", [n for n in vars(Session) if not n.startswith("_")])
def test_every_method_of_a_session_is_there(name: str) -> None:
    assert re.search(rf"^\|[^|]*`{name}\b", REFERENCE, re.MULTILINE)


@pytest.mark.parametrize("option", dataclasses.fields(OntologiaConfig), ids=lambda f: f.name)
def test_every_option_is_there_with_its_default(option: "dataclasses.Field[object]") -> None:
    default, variable, *_ = rows()[f"`{option.name}`"]
    assert default == f"`{json.dumps(option.default)}`"
    assert variable == f"`ONTOLOGIA_{option.name.upper()}`"


@pytest.mark.parametrize(
    "error",
    [
        value
        for value in vars(ontologia).values()
        if isinstance(value, type) and issubclass(value, OntologiaError)
    ],
)
def test_every_error_is_there_with_its_code(error: type[OntologiaError]) -> None:
    assert rows()[f"`{error.__name__}`"][0] == f"`{error.code}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), target
        if anchor:
            assert anchor in anchors(file), target


def anchors(file: Path) -> set[str]:
    """What the headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}
