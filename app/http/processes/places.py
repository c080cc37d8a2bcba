"""Limits on requests that pass between the processes of a port. Pure.

Callers of the console's pages have not logged in to a broker, so their requests have a smaller share of their own: strangers who
send slowly cannot take the places of requests for consumer instances.

Tests: ``tests/http/processes_of_a_port/test_places.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.http.errors import RestError

PASSED_MAX: Final = 512
"""Requests that a worker passes on at a time, and that it takes from all others together. Each has a connection."""
CONSOLE_PASSED_MAX: Final = 64
"""The same for pages of the console, besides."""
DESCRIPTORS: Final = 2 * (PASSED_MAX + CONSOLE_PASSED_MAX)
"""Of connections in both directions."""


class Places:
    """The requests of one direction."""

    def __init__(self, sentence: str) -> None:
        """``sentence``: says why a request is refused."""
        self._sentence = sentence
        self._taken = {False: 0, True: 0}

    @contextmanager
    def place(self, *, console: bool) -> Iterator[None]:
        """Take a place for a request. Raises: RestError 503 if none is left."""
        if self._taken[console] >= (CONSOLE_PASSED_MAX if console else PASSED_MAX):
            raise RestError(503, self._sentence, error_code=50302)
        self._taken[console] += 1
        try:
            yield
        finally:
            self._taken[console] -= 1
