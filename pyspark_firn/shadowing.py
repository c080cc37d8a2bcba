"""Firn's modules live in a package named ``app``. So may a user's own, and whichever comes first on ``sys.path`` is found.

Who enters here is told so in one sentence, before the imports below fail with one that nobody understands: in the user's program,
in the processes in which Spark plans, and in tasks, whose path may be another. This module imports nothing of Firn.
"""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import cast

from pyspark import cloudpickle


class FirnAppShadowed(ImportError):
    """Another package is in the place of Firn's own."""


def require_firn() -> None:
    """Raises: FirnAppShadowed, if something of the user's is found under the name of Firn's ``app``.

    It is looked for and not imported: it may be the user's program itself, as in ``spark-submit app.py``.
    """
    found = importlib.util.find_spec("app")
    if found is None:
        return  # The import below says so.
    ours = Path(__file__).parent.with_name("app")
    if found.origin is None or Path(found.origin).parent != ours:
        place = found.origin or ", ".join(found.submodule_search_locations or ())
        raise FirnAppShadowed(
            f"The package 'app' is {place}, not Firn's: Firn's modules live in a package of that name, so rename yours, or put it"
            " behind site-packages on sys.path."
        )


class Shipped:
    """For what Spark sends to other processes: it is opened there only if Firn's ``app`` is found there.

    Its class and its state are of modules that import ``app``, and unpickling imports them.
    """

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        # By Spark's pickler, for subclasses that a user's program defines.
        data: bytes = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return open_shipped, (data,)


def open_shipped(data: bytes) -> object:
    """Inverse of ``Shipped.__reduce__``. Raises: FirnAppShadowed."""
    require_firn()
    kind, state = cast(tuple[type, dict[str, object]], pickle.loads(data))
    made: object = object.__new__(kind)
    made.__dict__.update(state)
    return made
