"""``firn schema``: the schema registry from the command line, over Kafka's protocol (ADR 0041).

A command is a registry of its own: it reads the log of schemas, decides, and appends, as an HTTP process does. It needs no HTTP.
Tests: ``tests/cli/test_schema.py``.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from app.cli.output import count_text, print_json, print_table, say
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, Json, connected, run_async
from app.core.errors import ConfigError, ErrorCode, RequestRejected, clause

if TYPE_CHECKING:
    from app.http.registry.service import SchemaService
    from app.registry.registering import SchemaRequest
    from app.registry.view import Version, View

T = TypeVar("T")
INCOMPATIBLE_EXIT: Final = 1
_CODES: Final = {404: ErrorCode.RESOURCE_NOT_FOUND, 422: ErrorCode.INVALID_REQUEST}
"""By the HTTP status of a refusal of the registry."""

app = typer.Typer(help="Register, show and compare schemas.", no_args_is_help=True, rich_markup_mode=None)

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="For example flights-value.")]
Text = Annotated[str, typer.Argument(metavar="FILE", help="The file of the schema; - reads standard input.")]
Kind = Annotated[str, typer.Option("--type", metavar="TYPE", help="AVRO, JSON or PROTOBUF.")]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="A schema that this one uses, by the name in its text; may be repeated.",
    ),
]
Normalize = Annotated[bool, typer.Option("--normalize", help="Schemas that differ in form only are one schema.")]


@app.callback()
def _family() -> None:
    """Register, show and compare schemas."""


@app.command("register")
def register(
    subject: Subject,
    file: Text,
    kind: Kind = "AVRO",
    references: References = None,
    normalize: Normalize = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """Register a schema under a subject, and print its id. A schema that the subject has already keeps its id."""
    asked = _request(subject, file, kind, references, normalize)

    async def work() -> tuple[int, int, bool]:
        async with _service(bootstrap) as service:
            made = await service.register(asked)
            return made.id, made.version, made.append is not None

    number, version, is_new = run_async(lambda: _refusals_told(work))
    if as_json:
        print_json({"subject": asked.subject.qualified, "id": number, "version": version, "new": is_new})
    else:
        sys.stdout.write(f"{number}\n")
        say(f"{'Registered' if is_new else 'There was already'} version {version} of {subject}.")


@app.command("check")
def check(
    subject: Subject,
    file: Text,
    kind: Kind = "AVRO",
    references: References = None,
    normalize: Normalize = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Compare a schema with the versions of a subject, as its compatibility level says. Exit code 1: it is incompatible."""
    asked = _request(subject, file, kind, references, normalize)

    async def work() -> list[str]:
        async with _service(bootstrap) as service:
            return await service.check(asked, lambda _: None)

    found = run_async(lambda: _refusals_told(work))
    if as_json:
        print_json({"subject": asked.subject.qualified, "compatible": not found, "findings": found})
    elif found:
        for one in found:
            sys.stdout.write(f"{one}\n")
        say(f"The schema is incompatible with {subject}.")
    else:
        say(f"The schema is compatible with {subject}.")
    return INCOMPATIBLE_EXIT if found else 0


@app.command("get")
def get(
    subject: Annotated[
        str | None, typer.Argument(metavar="[SUBJECT]", help="The subject, unless --id is given.")
    ] = None,
    version: Annotated[int | None, typer.Option("--version", min=1, help="The version; default: the newest.")] = None,
    number: Annotated[
        int | None, typer.Option("--id", min=0, help="The id of a schema of the default context.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """Print the text of a schema: of a subject's version, or of an id."""
    if (subject is None) == (number is None) or (number is not None and version is not None):
        raise ConfigError("Name a schema: SUBJECT, SUBJECT --version N, or --id N.")

    async def work() -> Version:
        async with _service(bootstrap) as service:
            return _found(await service.view(), subject, version, number)

    found = run_async(lambda: _refusals_told(work))
    if as_json:
        print_json(_shown(found))
    else:
        sys.stdout.write(f"{found.stored.schema}\n")


@app.command("ls")
def list_subjects(
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only subjects that begin so.")] = "",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """List the subjects that you may see, with their newest versions."""

    async def work() -> list[tuple[Version, int]]:
        async with _service(bootstrap) as service:
            view = await service.view()
            found = []
            for name in sorted(view.subjects()):
                newest = view.newest(name)
                if name.startswith(prefix) and newest is not None:
                    found.append((newest, len(view.versions(name))))
            return found

    found = run_async(lambda: _refusals_told(work))
    if as_json:
        print_json([{**_shown(one), "versions": count} for one, count in found])
    elif not found:
        say("There are no subjects.")
    else:
        print_table(
            ("SUBJECT", "TYPE", ">VERSIONS", ">NEWEST", ">ID"),
            [
                (one.stored.subject, one.stored.schema_type, f"{count:,}", str(one.stored.version), str(one.stored.id))
                for one, count in found
            ],
        )
        say(f"{count_text(len(found), 'subject')}.")


def _shown(version: Version) -> dict[str, Any]:
    from app.registry.record_json import shown_references

    stored = version.stored
    return {
        "subject": stored.subject,
        "version": stored.version,
        "id": stored.id,
        "guid": version.guid,
        "schemaType": stored.schema_type,
        "schema": stored.schema,
        "references": shown_references(stored.references),
    }


def _found(view: View, subject: str | None, number: int | None, schema_id: int | None) -> Version:
    """Raises: RegistryRefusal."""
    from app.registry.refusals import Code, RegistryRefusal
    from app.registry.registering import subject_not_found
    from app.registry.subjects import DEFAULT_CONTEXT, read_subject

    if subject is None:
        assert schema_id is not None
        found = view.schema(DEFAULT_CONTEXT, schema_id)
        if found is None:
            raise RegistryRefusal(
                Code.SCHEMA_NOT_FOUND, f"There is no schema with the id {schema_id}, or you may not see it."
            )
        return found
    name = view.meant(read_subject(subject)).qualified
    newest = view.newest(name)
    if newest is None:
        raise subject_not_found(name)
    found = newest if number is None else view.version(name, number)
    if found is None or found.stored.deleted:
        raise RegistryRefusal(Code.VERSION_NOT_FOUND, f"Subject '{name}' has no version {number}.")
    return found


def _request(subject: str, file: str, kind: str, references: Sequence[str] | None, normalize: bool) -> SchemaRequest:
    """Raises: ConfigError."""
    from app.registry.parsing.schemas import SchemaType
    from app.registry.registering import SchemaRequest
    from app.registry.subjects import read_subject

    if kind.upper() not in SchemaType.__members__:
        raise ConfigError(f"--type {kind}: the type is one of {', '.join(SchemaType.__members__)}.")
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The schema in {file} cannot be read: {clause(error)}.") from None
    named = tuple(_reference(one) for one in references or ())
    return SchemaRequest(read_subject(subject), SchemaType(kind.upper()), text, named, normalize=normalize)


def _reference(text: str) -> Any:
    """Raises: ConfigError."""
    from app.registry.record_json import Reference

    name, _, rest = text.partition("=")
    subject, _, version = rest.rpartition(":")
    if not name or not subject or not version.isascii() or not version.isdigit() or len(version) > 9:
        raise ConfigError(f"--reference {text}: write NAME=SUBJECT:VERSION, as in a.b.User=users-value:1.")
    return Reference(name, subject, int(version))


@asynccontextmanager
async def _service(bootstrap: str) -> AsyncIterator[SchemaService]:
    from app.client.schema_log import BrokerSchemaLog
    from app.http.registry.followed import FollowedLog
    from app.http.registry.parsing_work import ParsingWork
    from app.http.registry.service import SchemaService

    async with connected(bootstrap) as cluster:
        yield SchemaService(FollowedLog(BrokerSchemaLog(cluster)), ParsingWork())


async def _refusals_told(work: Callable[[], Awaitable[T]]) -> T:
    """Raises: RequestRejected with the registry's sentence; ConfigError if a package is missing; as ``work``."""
    from app.core.extras import install_hint
    from app.registry.refusals import ParserMissing, RegistryRefusal

    try:
        return await work()
    except RegistryRefusal as refusal:
        code = _CODES.get(refusal.status, ErrorCode.POLICY_VIOLATION)
        raise RequestRejected(code, refusal.message) from None
    except ParserMissing as missing:
        raise ConfigError(
            f"Schemas of type {missing} need a package that is not installed. Install it by: {install_hint('registry')}."
        ) from None
