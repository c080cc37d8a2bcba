"""Errors about a damaged or missing object: they name the object and the repair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.core.errors import CorruptionError, clause
from app.objectstore.api import ObjectMissing
from app.tiering.store.segment_format import FutureFormat
from pyspark_firn.losses import DataLoss

_MEND: Final = "bring the object back from a copy, or leave its offsets out; `firn verify` tells what else is damaged"


class ObjectDamaged(CorruptionError):
    """Its text names the object, the damage and the repair."""


def missing(key: str) -> ObjectDamaged:
    """For an object that the manifest names and that is not there."""
    return ObjectDamaged(f"{key} is gone, although the manifest names it: {_MEND}.")


@contextmanager
def naming_the_mend() -> Iterator[None]:
    """For reads of an object whose errors name it. Raises: FutureFormat, ObjectDamaged; other errors pass through."""
    try:
        yield
    except (DataLoss, FutureFormat, ObjectDamaged):
        raise  # Their sentences name the repair already.
    except CorruptionError as error:
        raise ObjectDamaged(f"{str(error).removesuffix('.')}: {_MEND}.") from None


@contextmanager
def planned_read(key: str) -> Iterator[None]:
    """For reads, while planning, of object ``key``, which a manifest has just named. Raises: as ``naming_the_mend``."""
    with naming_the_mend():
        try:
            yield
        except ObjectMissing:
            raise missing(key) from None
        except CorruptionError as error:
            raise error if key in str(error) else CorruptionError(f"{key}: {clause(error)}.") from None
