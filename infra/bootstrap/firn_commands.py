"""Runs commands of ``firn`` one after another in one process: a boot pays for their imports once, while it waits for its volume.

    <release>/bin/python -sE firn_commands.py

Standard input: a JSON array of arguments on each line. Standard output: for each a line with a JSON object of ``code``, ``out`` and
``error``, which are what the command alone would give. It ends with its input. It runs with the release's own Python; the boot
itself imports nothing of the release.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from typing import Final

IMPORTED: Final = (
    "aiobotocore.session",
    "app.broker.start.running",
    "app.cli.cluster",
    "app.cli.doctor",
    "app.metadata.view.follower",
    "app.objectstore.check",
    "app.objectstore.s3",
    "app.settings",
)
"""What `firn cluster place` and `firn doctor` import, before anybody asks for them."""


def answer(line: str) -> str:
    """Run one command."""
    from app.cli import main

    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(json.loads(line))
        except Exception as failure:  # noqa: BLE001 - a mistake of the command, as its own process would tell it
            code = 1
            error.write(f"{type(failure).__name__}: {failure}\n")
    return json.dumps({"code": code, "out": out.getvalue(), "error": error.getvalue()})


def main() -> int:
    for module in IMPORTED:
        importlib.import_module(module)
    for line in sys.stdin:
        sys.stdout.write(answer(line) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
