"""The command ``firn``.

Every command is a thin function that reads its flags, asks ``app.client`` or the object store, and prints: tables for
people, ``--json`` for machines. Imports that cost time are made inside the commands, so that ``firn serve`` waits for none
of the others.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 stopped by Ctrl-C, 143 and 129 for a job that SIGTERM or SIGHUP ended;
``firn drain`` has 3 and ``firn cluster place`` 4. An error is one sentence on standard error that says how to mend it;
``FIRN_DEBUG=1`` adds where it came from.

- ``commands``: the tree of commands; ``session``: shared flags and the connection to a cluster; ``output``: tables and errors
- ``serve``, ``banner``, ``background``, ``http``, ``drain``: processes
- ``topic``, ``produce``, ``consume``, ``group``: topics, records and groups; ``schema``, ``decoding``: schemas of records
- ``cluster``, ``moving``: brokers and moves
- ``tier``, ``verify``, ``store``, ``stored_manifest``, ``stored_topic``: the object store
- ``acl``, ``user``, ``token``, ``tls``, ``quota``: access
- ``debug``, ``redaction``: an archive for a person who helps, and the secrets that are taken out of it
- ``doctor``, ``cost``, ``iam``, ``job``, ``demo_brokers``: checks, costs, policies, jobs, the demo of several brokers
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from app.core.errors import ConfigError, ErrorCode, FencedError, FirnError, RequestRejected
from app.core.log_events import Event
from app.core.notices import in_json, log_line

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130

_USERS_FAULT: Final = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REQUEST,
    }
)
"""Codes by which a broker refuses an invalid request. The command exits as it does for a wrong flag."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``firn`` with these arguments (None: the process's own) and return its exit code."""
    sys.excepthook = _unexpected
    try:
        from app.cli.commands import ClickError, Stopped, UsageError, application
    except KeyboardInterrupt:
        return INTERRUPTED
    given = sys.argv[1:] if arguments is None else arguments
    failed = Event.HTTP_FAILED if list(given[:1]) == ["http"] else Event.BROKER_FAILED
    try:
        command = application(given)
        result = command.main(args=arguments, prog_name="firn", standalone_mode=False)
    except UsageError as error:
        return _wrong_usage(error)
    except ClickError as error:
        return _complain(str(error), WRONG_USAGE)
    except ConfigError as error:
        return _complain(str(error), WRONG_USAGE, failed)
    except RequestRejected as error:
        return _complain(str(error), WRONG_USAGE if error.code in _USERS_FAULT else FAILED, failed)
    except FirnError as error:
        return _complain(str(error), FAILED, failed)
    except (KeyboardInterrupt, Stopped):
        return INTERRUPTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{(error.strerror or str(error)).rstrip('.').lower()}.", FAILED, failed)
    return result if isinstance(result, int) else 0


def _wrong_usage(error: Exception) -> int:
    """One sentence, and where help is. ``firn topic`` alone is answered with its help."""
    context = getattr(error, "ctx", None)
    text = getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{text}\n" if text else "")
        return WRONG_USAGE
    _complain(text, WRONG_USAGE)
    if context is not None:
        sys.stderr.write(f"`{context.command_path} --help` lists the commands and options.\n")
    return WRONG_USAGE


def _complain(sentence: str, code: int, failed: Event = Event.BROKER_FAILED) -> int:
    """``failed``: the event if the command was a server."""
    if os.environ.get("FIRN_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    end = "" if sentence.endswith((".", "?", "!")) else "."
    if in_json():
        event = Event.BROKER_REPLACED if isinstance(sys.exception(), FencedError) else failed
        log_line(event.line(f"{sentence}{end}", exit_code=code))
    else:
        sys.stderr.write(f"firn: {sentence}{end}\n")
    return code


def _unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Our own bug: still no traceback unless it was asked for."""
    if os.environ.get("FIRN_DEBUG") == "1":
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write(
        f"firn: this should not happen: {kind.__name__}: {error}. Set FIRN_DEBUG=1 to see where, and please report it.\n"
    )
