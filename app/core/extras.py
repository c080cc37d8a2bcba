"""How to install an optional part, told in the words that work where this program runs.

Tests: ``tests/test_distribution.py``.
"""

from __future__ import annotations

from pathlib import Path


def install_hint(extra: str) -> str:
    """A command that installs an extra: from the checkout that runs, if it is one, else by the name of the distribution."""
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install '{checkout}[{extra}]'"
    return f"pip install 'firn-broker[{extra}]'"
