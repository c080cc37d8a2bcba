"""Lines for the operator, on standard error: of the broker and of the processes beside it."""

from __future__ import annotations

import os
import sys
import time


def log_line(text: str) -> None:
    """One line for the operator, on standard error with the time, in one write so that lines of processes do not mix."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    os.write(sys.stderr.fileno(), f"{stamp}Z {one_line(text)}\n".encode(errors="backslashreplace"))


def one_line(text: str) -> str:
    """``text`` as it is safe on a terminal: peers' names in it end no line and move no cursor."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text.replace("\n", " ")
    )
