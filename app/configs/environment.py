"""The environment variables that settings are given by.

Tests: ``tests/cli/test_settings.py``.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "FIRN_"
CLIENT_PREFIX: Final = "FIRN_CLIENT_"
"""Of settings of a client; ``PREFIX`` alone is of those of a broker."""


def environment_name(name: str, prefix: str = PREFIX) -> str:
    """The environment variable of a setting."""
    return prefix + name.removeprefix("firn.").replace(".", "_").upper()
