"""``firn acl``: the rights of users and groups (KIP-11, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.output import count_text, print_json, print_table, say
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, Json, confirmed, connected, run_async
from app.core.errors import ConfigError
from app.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    why_invalid,
)

if TYPE_CHECKING:
    from enum import IntEnum

app = typer.Typer(help="List, add and remove access control lists.", no_args_is_help=True, rich_markup_mode=None)

Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; * for all topics.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="A group; * for all groups.")]
TransactionalIds = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id; * for all.")
]
Users = Annotated[
    list[str] | None, typer.Option("--user", metavar="PRINCIPAL", help="A user whose tokens others make or see.")
]
Tokens = Annotated[list[str] | None, typer.Option("--delegation-token", metavar="ID", help="A delegation token.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
Prefixed = Annotated[
    bool, typer.Option("--prefixed", help="Names are prefixes: every resource whose name begins so is meant.")
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="OPERATION", help="read, write, create, delete, alter, describe, all, …"),
]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="ADDRESS", help="From where; every host without this option.")
]

_PRODUCER: Final = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
_PRODUCER_ID: Final = (Operation.WRITE, Operation.DESCRIBE)
_CONSUMER: Final = (Operation.READ, Operation.DESCRIBE)


@app.command("ls", hidden=True)
@app.command("list")
def list_acls(
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    users: Users = None,
    tokens: Tokens = None,
    cluster: Cluster = False,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only rules for it, as in User:alice.")
    ] = None,
    matching: Annotated[
        bool,
        typer.Option("--matching", help="All rules that count for the named resources: of prefixes and of *, too."),
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """List rules, all of them or those of some resources."""
    kind = PatternType.MATCH if matching else PatternType.ANY
    named = list(_resources(topics, groups, transactional_ids, users, tokens, cluster=cluster))
    filters = [AclFilter(one, name, kind, principal) for one, name in named] or [AclFilter(principal=principal)]

    async def work() -> list[Acl]:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as client:
            admin = AdminClient(client)
            found: dict[Acl, None] = {}
            for one in filters:
                found.update(dict.fromkeys(await admin.describe_acls(one)))
        return sorted(found, key=_order)

    found = run_async(work)
    if as_json:
        print_json([_described(one) for one in found])
    elif not found:
        say("There are no such ACLs.")
    else:
        _show(found)


@app.command()
def add(
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="PRINCIPAL", help="Who may, as in User:alice; User:* for all."),
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", metavar="PRINCIPAL", help="Who may not, whatever other rules allow.")
    ] = None,
    operations: Operations = None,
    producer: Annotated[
        bool,
        typer.Option(
            "--producer", help="What a producer needs: of --topic, and of --transactional-id if there is one."
        ),
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="What a consumer needs: of --topic and --group.")
    ] = False,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    users: Users = None,
    tokens: Tokens = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    hosts: Hosts = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """Allow or deny operations. A rule that is there already stays as it is."""
    if not allow and not deny:
        raise ConfigError("Name who is meant: --allow User:alice, or --deny User:alice.")
    named = list(_resources(topics, groups, transactional_ids, users, tokens, cluster=cluster))
    if not named:
        raise ConfigError(
            "Name what is meant: --topic, --group, --transactional-id, --cluster, --user or --delegation-token."
        )
    asked = list(_asked(named, operations or (), producer=producer, consumer=consumer))
    if not asked:
        raise ConfigError("Name what is allowed or denied: --operation read, or --producer, or --consumer.")
    pattern_type = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    acls = [
        Acl(
            Pattern(kind, PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern_type, name),
            Rule(principal, host, operation, permission),
        )
        for kind, name, operation in asked
        for principals, permission in ((allow, Permission.ALLOW), (deny, Permission.DENY))
        for principal in principals or ()
        for host in hosts or (WILDCARD,)
    ]
    for one in acls:
        why = why_invalid(one)
        if why is not None:
            raise ConfigError(why)

    async def work() -> None:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as client:
            await AdminClient(client).create_acls(acls)

    run_async(work)
    if as_json:
        print_json([_described(one) for one in acls])
    else:
        _show(acls)
        say(f"Added {count_text(len(acls), 'ACL')}.")


@app.command("rm", hidden=True)
@app.command()
def remove(
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only rules for it, as in User:alice.")
    ] = None,
    operations: Operations = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    users: Users = None,
    tokens: Tokens = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    hosts: Hosts = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Remove the rules of named resources, of a principal, or both."""
    named: list[tuple[ResourceType, str | None]] = list(
        _resources(topics, groups, transactional_ids, users, tokens, cluster=cluster)
    )
    if not named and principal is None:
        raise ConfigError("Name what is to be removed: a resource such as --topic orders, or --principal User:alice.")
    pattern_type = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    filters = [
        AclFilter(kind, name, PatternType.ANY if name is None else pattern_type, principal, host, operation)
        for kind, name in named or [(ResourceType.ANY, None)]
        for host in hosts or (None,)
        for operation in [_number(Operation, text, "--operation") for text in operations or ()] or [Operation.ANY]
    ]

    async def work() -> tuple[list[Acl], bool]:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as client:
            admin = AdminClient(client)
            found: dict[Acl, None] = {}
            for one in filters:
                found.update(dict.fromkeys(await admin.describe_acls(one)))
            if not found:
                return [], True
            if not as_json:
                _show(sorted(found, key=_order))
            question = f"Remove {count_text(len(found), 'ACL')}?"
            if not confirmed(question, yes=yes):
                return [], False
            # Exactly the rules that were shown.
            exactly = [
                AclFilter(one.pattern.resource_type, one.pattern.name, one.pattern.pattern_type, *one.rule)
                for one in found
            ]
            return sorted(await admin.delete_acls(exactly), key=_order), True

    removed, wanted = run_async(work)
    if as_json:
        print_json([_described(one) for one in removed])
    elif wanted and not removed:
        say("There are no such ACLs.")
    elif wanted:
        say(f"Removed {count_text(len(removed), 'ACL')}.")
    return 0 if wanted else 1


def _order(acl: Acl) -> tuple[Any, ...]:
    """By resource and principal."""
    pattern, rule = acl
    return pattern.resource_type, pattern.name, pattern.pattern_type, rule


def _resources(
    topics: Iterable[str] | None,
    groups: Iterable[str] | None,
    transactional_ids: Iterable[str] | None,
    users: Iterable[str] | None,
    tokens: Iterable[str] | None,
    *,
    cluster: bool,
) -> Iterable[tuple[ResourceType, str]]:
    for kind, names in (
        (ResourceType.TOPIC, topics),
        (ResourceType.GROUP, groups),
        (ResourceType.TRANSACTIONAL_ID, transactional_ids),
        (ResourceType.USER, users),
        (ResourceType.DELEGATION_TOKEN, tokens),
    ):
        for name in names or ():
            yield kind, name
    if cluster:
        yield ResourceType.CLUSTER, CLUSTER_NAME


def _asked(
    named: Sequence[tuple[ResourceType, str]], operations: Sequence[str], *, producer: bool, consumer: bool
) -> Iterable[tuple[ResourceType, str, Operation]]:
    """The operations that the command names for each resource. Raises: ConfigError for an operation that a resource lacks."""
    for kind, name in named:
        wanted: dict[Operation, None] = {}
        for text in operations:
            operation = Operation(_number(Operation, text, "--operation"))
            if operation is not Operation.ALL and operation not in OPERATIONS[kind]:
                there = ", ".join(_word(one) for one in (*OPERATIONS[kind], Operation.ALL))
                raise ConfigError(f"--operation {text}: a {_word(kind)} has the operations {there}.")
            wanted[operation] = None
        if producer and kind is ResourceType.TOPIC:
            wanted.update(dict.fromkeys(_PRODUCER))
        if producer and kind is ResourceType.TRANSACTIONAL_ID:
            wanted.update(dict.fromkeys(_PRODUCER_ID))
        if consumer and kind is ResourceType.TOPIC:
            wanted.update(dict.fromkeys(_CONSUMER))
        if consumer and kind is ResourceType.GROUP:
            wanted[Operation.READ] = None
        for operation in wanted:
            yield kind, name, operation


def _number(kind: type[IntEnum], text: str, flag: str) -> int:
    """Raises: ConfigError."""
    found = kind.__members__.get(text.strip().upper().replace("-", "_"))
    if found is None or found.name in ("UNKNOWN", "ANY"):
        there = ", ".join(_word(one) for one in kind if one.name not in ("UNKNOWN", "ANY"))
        raise ConfigError(f"{flag} {text} is none of {there}.")
    return int(found)


def _word(one: IntEnum) -> str:
    return one.name.lower().replace("_", "-")


def _shown(kind: type[IntEnum], number: int) -> str:
    """The word for a number; the number itself if it is of a newer version."""
    return _word(kind(number)) if number in kind.__members__.values() else str(number)


def _described(acl: Acl) -> dict[str, Any]:
    pattern, rule = acl
    return {
        "resource_type": _shown(ResourceType, pattern.resource_type),
        "name": pattern.name,
        "pattern": _shown(PatternType, pattern.pattern_type),
        "principal": rule.principal,
        "host": rule.host,
        "operation": _shown(Operation, rule.operation),
        "permission": _shown(Permission, rule.permission),
    }


def _show(acls: Iterable[Acl]) -> None:
    rows = [tuple(_described(one).values()) for one in acls]
    print_table(("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"), rows)
