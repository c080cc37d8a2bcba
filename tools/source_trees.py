"""The syntax trees of source files, for checks that look at many.

Tests: ``tests/test_error_sentences.py``, ``tests/test_docstrings.py``.
"""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """The tree of a file, parsed once in a process. Callers share it and must not change it. Raises: OSError, SyntaxError."""
    return parse(path)


def parse(path: Path) -> ast.Module:
    """The tree of a file, for the caller alone. Raises: OSError, SyntaxError.

    A tree has thousands of objects and no garbage. With the collector at work, parsing the whole program takes three times as long.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        if was_enabled:
            gc.enable()
