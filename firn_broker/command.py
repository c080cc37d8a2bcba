"""The command ``firn``: its console script and ``python -m firn_broker`` begin here.

On a system that is not Linux the command ends with one sentence, before any import of a module that only Linux has. A foreign
module ``app`` that precedes Firn's own on ``sys.path`` is named in one sentence and not run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from firn_broker.foreign_app import foreign_app
from firn_broker.other_systems import why_not_here

WRONG_USAGE: Final = 2


def main() -> int:
    """Run ``firn`` with the process's arguments and return its exit code."""
    elsewhere = why_not_here(sys.platform)
    if elsewhere is not None:
        sys.stderr.write(f"firn: {elsewhere}\n")
        return WRONG_USAGE
    place = foreign_app()
    if place is not None:
        sys.stderr.write(
            f"firn: The package 'app' is {place}, and Firn's modules live in a package of that name. {_mend(place)}\n"
        )
        return WRONG_USAGE
    try:
        from app.cli import main as run
    except KeyboardInterrupt:
        return 130
    return run()


def _mend(place: str) -> str:
    """The advice about a foreign ``app``, by the way in which Python found it."""
    folders = {str(parent) for parent in Path(place).absolute().parents}
    variable = os.environ.get("PYTHONPATH", "")
    named = [entry for entry in variable.split(os.pathsep) if os.path.abspath(entry) in folders] if variable else []
    if named:
        return f"Take {named[0]!r} out of PYTHONPATH, or run `env -u PYTHONPATH firn …`."
    if os.getcwd() in folders and not sys.flags.safe_path:
        return "Run `firn …` or `python -P -m firn_broker …`, which look for no modules in the current folder."
    return "Install firn-broker into a virtual environment of its own, for example with `pipx install firn-broker`."
