"""``firn quota``: how much each client may ask for (ADR 0032)."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from app.cli.output import print_json, print_table, say
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, Json, connected, parse_assignments, run_async
from app.core.errors import ConfigError

DEFAULT_SHOWN: Final = "(default)"

app = typer.Typer(
    help="Limit what users, programs and addresses may ask for.", no_args_is_help=True, rich_markup_mode=None
)

User = Annotated[
    str, typer.Option("--user", metavar="NAME", help="The user; '' for users without limits of their own.")
]
ClientId = Annotated[
    str, typer.Option("--client-id", metavar="ID", help="The client id; '' for those without limits of their own.")
]
Address = Annotated[
    str, typer.Option("--ip", metavar="ADDRESS", help="The address; '' for those without limits of their own.")
]
NOT_GIVEN: Final = "\0"
"""An option that was not given; an empty one means the default of its type."""


@app.callback()
def _family() -> None:
    """Limit the bytes, requests and connections of users, programs and addresses."""


@app.command("list")
def list_quotas(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: Json = False) -> None:
    """List all limits. The closest counts: of user and client id together, then of the user, then of the client id."""

    async def work() -> list[tuple[dict[str, str | None], dict[str, float]]]:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            return await AdminClient(cluster).describe_quotas()

    found = run_async(work)
    if as_json:
        print_json([{"entity": entity, "limits": limits} for entity, limits in found])
    elif not found:
        say("There are no quotas.")
    else:
        print_table(
            ("USER", "CLIENT ID", "IP", "LIMIT", ">VALUE"),
            [
                (*(_shown(entity, kind) for kind in ("user", "client-id", "ip")), key, f"{value:,.10g}")
                for entity, limits in found
                for key, value in sorted(limits.items())
            ],
        )


def _shown(entity: dict[str, str | None], kind: str) -> str:
    return (entity[kind] or DEFAULT_SHOWN) if kind in entity else "–"


@app.command("set")
def set_quotas(
    limits: Annotated[
        list[str], typer.Argument(metavar="LIMIT=VALUE…", help="For example producer_byte_rate=1000000.")
    ],
    user: User = NOT_GIVEN,
    client_id: ClientId = NOT_GIVEN,
    ip: Address = NOT_GIVEN,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Set limits, on each broker: producer_byte_rate, consumer_byte_rate, firn.cold_read_byte_rate (bytes a second),
    request_percentage (100 is one broker's loop), controller_mutation_rate (partitions a second); of an --ip
    connection_creation_rate (connections a second)."""
    wanted: dict[str, float | None] = {}
    for key, text in parse_assignments(limits, "LIMIT").items():
        try:
            wanted[key] = float(text)
        except ValueError:
            raise ConfigError(f"{key}={text}: the limit is a number, as in {key}=1000.") from None
    _alter(_entity(user, client_id, ip), wanted, bootstrap)


@app.command("remove")
def remove_quotas(
    limits: Annotated[list[str], typer.Argument(metavar="LIMIT…", help="Names of limits.")],
    user: User = NOT_GIVEN,
    client_id: ClientId = NOT_GIVEN,
    ip: Address = NOT_GIVEN,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Take limits away."""
    _alter(_entity(user, client_id, ip), dict.fromkeys(limits), bootstrap)


def _entity(user: str, client_id: str, ip: str) -> dict[str, str | None]:
    given = {"user": user, "client-id": client_id, "ip": ip}
    entity = {kind: name or None for kind, name in given.items() if name != NOT_GIVEN}
    if not entity:
        raise ConfigError("Say whose limits: --user NAME, --client-id ID, both, or --ip ADDRESS.")
    return entity


def _alter(entity: dict[str, str | None], limits: dict[str, float | None], bootstrap: str) -> None:
    async def work() -> None:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            await AdminClient(cluster).alter_quotas(entity, limits)

    run_async(work)
    whose = " and ".join(f"{kind} {name or DEFAULT_SHOWN}" for kind, name in entity.items())
    say(f"Changed the limits of {whose}.")
