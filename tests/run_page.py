"""Execute the Python blocks of one page, in order, as one module.

Called by test_docs.py in a process of its own. Reads a JSON object from stdin
(``file``, ``blocks``: pairs of line number and code) and writes a JSON list with
what each block printed to stdout. A block that raises ends the run with its traceback,
which shows lines of the page.
"""

import contextlib
import io
import json
import sys
import types


def main() -> None:
    page = json.load(sys.stdin)
    # Classes look up their annotations in the module that they name as their own.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    printed: list[str] = []
    for line, source in page["blocks"]:
        code = compile("\n" * (line - 1) + source, page["file"], "exec")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(code, module.__dict__)
        printed.append(output.getvalue())
    json.dump(printed, sys.stdout)


if __name__ == "__main__":
    main()
