"""``firn user``: who may log in by SCRAM. Tests: ``tests/cli/test_commands.py``, ``tests/broker/test_unknown_users.py``."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, DataDir, Json, connected, run_async
from app.core.errors import ConfigError, ErrorCode, RequestRejected, clause

if TYPE_CHECKING:
    from app.security.scram import ScramMechanism

app = typer.Typer(help="Add, list and remove users who log in by SCRAM.", no_args_is_help=True, rich_markup_mode=None)

MECHANISM_DEFAULT: Final = "SCRAM-SHA-512"
ITERATIONS_DEFAULT: Final = 4096
PASSWORD_VARIABLE: Final = "FIRN_CLIENT_NEW_PASSWORD"
Mechanism = Annotated[
    str, typer.Option("--mechanism", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512, as clients are set.")
]


@app.callback()
def _family() -> None:
    """Add, list and remove users who log in by SCRAM."""


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    mechanism: Mechanism = MECHANISM_DEFAULT,
    iterations: Annotated[
        int,
        typer.Option("--iterations", min=4096, max=16_384, metavar="N", help="Hashes for each guess of the password."),
    ] = ITERATIONS_DEFAULT,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE", help="File whose first line is the password. [a question]"),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Before the first start: leave the user in --data-dir for a broker that is stopped."
        ),
    ] = False,
    data_dir: DataDir = None,
) -> int:
    """Add a user, or change a user's password.

    The password is asked for, or comes from --password-file, or from the environment variable FIRN_CLIENT_NEW_PASSWORD. It is never
    sent: brokers get and keep only SCRAM keys that are derived from it.
    """
    from app.security.scram import SALT_BYTES, credential_of, salted_password

    kind = _mechanism(mechanism)
    password = _password(name, password_file)
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(kind, password, salt, iterations)
    if offline:
        from app.broker.security.first_users import FirstUser, read_first_users, write_first_users
        from app.broker.start.running import is_locked
        from app.machine.files import PosixFileSystem

        directory = data_dir or "./firn-data"
        if Path(directory).is_dir() and is_locked(Path(directory)):
            raise ConfigError(f"A broker runs on {directory}: leave out --offline, or stop it with `firn stop`.")
        fs = PosixFileSystem()
        others = [one for one in read_first_users(fs, directory) if (one.name, one.mechanism) != (name, int(kind))]
        user = FirstUser(name, int(kind), credential_of(kind, salted, salt, iterations))
        path = write_first_users(fs, directory, [*others, user])
        sys.stdout.write(f"The broker makes the user {name} when it starts on {directory} ({path}).\n")
        return 0

    async def work() -> None:
        from app.wire.apikeys import ApiKey
        from app.wire.apis.alter_user_scram_credentials import (
            AlterUserScramCredentialsRequest,
            ScramCredentialUpsertion,
        )

        upsertion = ScramCredentialUpsertion(name, int(kind), iterations, salt, salted)
        async with connected(bootstrap) as cluster:
            broker = await cluster.any_broker()
            answer = await broker.request(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest(upsertions=[upsertion])
            )
        _check(answer.results)

    run_async(work)
    sys.stdout.write(f"The user {name} can log in by {kind.sasl_name}.\n")
    return 0


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    mechanism: Mechanism = MECHANISM_DEFAULT,
) -> int:
    """Take a user's password away. Connections that are open stay until they log in again (connections.max.reauth.ms)."""
    kind = _mechanism(mechanism)

    async def work() -> None:
        from app.wire.apikeys import ApiKey
        from app.wire.apis.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialDeletion

        async with connected(bootstrap) as cluster:
            broker = await cluster.any_broker()
            answer = await broker.request(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
                AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name, int(kind))]),
            )
        _check(answer.results)

    run_async(work)
    sys.stdout.write(f"The user {name} cannot log in by {kind.sasl_name} any more.\n")
    return 0


@app.command("list")
def list_users(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: Json = False) -> int:
    """List users, and how each may log in."""

    async def work() -> list[tuple[str, str, int]]:
        from app.security.scram import ScramMechanism
        from app.wire.apikeys import ApiKey
        from app.wire.apis.describe_user_scram_credentials import DescribeUserScramCredentialsRequest

        async with connected(bootstrap) as cluster:
            broker = await cluster.any_broker()
            answer = await broker.request(
                ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users=None)
            )
        if answer.error_code:
            raise RequestRejected(ErrorCode(answer.error_code), answer.error_message or "The broker refused.")
        return [
            (one.user, ScramMechanism(info.mechanism).sasl_name, info.iterations)
            for one in answer.results
            for info in one.credential_infos
        ]

    from app.cli.output import print_json, print_table

    rows = run_async(work)
    if as_json:
        print_json([dict(zip(("user", "mechanism", "iterations"), row, strict=True)) for row in rows])
    else:
        print_table(("USER", "MECHANISM", "ITERATIONS"), [(user, kind, str(count)) for user, kind, count in rows])
    return 0


def _mechanism(name: str) -> ScramMechanism:
    from app.security.scram import ScramMechanism

    try:
        return ScramMechanism.of(name.upper())
    except KeyError:
        raise ConfigError(f"--mechanism {name} is not SCRAM-SHA-256 or SCRAM-SHA-512.") from None


def _password(name: str, file: Path | None) -> str:
    """Raises: ConfigError."""
    if file is not None:
        try:
            password = file.read_text(encoding="utf-8").split("\n", 1)[0]
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"--password-file {file} cannot be read.") from None
    elif PASSWORD_VARIABLE in os.environ:
        password = os.environ[PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        password = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise ConfigError(f"There is no terminal to ask for the password: use --password-file or {PASSWORD_VARIABLE}.")
    if not password:
        raise ConfigError("The password is empty.")
    return password


def _check(results: list) -> None:  # type: ignore[type-arg]
    for result in results:
        if result.error_code:
            raise RequestRejected(ErrorCode(result.error_code), f"{result.user}: {clause(result.error_message)}.")
