"""Firn's modules live in a package named ``app``. So may a user's own, and whichever comes first on ``sys.path`` is found.

Who enters here is told so in one sentence, before the imports below fail with one that nobody understands. This module imports
nothing of Firn.
"""

from __future__ import annotations


class FirnAppShadowed(ImportError):
    """Another package is in the place of Firn's own."""


def require_firn() -> None:
    """Raises: FirnAppShadowed, if a package of the user's is found under the name of Firn's ``app``."""
    import app

    if not (app.__doc__ or "").startswith("Firn:"):
        raise FirnAppShadowed(
            f"The package 'app' is {getattr(app, '__file__', None) or list(app.__path__)}, not Firn's: Firn's modules live in a"
            " package of that name, so rename yours, or put it behind site-packages on sys.path."
        )
