"""Cuts a stream of JSON objects, or an array of them, into objects. Pure.

White space between the objects of a stream is allowed and not needed. A byte order mark before the first one is skipped
(RFC 8259, 8.1).

Only structure is looked at (strings, braces, brackets). The decoder finds out whether an object is valid JSON. So one bad
record ends the stream only if the start of the next one cannot be found.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

import msgspec

from app.core.errors import LimitExceeded, ProtocolError
from app.core.limits import KIB

_STRUCTURE: Final = re.compile(rb'["{}\[\]]')
_STRING_REST: Final = re.compile(rb'(?:[^"\\]+|\\.)*', re.DOTALL)
_BLANK: Final = re.compile(rb"[ \t\r\n\x1e]*")
"""White space of JSON, and the record separator of RFC 7464."""
WHOLE_DEPTH_MAX: Final = 5


def _whole_object(depth: int) -> bytes:
    """A pattern of an object with at most ``depth`` levels, as the splitter sees it: brackets of both kinds are one kind. Its parts
    do not backtrack, so it needs one pass."""
    inside = rb'[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+"'
    level = rb"(?:%b)*+" % inside
    for _ in range(depth - 1):
        level = rb"(?:%b|[{\[]%b[}\]])*+" % (inside, level)
    return rb"\{%b[}\]]" % level


_WHOLE_OBJECT: Final = re.compile(_whole_object(WHOLE_DEPTH_MAX), re.DOTALL)
"""An object that lies whole in the buffer. Others are read piece by piece, with the same result."""
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
"""Holds bytes to the grammar of JSON."""
_BETWEEN_MAX: Final = 8
"""Bytes between two objects that are worth a search for the next such place."""
ALIKE_BYTES_MAX: Final = 64 * KIB
"""Of an object that is compared with JSON's grammar at once."""


class JsonSplitter:
    """Takes bytes and gives whole objects. Its work grows with the bytes fed, not with how they are cut."""

    def __init__(self, object_bytes_max: int, *, separated: bool = False) -> None:
        """``separated``: the objects are those of an array, whose opening bracket was read before: commas stand between them, and
        ``]`` ends them."""
        self._object_bytes_max = object_bytes_max
        self._separated = separated
        self._comma_next = self._object_next = False
        self.rest: bytes | None = None
        """The bytes behind the end of the array, once it has ended."""
        self._begun = False
        self._buffer = bytearray()
        self._scanned = 0
        self._depth = 0
        self._in_string = False
        self._between = b""
        """The end of an object, the bytes between it and the next one, and the beginning of the next one, as they came last."""
        self.taken: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The objects that ``data`` completes, in order, each as it was written.

        Raises: ProtocolError where something else than an object begins; LimitExceeded for an object of more than
        ``object_bytes_max``. After an error the splitter is of no more use; objects before it are in ``taken``.
        """
        self.taken = []
        buffer = self._buffer
        buffer += data
        if not self._begun:
            if len(buffer) < len(codecs.BOM_UTF8) and codecs.BOM_UTF8.startswith(buffer):
                return self.taken
            self._begun = True
            if buffer.startswith(codecs.BOM_UTF8):
                del buffer[: len(codecs.BOM_UTF8)]
        start = 0
        position = self._scanned
        quick = learns = True
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
                if self._separated and self._is_between(buffer[position]):
                    if self.rest is not None:
                        self.rest = bytes(buffer[position + 1 :])
                        start = position = len(buffer)
                        break
                    start = position = position + 1
                    continue
                if buffer[position] != 0x7B:
                    found = bytes(buffer[position : position + 1])
                    raise ProtocolError(
                        f"A record must be a JSON object, which begins with '{{' and not with {found!r}."
                    )
                if quick and self._between:
                    start = position = self._take_alike(position)
                    quick = False  # where the bytes between two objects vary, each search may be in vain
                whole = _WHOLE_OBJECT.match(buffer, position)
                if whole is not None:
                    position = whole.end()
                    self._take(start, position)
                    start = position
                    if learns:
                        self._note_between(position)
                        learns = quick
                    continue
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
                        self._take(start, position)
                        start = position
        del buffer[:start]
        self._scanned = position - start
        self._check(len(buffer))
        return self.taken

    def end(self) -> None:
        """The stream has ended. Raises: ProtocolError if it ends within an object."""
        if self._depth or (self._buffer and not self._begun):
            raise ProtocolError(
                f"The body ends in the middle of a record, {len(self._buffer)} bytes after its beginning."
            )

    def _note_between(self, end: int) -> None:
        """Note what lies between an object that ends at ``end`` and the next one. It is used only once ``feed`` has passed it."""
        following = self._buffer.find(b"{", end, end + _BETWEEN_MAX)
        if following >= 0:
            self._between = bytes(self._buffer[end - 1 : following + 1])

    def _take_alike(self, start: int) -> int:
        """Take the objects from ``start`` on that are parted as the last ones were. Returns: the beginning of the next object.

        A place that looks like the end of an object may lie in a string. It is the end if the bytes up to it are JSON, since no
        object is the beginning of another one.
        """
        buffer, between, taken = self._buffer, self._between, self.taken
        bytes_max = min(self._object_bytes_max, ALIKE_BYTES_MAX)
        step = len(between) - 1
        while (last := buffer.find(between, start)) >= 0:
            if last + 1 - start > bytes_max:
                break
            found = bytes(buffer[start : last + 1])
            try:
                _VALUE.decode(found)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                break
            taken.append(found)
            start = last + step
        return start

    def _take(self, start: int, end: int) -> None:
        self._check(end - start)
        self.taken.append(bytes(self._buffer[start:end]))
        self._comma_next, self._object_next = True, False

    def _is_between(self, byte: int) -> bool:
        """Whether a byte behind an object of an array separates it from the next, or ends the array. Raises: ProtocolError."""
        if byte == 0x2C and self._comma_next:
            self._comma_next, self._object_next = False, True
            return True
        if byte == 0x5D and not self._object_next:
            self.rest = b""
            return True
        if self._comma_next:
            raise ProtocolError("A comma must stand between two entries, and ']' behind the last one.")
        return False

    def _check(self, size: int) -> None:
        if size > self._object_bytes_max:
            raise LimitExceeded(f"A record is larger than {self._object_bytes_max} bytes.")


_ENTRIES: Final = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"entries"[ \t\r\n]*:[ \t\r\n]*\[')
_ENTRIES_START_BYTES_MAX: Final = 1024
_ENTRIES_END: Final = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*")
_ENTRIES_FORM: Final = 'The body must be an object with one member: {"entries": […]}.'


class EntriesSplitter:
    """Cuts ``{"entries": [{…}, …]}`` into its entries while it arrives, so that too many of them end the reading early."""

    def __init__(self, entries_max: int, object_bytes_max: int) -> None:
        self._entries_max = entries_max
        self._start: bytearray | None = bytearray()
        self._objects = JsonSplitter(object_bytes_max, separated=True)
        self._end = bytearray()
        self.entries: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Raises: ProtocolError where the body has another form; LimitExceeded for too many entries, or one that is too large."""
        if self._start is not None:
            self._start += data
            start = self._start.removeprefix(codecs.BOM_UTF8)
            found = _ENTRIES.match(start)
            if found is None:
                if len(start) > _ENTRIES_START_BYTES_MAX:
                    raise ProtocolError(_ENTRIES_FORM)
                return
            data, self._start = bytes(start[found.end() :]), None
        if self._objects.rest is None:
            self.entries += self._objects.feed(data)
            if len(self.entries) > self._entries_max:
                raise LimitExceeded(f"A batch has at most {self._entries_max} entries.")
            data = self._objects.rest or b""
        self._end += data
        if len(self._end) > _ENTRIES_START_BYTES_MAX:
            raise ProtocolError(_ENTRIES_FORM)

    def end(self) -> None:
        """The body has ended. Raises: ProtocolError."""
        if self._start is not None or self._objects.rest is None or _ENTRIES_END.fullmatch(self._end) is None:
            raise ProtocolError(_ENTRIES_FORM)
