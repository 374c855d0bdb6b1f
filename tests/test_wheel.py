"""What users install is the wheel: it is complete, holds nothing else, and imports."""

import email
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ontologia"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # The back end itself, not a front end: nothing is isolated, nothing is downloaded.
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


def test_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    shipped = {name for name in names if ".dist-info/" not in name}
    sources = {
        f"ontologia/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == sources
    assert {"ontologia/__init__.py", "ontologia/py.typed"} <= shipped
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_metadata_says_what_the_project_file_says(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Name"] == project["name"]
    assert metadata["Version"] == project["version"]
    assert metadata["Requires-Python"] == project["requires-python"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(required) == sorted(project["dependencies"])


def test_imports_on_its_own_and_stays_light(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = """
import sys, ontologia
print(ontologia.__file__)
missing = [name for name in ontologia.__all__ if not hasattr(ontologia, name)]
assert not missing, f"in __all__, but not there: {missing}"
heavy = {"duckdb", "numpy", "pandas", "psycopg", "pyarrow"} & set(sys.modules)
assert not heavy, f"import ontologia loads {heavy}"
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    output = run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, env=env)
    assert Path(output.strip()) == tmp_path / "ontologia" / "__init__.py"


def run(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
