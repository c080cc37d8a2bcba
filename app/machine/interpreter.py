"""How another process of Python is started that is to find the same modules as this one.

With ``-m`` Python looks for modules in the current folder first, and a user's ``app.py`` there is not Firn's package ``app``.
So children get ``-P``, which leaves the current folder out, and the whole of this process's ``sys.path``.

Tests: ``tests/cli/test_foreign_app.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs ``module`` with this interpreter; its environment is ``python_environment``."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment() -> dict[str, str]:
    """This process's environment, for a child that looks for modules in the same places as this process, in the same order."""
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    return {**os.environ, "PYTHONPATH": places, "PYTHONSAFEPATH": "1"}


@contextmanager
def environment_for_children() -> Iterator[None]:
    """``python_environment`` as this process's own while the block runs, for a library that starts processes by itself."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}
    os.environ.update(python_environment())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
