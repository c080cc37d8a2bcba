"""Limits on requests that pass between the processes of a port. Pure.

Callers of the console's pages have not logged in to a broker, so their requests have a smaller share of their own: strangers who
send slowly cannot take the places of requests for consumer instances. Streams of records last as long as their readers like, so
they have a part of that share, and leave the rest to pages.

Tests: ``tests/http/processes_of_a_port/test_places.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.http.errors import RestError

PASSED_MAX: Final = 512
"""Requests that a worker passes on at a time, and that it takes from all others together. Each has a connection."""
CONSOLE_PASSED_MAX: Final = 64
"""The same for pages of the console, besides."""
ENDLESS_PASSED_MAX: Final = CONSOLE_PASSED_MAX // 2
"""Of those, the requests that follow or export a partition."""
DESCRIPTORS: Final = 2 * (PASSED_MAX + CONSOLE_PASSED_MAX)
"""Of connections in both directions."""
TOO_MANY_STREAMS: Final = "Too many readers follow or export records. End one, or try again later."
_ENDLESS: Final = re.compile("/console/topics/[^/]+/(follow|export)")


def is_endless(path: str) -> bool:
    """Whether the response to a page's path, decoded, lasts as long as its reader likes."""
    return _ENDLESS.fullmatch(path) is not None


class Places:
    """The requests of one direction."""

    def __init__(self, sentence: str) -> None:
        """``sentence``: says why a request is refused."""
        self._sentence = sentence
        self._taken = {False: 0, True: 0}
        self._endless = 0

    @contextmanager
    def place(self, *, console: bool, path: str) -> Iterator[None]:
        """Take a place for a request. Raises: RestError 503 if none is left, 429 if other streams of records have all of theirs."""
        endless = console and is_endless(path)
        if endless and self._endless >= ENDLESS_PASSED_MAX:
            raise RestError(429, TOO_MANY_STREAMS, error_code=42901)
        if self._taken[console] >= (CONSOLE_PASSED_MAX if console else PASSED_MAX):
            raise RestError(503, self._sentence, error_code=50302)
        self._taken[console] += 1
        self._endless += endless
        try:
            yield
        finally:
            self._taken[console] -= 1
            self._endless -= endless
