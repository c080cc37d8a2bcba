"""Lines for the operator, on standard error: of the broker and of the processes beside it.

The format ``text`` is for people. The format ``json`` writes each line as one JSON object: ``time``, ``level``, ``event``,
``message``, then the fields of the line (``log_events.py``). A process hands its format on to its children by a variable of their
environment.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

from app.core.log_events import Event, Field, Level, Line

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)
FORMAT_VARIABLE: Final = "FIRN_PROCESS_LOG_FORMAT"
"""The variable by which a process hands its format on. ``FIRN_LOG_FORMAT`` is the setting of a broker."""
OWN_MODULES: Final = frozenset((__name__, "app.core.faults", "app.core.log_events"))
"""Modules that pass lines on."""


def log_line(text: str) -> None:
    """One line for the operator, on standard error with the time, in one write so that lines of processes do not mix."""
    if in_json():
        if not isinstance(text, Line):
            text = Event.LOG.line(text, module=_caller())
        now = datetime.now(UTC)  # noqa: TID251 - the time of the machine, as in text; no decision depends on it
        _write(json_line(text, now))
        return
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    _write(f"{stamp}Z {one_line(text)}")


def announce(line: Line) -> None:
    """As ``log_line``. In text it has no time, because it is the last or first line for a person who started the process."""
    if in_json():
        log_line(line)
        return
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def log_exception(error: BaseException) -> None:
    """Where an error was raised, on standard error. In JSON it is one line."""
    if in_json():
        log_line(Event.INTERNAL_ERROR.line(f"{type(error).__name__}: {error}", exception=_told(error)))
    else:
        traceback.print_exception(error)


def json_line(line: Line, now: datetime) -> str:
    """``line`` as JSON without line ends, in ASCII. ``now`` is in UTC. A field never hides time, level, event or message."""
    head: dict[str, Field] = {
        "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": line.level,
        "event": line.event.label,
        "message": str(line),
    }
    return json.dumps({**head, **{name: value for name, value in line.fields.items() if name not in head}})


def one_line(text: str) -> str:
    """``text`` as it is safe on a terminal: peers' names in it end no line and move no cursor."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text.replace("\n", " ")
    )


# --- the format -------------------------------------------------------------------------------------------------------


def in_json() -> bool:
    """Whether this process writes JSON."""
    return os.environ.get(FORMAT_VARIABLE) == JSON


def use_format(name: str) -> None:
    """Write lines of this process, and of its future children, in this format."""
    if name == JSON:
        os.environ[FORMAT_VARIABLE] = name
    else:
        os.environ.pop(FORMAT_VARIABLE, None)
    follow_format()


def follow_format() -> None:
    """Take the format of the parent: in JSON, log records of libraries, warnings and unexpected errors are JSON too."""
    if in_json():
        logging.captureWarnings(True)
        threading.excepthook = _thread_crashed
        logging.basicConfig(handlers=[_JsonLog()], level=logging.WARNING, force=True)
        sys.excepthook = _crashed


class _JsonLog(logging.Handler):
    """Log records of libraries as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Field] = {"module": record.name}
        try:
            text = record.getMessage()
        except Exception as error:  # noqa: BLE001 # logging's contract: a wrong call of it raises nothing in the library
            fields["exception"] = _told(error)
            log_line(Line.of(f"a log record of {record.name} has wrong arguments", Event.LOG, Level.ERROR, fields))
            return
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = _told(record.exc_info[1])
        level = Level.ERROR if record.levelno >= logging.ERROR else Level.WARNING
        log_line(Line.of(text, Event.LOG, level, fields))


def _crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log_line(
        Event.PROCESS_CRASHED.line(
            f"this should not happen, please report it: {kind.__name__}: {error}", exception=_told(error)
        )
    )


def _thread_crashed(ended: threading.ExceptHookArgs) -> None:
    error = ended.exc_value
    if error is None or isinstance(error, SystemExit):
        return  # as Python's own hook: the thread asked for its end
    name = "a thread" if ended.thread is None else f"thread {ended.thread.name}"
    log_line(Event.INTERNAL_ERROR.line(f"{name} ended by {type(error).__name__}: {error}", exception=_told(error)))


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _caller() -> str:
    """The module whose line it is."""
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] in OWN_MODULES and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


def _write(line: str) -> None:
    with suppress(OSError):  # the reader has gone or its disk is full: the work goes on without its log
        os.write(sys.stderr.fileno(), f"{line}\n".encode(errors="backslashreplace"))
