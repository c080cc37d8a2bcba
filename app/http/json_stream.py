"""Cuts a stream of JSON objects into objects. White space between them is allowed and not needed. Pure.

Only structure is looked at (strings, braces, brackets). The decoder finds out whether an object is valid JSON. So one bad
record ends the stream only if nobody can tell where the next one begins.
"""

from __future__ import annotations

import re
from typing import Final

from app.errors import LimitExceeded, ProtocolError

_STRUCTURE: Final = re.compile(rb'["{}\[\]]')
_STRING_REST: Final = re.compile(rb'(?:[^"\\]+|\\.)*', re.DOTALL)
_BLANK: Final = re.compile(rb"[ \t\r\n\x1e]*")
"""White space of JSON, and the record separator of RFC 7464."""


class JsonSplitter:
    """Takes bytes and gives whole objects. Its work grows with the bytes fed, not with how they are cut."""

    def __init__(self, object_bytes_max: int) -> None:
        self._object_bytes_max = object_bytes_max
        self._buffer = bytearray()
        self._scanned = 0
        self._depth = 0
        self._in_string = False
        self.taken: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The objects that ``data`` completes, in order, each as it was written.

        Raises: ProtocolError where something else than an object begins; LimitExceeded for an object of more than
        ``object_bytes_max``. After an error the splitter is of no more use; objects before it are in ``taken``.
        """
        self.taken = []
        buffer = self._buffer
        buffer += data
        start = 0
        position = self._scanned
        while True:
            if self._in_string:
                position = _STRING_REST.match(buffer, position).end()  # type: ignore[union-attr]
                if position == len(buffer) or buffer[position] != 0x22:
                    break  # The string goes on, perhaps in the middle of an escape.
                self._in_string = False
                position += 1
            if not self._depth:
                start = position = _BLANK.match(buffer, position).end()  # type: ignore[union-attr]
                if position == len(buffer):
                    break
                if buffer[position] != 0x7B:
                    found = bytes(buffer[position : position + 1])
                    raise ProtocolError(
                        f"A record must be a JSON object, which begins with '{{' and not with {found!r}."
                    )
            found_next = _STRUCTURE.search(buffer, position)
            if found_next is None:
                position = len(buffer)
                break
            position = found_next.end()
            match found_next[0]:
                case b'"':
                    self._in_string = True
                case b"{" | b"[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if not self._depth:
                        self._check(position - start)
                        self.taken.append(bytes(buffer[start:position]))
                        start = position
        del buffer[:start]
        self._scanned = position - start
        self._check(len(buffer))
        return self.taken

    def end(self) -> None:
        """The stream has ended. Raises: ProtocolError if it ends within an object."""
        if self._depth:
            raise ProtocolError(
                f"The body ends in the middle of a record, {len(self._buffer)} bytes after its beginning."
            )

    def _check(self, size: int) -> None:
        if size > self._object_bytes_max:
            raise LimitExceeded(f"A record is larger than {self._object_bytes_max} bytes.")
