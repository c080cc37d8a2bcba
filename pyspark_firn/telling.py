"""How an error looks to Spark's user.

Spark prints the traceback of each exception of a data source, wraps it, and prints a stack of Java behind it. An error of
Firn's tree is a sentence with the fault and the repair. Its place in Firn's code is no help to a user, and hides the sentence.
"""

from __future__ import annotations

import logging
from contextlib import ContextDecorator
from types import TracebackType

_logger = logging.getLogger("pyspark_firn")


class _Plainly(ContextDecorator):
    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from app.core.errors import FirnError  # Not before something of Firn has run: see ``shadowing.py``.

        if isinstance(error, FirnError):
            _logger.debug("%s", error, exc_info=error)
            raise error.with_traceback(None) from None


def plainly() -> _Plainly:
    """For a method that Spark calls, or a part of one: errors of Firn's tree leave it without the frames that they came through.

    Those are logged at level DEBUG. Other errors are bugs, and keep theirs.
    """
    return _Plainly()
