"""``onto``: the command line. Thin: everything it shows is available from Python too."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ontologia.errors import OntologiaError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.act is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        options.act(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OntologiaError as error:
        print(f"onto: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="onto", description="Tools for Ontologia datastores.")
    parser.set_defaults(act=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    migrations = commands.add_parser(
        "migrations", help="print the SQL that creates and upgrades a PostgreSQL datastore"
    )
    migrations.add_argument("--schema", default="ontologia", help="default: %(default)s")
    migrations.add_argument(
        "--from", dest="start", type=int, default=1, metavar="N", help="leave out those before N"
    )
    migrations.set_defaults(act=_migrations)
    return parser


def _migrations(options: argparse.Namespace) -> None:
    from ontologia.storage.postgres_schema import migrations  # needs the extra

    for number, script in enumerate(migrations(options.schema), 1):
        if number >= options.start:
            print(f"-- migration {number}\nBEGIN;\n{script}COMMIT;\n")
