"""``firn token``: delegation tokens (KIP-48)."""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, Json, client_settings, connected, run_async
from app.core.errors import ConfigError, ErrorCode, RequestRejected

if TYPE_CHECKING:
    from app.client.connection import KafkaConnection
    from app.wire.apis.describe_delegation_token import DescribedDelegationToken

app = typer.Typer(help="Make, renew, expire and list delegation tokens.", no_args_is_help=True, rich_markup_mode=None)

HOUR_MS: Final = 3_600_000
_SENTENCES: Final = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "Delegation tokens are switched off: set the same delegation.token.secret.key on "
    "every broker.",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "There is no such delegation token.",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "Only the owner of a delegation token and its renewers may do this.",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "Delegation tokens are asked for on a listener with a login or with "
    "certificates of clients, and not by somebody who has logged in with a delegation token.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "You may not make delegation tokens for that user: it takes CREATE_TOKENS on "
    "the user.",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "The delegation token has ended. Make a new one.",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "Owners and renewers are written User:NAME.",
    ErrorCode.UNSUPPORTED_VERSION: "Delegation tokens need firn.version=2: run `firn cluster features --upgrade firn.version=2`.",
    ErrorCode.POLICY_VIOLATION: "The cluster has as many delegation tokens as it may have. Expire some.",
}
TokenId = Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `firn token list` shows it.")]
_NOTHING: Final[tuple[str, ...]] = ()
_ESCAPE: Final = "\\u%04x"
"""Of a character in a properties file."""


@app.callback()
def _family() -> None:
    """Make, renew, expire and list delegation tokens."""


@app.command()
def create(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner", metavar="User:NAME", help="User whose rights the token has. [the user of --client-config]"
        ),
    ] = None,
    renewers: Annotated[
        list[str] | None,
        typer.Option(
            "--renewer", metavar="User:NAME", help="Who may renew and expire it, and see its secret; repeatable."
        ),
    ] = None,
    lifetime_hours: Annotated[
        float | None,
        typer.Option(
            "--lifetime-hours", min=0.001, metavar="N", help="Greatest lifetime. [delegation.token.max.lifetime.ms]"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a file for --client-config that logs in with the token."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Make a delegation token.

    Its secret is printed once, unless --out names a file for it.
    """
    owner_kind, owner_name = ("", "") if owner is None else _principal(owner, "--owner")

    async def work() -> Any:
        from app.wire.apikeys import ApiKey
        from app.wire.apis.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest

        message = CreateDelegationTokenRequest(
            owner_principal_type=owner_kind or None,
            owner_principal_name=owner_name or None,
            renewers=[CreatableRenewers(*_principal(one, "--renewer")) for one in renewers or _NOTHING],
            max_lifetime_ms=-1 if lifetime_hours is None else max(1, int(lifetime_hours * HOUR_MS)),
        )
        async with connected(bootstrap) as cluster:
            broker = await cluster.any_broker()
            return await broker.request(ApiKey.CREATE_DELEGATION_TOKEN, message)

    file = None if out is None else _created(out)
    try:
        made = run_async(work)
        _check(made.error_code)
        secret = b64encode(made.hmac).decode()
        if file is not None:
            file.writelines(_client_of(made.token_id, secret))
            file.close()
    except BaseException:
        if file is not None and out is not None:
            file.close()
            out.unlink()
        raise
    from app.cli.output import print_json, print_table

    facts = {
        "id": made.token_id,
        "owner": f"{made.principal_type}:{made.principal_name}",
        "expires": _moment(made.expiry_timestamp_ms),
        "ends": _moment(made.max_timestamp_ms),
        **({} if out is not None else {"hmac": secret}),
    }
    if as_json:
        print_json(facts)
    else:
        print_table(tuple(name.upper() for name in facts), [tuple(facts.values())])
    return 0


@app.command()
def renew(
    token_id: TokenId,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours", min=0.001, metavar="N", help="For how long, from now. [delegation.token.expiry.time.ms]"
        ),
    ] = None,
) -> int:
    """Let a delegation token last longer, up to its greatest lifetime."""

    async def work() -> int:
        from app.wire.apikeys import ApiKey
        from app.wire.apis.renew_delegation_token import RenewDelegationTokenRequest

        async with connected(bootstrap) as cluster:
            broker = await cluster.any_broker()
            secret = await _secret(broker, token_id)
            period_ms = -1 if hours is None else max(1, int(hours * HOUR_MS))
            answer = await broker.request(ApiKey.RENEW_DELEGATION_TOKEN, RenewDelegationTokenRequest(secret, period_ms))
        _check(answer.error_code)
        return int(answer.expiry_timestamp_ms)

    sys.stdout.write(f"The token {token_id} is valid until {_moment(run_async(work))}.\n")
    return 0


@app.command()
def expire(
    token_id: TokenId,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    hours: Annotated[
        float | None, typer.Option("--hours", min=0.0, metavar="N", help="When, from now. [at once]")
    ] = None,
) -> int:
    """Let a delegation token end early.

    Connections that have logged in with it stay until the end that the token had then (connections.max.reauth.ms bounds that).
    """

    async def work() -> int:
        from app.wire.apikeys import ApiKey
        from app.wire.apis.expire_delegation_token import ExpireDelegationTokenRequest

        async with connected(bootstrap) as cluster:
            broker = await cluster.any_broker()
            secret = await _secret(broker, token_id)
            period_ms = -1 if hours is None else int(hours * HOUR_MS)
            answer = await broker.request(
                ApiKey.EXPIRE_DELEGATION_TOKEN, ExpireDelegationTokenRequest(secret, period_ms)
            )
        _check(answer.error_code)
        return int(answer.expiry_timestamp_ms)

    ends_ms = run_async(work)
    when = "lets nobody in any more" if hours is None else f"is valid until {_moment(ends_ms)}"
    sys.stdout.write(f"The token {token_id} {when}.\n")
    return 0


@app.command("list")
def list_tokens(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    owners: Annotated[
        list[str] | None,
        typer.Option("--owner", metavar="User:NAME", help="Only tokens that belong to this user; repeatable."),
    ] = None,
    as_json: Json = False,
) -> int:
    """List the delegation tokens that you may see, without their secrets."""
    asked = [_principal(one, "--owner") for one in owners or _NOTHING]

    async def work() -> list[DescribedDelegationToken]:
        async with connected(bootstrap) as cluster:
            return await _described(await cluster.any_broker(), asked or None)

    from app.cli.output import print_json, print_table

    rows = [
        (
            one.token_id,
            f"{one.principal_type}:{one.principal_name}",
            f"{one.token_requester_principal_type}:{one.token_requester_principal_name}",
            [f"{other.principal_type}:{other.principal_name}" for other in one.renewers],
            _moment(one.expiry_timestamp),
            _moment(one.max_timestamp),
        )
        for one in run_async(work)
    ]
    names = ("id", "owner", "requester", "renewers", "expires", "ends")
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(
            tuple(name.upper() for name in names), [(*row[:3], ", ".join(row[3]) or "-", *row[4:]) for row in rows]
        )
    return 0


async def _described(broker: KafkaConnection, owners: list[tuple[str, str]] | None) -> list[DescribedDelegationToken]:
    """Raises: RequestRejected."""
    from app.wire.apikeys import ApiKey
    from app.wire.apis.describe_delegation_token import DescribeDelegationTokenOwner, DescribeDelegationTokenRequest

    named = None if owners is None else [DescribeDelegationTokenOwner(*one) for one in owners]
    answer = await broker.request(ApiKey.DESCRIBE_DELEGATION_TOKEN, DescribeDelegationTokenRequest(named))
    _check(answer.error_code)
    found: list[DescribedDelegationToken] = answer.tokens
    return found


async def _secret(broker: KafkaConnection, token_id: str) -> bytes:
    """The secret of a token that the user may see, so that no user types it on a command line. Raises: RequestRejected."""
    found = next((one for one in await _described(broker, None) if one.token_id == token_id), None)
    if found is None:
        raise RequestRejected(
            ErrorCode.DELEGATION_TOKEN_NOT_FOUND, f"There is no delegation token {token_id} that you may see."
        )
    return bytes(found.hmac)


def _principal(text: str, flag: str) -> tuple[str, str]:
    """Type and name. Raises: ConfigError."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ConfigError(f"{flag} {text!r} is not of the form User:NAME, as in User:alice.")
    return kind, name


def _created(path: Path) -> TextIO:
    """A new file for a secret, before there is one. Raises: ConfigError, OSError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"--out {path} exists already: name another file.") from None
    return os.fdopen(descriptor, "w", encoding="ascii")


def _client_of(token_id: str, secret: str) -> Iterator[str]:
    """The lines of a file of settings that logs in with a token: as this command is set, without the credentials of its user."""
    from app.client.security import SHOWS_USER

    settings = {name: text for name, text in client_settings().items() if name not in SHOWS_USER}
    if not settings.get("security.protocol", "").startswith("SASL_"):
        settings["security.protocol"] = "SASL_SSL"
    if not settings.get("sasl.mechanism", "").startswith("SCRAM-"):
        settings["sasl.mechanism"] = "SCRAM-SHA-512"
    settings["sasl.jaas.config"] = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token_id}" password="{secret}" tokenauth="true";'
    )
    for name, text in settings.items():
        escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
        yield f"{name}={''.join(one if one.isascii() else _ESCAPE % ord(one) for one in escaped)}\n"


def _check(code: int) -> None:
    """Raises: RequestRejected."""
    if code:
        error = ErrorCode(code)
        raise RequestRejected(error, _SENTENCES.get(error, f"The broker refused: {error.name.lower()}."))


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError):
        return "never"
