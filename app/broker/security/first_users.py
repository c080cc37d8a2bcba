"""The first users of a cluster: they must be known before a client can log in to add users.

`firn user add --offline` leaves them in the data directory of a broker that does not run. The broker makes them when it serves, and
removes the file. The file has SCRAM credentials, not passwords.

Tests: ``tests/broker/test_secured_listeners.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from app.configs import BrokerConfig
from app.core.errors import ConfigError, ErrorCode, FirnError, RequestRejected, clause
from app.core.log_events import Event
from app.core.seams import BlockingPool
from app.handlers.base.context import Context
from app.machine.files import FileSystem, read_file, replace_file, storage_error
from app.metadata.changes.scram_changes import ScramAnswer, ScramAsked
from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL
from app.security.noting import change
from app.security.scram import SECRET_BYTES, ScramCredential

COMMAND: Final = "firn user add --offline"
FILE: Final = "first-users"
OWN_DIRECTORY: Final = ".firn"
VERSION: Final = 1


class FirstUser(msgspec.Struct, frozen=True, array_like=True):
    """One credential."""

    name: str
    mechanism: int
    credential: ScramCredential


class FirstUsers(msgspec.Struct, frozen=True, array_like=True):
    """The file, as MessagePack."""

    version: int
    users: list[FirstUser]


def read_first_users(fs: FileSystem, data_dir: str) -> list[FirstUser]:
    """Raises: OSError, ConfigError."""
    path = f"{data_dir}/{OWN_DIRECTORY}/{FILE}"
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        return []
    try:
        found = msgspec.msgpack.decode(data, type=FirstUsers)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} cannot be read ({clause(error)}): remove it, and add the users again.") from None
    if found.version != VERSION:
        raise ConfigError(f"{path} is of a newer version of Firn.")
    return found.users


def write_first_users(fs: FileSystem, data_dir: str, users: list[FirstUser]) -> str:
    """Returns: the path. Raises: OSError."""
    directory = f"{data_dir}/{OWN_DIRECTORY}"
    fs.make_dirs(directory)
    path = f"{directory}/{FILE}"
    replace_file(fs, path, msgspec.msgpack.encode(FirstUsers(VERSION, users)), durable=True)
    Path(path).chmod(0o600)
    return path


def are_left(fs: FileSystem, data_dir: str) -> bool:
    """Whether there are users to be made. Raises: OSError."""
    return fs.exists(f"{data_dir}/{OWN_DIRECTORY}/{FILE}")


async def _made(context: Context, asked: Sequence[ScramAsked]) -> Sequence[ScramAnswer]:
    """Raises: FirnError."""
    try:
        return await context.controller.make_first_users(asked, context.random_bytes(SECRET_BYTES))
    except RequestRejected as error:
        if error.code is not ErrorCode.NOT_CONTROLLER:
            raise
        # The controller has changed. To make the same users twice does no harm.
        return await context.controller.make_first_users(asked, context.random_bytes(SECRET_BYTES))


async def add_first_users(
    config: BrokerConfig, context: Context, *, fs: FileSystem, pool: BlockingPool, log_line: Callable[[str], None]
) -> None:
    """Make them, if there are any. Raises: ConfigError, StorageUnavailable."""
    try:
        users = await pool.run(lambda: read_first_users(fs, config.data_dir))
    except OSError as error:
        raise storage_error(error, "Cannot read the first users") from error
    if users:
        asked = [ScramAsked(one.name, one.mechanism, False, credential=one.credential) for one in users]
        try:
            answers = await _made(context, asked)
        except FirnError as error:
            log_line(
                Event.USERS_NOT_MADE.line(
                    f"the users of `firn user add --offline` were not made: {error} The next start tries it again; if that is not"
                    f" wanted, remove {config.data_dir}/{OWN_DIRECTORY}/{FILE}"
                )
            )
            return
        for answer in answers:
            if context.audit is not None:
                code = int(answer.code)
                context.audit.changed_by_broker(COMMAND, [change("USER", answer.user, "SET_USER", code)])
            said = "was made" if answer.code is ErrorCode.NONE else f"was not made: {answer.sentence}"
            log_line(
                Event.USERS_MADE.line(
                    f"the user {answer.user} of `firn user add --offline` {said}", user=str(answer.user)
                )
            )
        await pool.run(lambda: fs.unlink(f"{config.data_dir}/{OWN_DIRECTORY}/{FILE}"))
    if config.needs_users and context.image.level < SECURITY_LEVEL:
        log_line(
            Event.LOGIN_IMPOSSIBLE.line(
                f"nobody can log in by SCRAM yet: users need {LEVEL_FEATURE}={SECURITY_LEVEL}, and it is {context.image.level}. "
                f"Raise it with `firn cluster features --upgrade {LEVEL_FEATURE}={SECURITY_LEVEL}` over a listener that needs no "
                "login"
            )
        )
    elif config.needs_users and not context.image.scram_users:
        log_line(
            Event.LOGIN_IMPOSSIBLE.line(
                "nobody can log in by SCRAM yet: make the first user with `firn user add --offline` while the broker is stopped"
            )
        )
