"""Firn's modules live in a package named ``app``. So may a user's own, and whichever comes first on ``sys.path`` is found.

The error says so in one sentence, before the imports below fail with an obscure one: in the user's program,
in the processes in which Spark plans, and in tasks, whose path may be another. This module imports nothing of Firn's ``app``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import cast

from pyspark import cloudpickle

from firn_broker.foreign_app import foreign_app


class FirnAppShadowed(ImportError):
    """Another package is in the place of Firn's own."""


def require_firn() -> None:
    """Raises: FirnAppShadowed, if something of the user's is found under the name of Firn's ``app``.

    It is looked for and not imported: it may be the user's program itself, as in ``spark-submit app.py``.
    """
    place = foreign_app()
    if place is not None:
        raise FirnAppShadowed(
            f"The package 'app' is {place}, not Firn's: Firn's modules live in a package of that name, so rename yours, or put it"
            " behind site-packages on sys.path; PYTHONSAFEPATH=1 keeps Python from looking in the current folder."
        )


class Shipped:
    """For objects that Spark sends to other processes: they are unpickled there only if Firn's ``app`` is found there.

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
