"""Offsets that were to be read and are gone: an error, or a warning and a count, as ``failOnDataLoss`` says."""

from __future__ import annotations

import logging
from typing import Final

from app.core.errors import CorruptionError

OPTION_MEND: Final = "write failOnDataLoss=false to go on without them"
JOB_MEND: Final = "retention or a deletion was quicker than the job"
"""Jobs have no such option: their output has no gaps."""

_logger = logging.getLogger("pyspark_firn")


class DataLoss(CorruptionError):
    """Offsets that a read is to give, or that a checkpoint has promised, are gone."""


class Losses:
    """The offsets that one planning or one task found to be gone."""

    def __init__(self, *, fail: bool, mend: str = OPTION_MEND) -> None:
        """``fail``: whether a loss is an error, which ends with ``mend``."""
        self.fail = fail
        self._mend = mend
        self.offsets = 0
        """How many were passed over; not all of them need have held records."""

    def report(self, what: str, offsets: int | None) -> None:
        """Count offsets that are gone, None if their number is unknown; ``what`` is a sentence without its full stop.

        Raises: DataLoss.
        """
        if self.fail:
            raise DataLoss(f"{what}; {self._mend}.")
        if offsets is None:
            _logger.warning("%s (nobody knows how many offsets).", what)
            return
        self.offsets += offsets
        _logger.warning("%s (%d offsets).", what, offsets)
