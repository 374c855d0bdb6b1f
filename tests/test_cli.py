"""The command line."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest
from support.postgres import empty_uri

from ontologia import Entity, Field, OntologiaConfig, Session


def onto(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from ontologia.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)


@pytest.mark.parametrize("schema", ["ontologia", "Other Schema"])
def test_the_printed_migrations_make_a_datastore(schema: str) -> None:
    printed = onto("migrations", "--schema", schema)
    assert (printed.returncode, printed.stderr) == (0, "")
    uri = empty_uri()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(printed.stdout.encode())
    config = OntologiaConfig(postgres_schema=schema)
    with Session(uri, config=config) as session:
        session.ensure(Thing(id="a"))
        assert session.commit() == 1


def test_migrations_from_a_number_on() -> None:
    assert "migration 1" in onto("migrations").stdout
    assert "migration 1" not in onto("migrations", "--from", "2").stdout


def test_without_a_command_it_says_what_there_is() -> None:
    nothing = onto()
    assert nothing.returncode == 2
    assert "migrations" in nothing.stderr


def test_it_survives_a_reader_that_leaves() -> None:
    program = "import sys; from ontologia.cli import main; sys.exit(main(['migrations']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
