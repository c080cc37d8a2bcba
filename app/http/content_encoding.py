"""Content-Encoding of request bodies (RFC 9110, 8.4): none, or gzip (RFC 1952). Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from app.core.errors import ProtocolError

PIECE_BYTES_MAX: Final = 64 * 1024
"""So much at most of a body is decompressed in one step: a kilobyte may become a megabyte."""
_GZIP: Final = 16 + zlib.MAX_WBITS


class Decoder(Protocol):
    """Undoes the encoding of one body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that ``data`` completes, each of at most ``PIECE_BYTES_MAX`` bytes where it was compressed. A piece may be
        empty: the caller may give way to others between any two. Raises: ProtocolError."""
        ...

    def end(self) -> None:
        """The body has ended. Raises: ProtocolError if its encoding has not."""
        ...


class Identity:
    """A body that is sent as it is."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def end(self) -> None:
        pass


class Gunzip:
    """A body in gzip, which may have several members one after the other."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        self._at_boundary = False
        """Whether a member has just ended, so that the body may end here."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP)
            while True:
                try:
                    piece = self._member.decompress(data, PIECE_BYTES_MAX)
                except zlib.error:
                    raise ProtocolError("The body is not valid gzip, which its Content-Encoding says.") from None
                data = self._member.unconsumed_tail
                yield piece
                if self._member.eof or (not data and len(piece) < PIECE_BYTES_MAX):
                    break
            data = self._member.unused_data if self._member.eof else b""
            self._at_boundary = self._member.eof

    def end(self) -> None:
        if not self._at_boundary:
            raise ProtocolError("The body ends in the middle of its gzip data.")


def decoder_for(encodings: Iterable[str]) -> Decoder | None:
    """The decoder for the values of a request's Content-Encoding headers; None if they name one that is not served."""
    named = [name.strip().lower() for value in encodings for name in value.split(",")]
    match [name for name in named if name not in ("", "identity")]:
        case []:
            return Identity()
        case ["gzip"] | ["x-gzip"]:
            return Gunzip()
        case _:
            return None
