"""Says where Firn runs on a system that is not Linux: in a container.

Tests: ``tests/cli/test_other_systems.py``.
"""

from __future__ import annotations

from typing import Final

SYSTEMS: Final = {"darwin": "macOS", "win32": "Windows", "cygwin": "Windows"}
"""By ``sys.platform``; other systems have no name of their own here."""


def why_not_here(platform: str) -> str | None:
    """The sentence for a system on which Firn does not run; None on Linux.

    ``platform`` is ``sys.platform``.
    """
    if platform == "linux":
        return None
    return (
        f"Firn runs on Linux, and this is {SYSTEMS.get(platform, platform)}: run its container, as README.md says under"
        " 'Container' (`docker run … firn`)."
    )
