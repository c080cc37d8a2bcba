"""Finds out whether the package ``app`` that Python would import is Firn's, without an import of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

FIRST_WORDS: Final = b'"""Firn: '
"""How Firn's ``app/__init__.py`` begins. Another distribution with a package ``app`` overwrites that file."""


def foreign_app() -> str | None:
    """Where a package or program ``app`` lies that is found in place of Firn's; None if Firn's is found, or none at all."""
    found = importlib.util.find_spec("app")
    if found is None:
        return None
    ours = Path(__file__).parent.with_name("app")
    if found.origin is None or Path(found.origin).parent != ours:
        return found.origin or ", ".join(found.submodule_search_locations or ())
    try:
        begins = Path(found.origin).read_bytes()[: len(FIRST_WORDS)]
    except OSError:
        return None  # It lies in an archive, as Spark's --py-files are.
    return None if begins == FIRST_WORDS else found.origin
