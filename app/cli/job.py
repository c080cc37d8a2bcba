"""``firn job``: archive a topic's history, prove it, replay it. Needs ``firn-broker[spark]``, but neither Spark nor a broker.

Tests: ``tests/spark/test_jobs.py``.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from app.cli.output import bytes_text, count_text, print_json, progress, say
from app.cli.session import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    Json,
    client_settings,
    local_path,
    parse_assignments,
    parse_bootstrap,
)
from app.core.addresses import is_loopback
from app.core.errors import ConfigError
from app.core.extras import install_hint
from app.machine.terminating import ended_by_signals

if TYPE_CHECKING:
    from pyspark_firn.jobs.compact import HttpLogin

app = typer.Typer(help="Jobs over the history in the object store.", no_args_is_help=True, rich_markup_mode=None)

MIB: Final = 1 << 20
HTTP_DEFAULT: Final = "http://127.0.0.1:8080"
WAREHOUSE: Final = Path("firn-warehouse")

Store = Annotated[str, typer.Option("--store", "-s", metavar="URL", help="file:///path or s3://bucket/prefix.")]
Workers = Annotated[
    int | None, typer.Option("--workers", "-w", min=1, help="Number of processes; default: one per core.")
]


@app.command()
def archive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    store: Store,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="Location of the files, or with --iceberg of a new table: file:///path or s3://bucket/…",
        ),
    ] = "",
    iceberg: Annotated[
        str, typer.Option("--iceberg", metavar="NAMESPACE.TABLE", help="An Iceberg table instead of a folder of files.")
    ] = "",
    catalog: Annotated[
        list[str] | None,
        typer.Option("--catalog", metavar="NAME=VALUE", help="A property of the Iceberg catalog; may be repeated."),
    ] = None,
    warehouse: Annotated[
        Path | None,
        typer.Option(
            "--warehouse",
            parser=local_path,
            metavar="FOLDER",
            help="Folder of the SQLite catalog that is used without --catalog. [./firn-warehouse]",
        ),
    ] = None,
    value: Annotated[
        str,
        typer.Option("--value", metavar="KIND", help="Decode values: json or avro. Bad records are stored separately."),
    ] = "",
    schema: Annotated[
        str, typer.Option("--schema", help="JSON: 'name type, …', inferred if not given. Avro: the schema, or @FILE.")
    ] = "",
    file_mib: Annotated[
        int, typer.Option("--file-mib", min=1, help="Approximate size of the records in a file.")
    ] = 256,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Write stored records that are not archived yet to Parquet files by date, or to an Iceberg table.

    Each record is archived once, even if you repeat the job or kill it. Run it more often than retention deletes.
    """
    if not to and not iceberg:
        raise ConfigError("Give the target of the archive: --to or --iceberg.")
    if not iceberg and (catalog or warehouse is not None):
        flag = "--catalog" if catalog else "--warehouse"
        raise ConfigError(f"{flag} is for an Iceberg table: add --iceberg NAMESPACE.TABLE, or remove {flag}.")
    if catalog and warehouse is not None:
        raise ConfigError("--warehouse is for the default catalog: remove --warehouse or --catalog.")
    if schema and not value:
        raise ConfigError("--schema says how to decode values: add --value json or --value avro, or remove --schema.")
    with _needing_spark_extra():
        from pyspark_firn.jobs.archive import ValuesWanted, archive_iceberg, archive_parquet
        from pyspark_firn.jobs.running import ProcessRunner
    text = _schema_text(schema)
    wanted = ValuesWanted(value, text or None) if value else None
    runner = ProcessRunner(workers)
    with _reporting("archive", "parts", shown=not as_json) as report:
        if not iceberg:
            summary = archive_parquet(
                store, topic, to, runner, part_bytes=file_mib * MIB, values=wanted, progress=report
            )
        else:
            with _needing_spark_extra():
                from pyspark_firn.jobs.iceberg import local_catalog, warehouse_at
            # It says of every file which columns have no value and hence no statistics.
            logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
            properties = (
                dict(parse_assignments(catalog, "--catalog")) if catalog else local_catalog(warehouse or WAREHOUSE)
            )
            if to:
                properties |= warehouse_at(to)
            summary = archive_iceberg(
                store, topic, iceberg, properties, runner, part_bytes=file_mib * MIB, values=wanted, progress=report
            )
    if as_json:
        print_json(summary.as_json())
    elif not summary.parts and not any(summary.ends.values()):
        say(
            f"Nothing of {topic} is in the object store yet, so there is nothing to archive: records get there when their"
            " segment rolls. `firn tier status` shows how far it is."
        )
    elif not summary.parts:
        say(f"Nothing new: {topic} is archived up to the end of the store.")
    else:
        say(
            f"{count_text(summary.records, 'record')} in {count_text(summary.files, 'file')},"
            f" {bytes_text(summary.bytes)}, of {topic} in {summary.target}."
            + (f" {count_text(summary.bad_records, 'record')} could not be decoded." if summary.bad_records else "")
        )


def _schema_text(given: str) -> str:
    """The schema, which may be in a file. Raises: ConfigError, OSError."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"--schema {given} is not a text file.") from None


@app.command()
def verify(
    store: Store,
    topics: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic; may be repeated.")] = None,
    records: Annotated[
        bool,
        typer.Option("--records", help="Also decode every record, to find batches that no consumer can read. Slower."),
    ] = False,
    workers: Workers = None,
    as_json: Json = False,
) -> int:
    """Read everything in a store with many processes and name every damaged object, orphan and gap.

    Exit code 1 if records are missing or damaged.
    """
    found = _inspect("verify", store, topics, workers, as_json=as_json, records=records)
    if as_json:
        print_json(found.as_json())
    else:
        _say_findings(found)
    return 0 if found.is_sound else 1


@app.command()
def audit(
    store: Store,
    to: Annotated[
        Path,
        typer.Option("--to", parser=local_path, metavar="FOLDER", help="Folder for segments.parquet and report.html."),
    ] = Path("firn-audit"),
    topics: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic; may be repeated.")] = None,
    workers: Workers = None,
    as_json: Json = False,
) -> int:
    """Recompute counts, bytes, offsets, times and a content hash of every segment, and write a report to sign.

    Exit code 1 if anything differs from the manifests.
    """
    with _needing_spark_extra():
        from pyspark_firn.jobs.audit_report import check_folder, write_report
    check_folder(to)  # Whether it can be written is better known before everything is read.
    found = _inspect("audit", store, topics, workers, as_json=as_json)
    table, page = write_report(found, to, made=datetime.now(UTC))
    if as_json:
        print_json(found.as_json() | {"table": str(table), "page": str(page)})
    else:
        _say_findings(found)
        say(f"The report is {page}, the facts are {table}.")
    return 0 if found.is_sound else 1


def _http_login(address: str) -> HttpLogin | None:
    """The login of ``--client-config`` in the form that HTTP takes, None without one. Raises: ConfigError."""
    settings = client_settings()
    if not settings:
        return None
    from app.client.security import client_security
    from pyspark_firn.jobs.compact import HttpLogin

    security = client_security(settings)
    if not security.mechanism:
        return None
    url = urlsplit(address)
    if url.scheme != "https" and not is_loopback(url.hostname or ""):
        raise ConfigError(f"--http {address} would be sent a password without encryption: use an https address.")
    trust = settings.get("ssl.truststore.location") or settings.get("ssl.ca.location") or ""
    if security.token_file:
        try:
            return HttpLogin(f"Bearer {Path(security.token_file).read_text().strip()}", trust)
        except OSError as error:
            raise ConfigError(f"The token in {security.token_file} cannot be read: {error.strerror}.") from None
    pair = b64encode(f"{security.user}:{security.password}".encode()).decode()
    return HttpLogin(f"Basic {pair}", trust)


@app.command()
def compact(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    store: Store,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="URL",
            help=f"HTTP address of the cluster, whose leaders write the manifests. [{HTTP_DEFAULT}]",
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Write the manifests directly. Use this only while no broker runs.")
    ] = False,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="Keep only the newest value of each key; records without a key stay.")
    ] = False,
    target_mib: Annotated[
        int, typer.Option("--target-mib", min=1, help="Maximum size of the records in a merged segment.")
    ] = 512,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-w",
            min=1,
            help="Number of processes; default: one per core, but one with --by-key because of its memory.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Merge a topic's small segments in the store. Offsets do not change.

    In a running cluster, only segments that have left the local disks are merged. With --offline, make sure that no broker runs:
    the command cannot see a broker that keeps its heartbeats in Redis.
    """
    if offline and http is not None:
        raise ConfigError("--offline is for a stopped cluster, and --http for a running one: use only one of them.")
    with _needing_spark_extra():
        from pyspark_firn.jobs.compact import compact as run
        from pyspark_firn.jobs.running import ProcessRunner
    runner = ProcessRunner(1 if by_key and workers is None else workers)
    http = HTTP_DEFAULT if http is None else http
    with _reporting("compact", "segments", shown=not as_json) as report:
        summary = run(
            store,
            topic,
            http=None if offline else http,
            login=None if offline else _http_login(http),
            target_bytes=target_mib * MIB,
            by_key=by_key,
            runner=runner,
            progress=report,
        )
    if as_json:
        print_json(summary.as_json())
    else:
        say(
            f"{topic} had {count_text(summary.segments_before, 'segment')} and has {count_text(summary.segments_after)} now:"
            f" {bytes_text(summary.bytes_before)} of records before, {bytes_text(summary.bytes_after)} now."
            + (
                f" {count_text(summary.groups_skipped, 'run')} of them could not be compacted."
                if summary.groups_skipped
                else ""
            )
        )


@app.command()
def replay(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    store: Store,
    target: Annotated[str, typer.Option("--target", help="Topic to produce to; it must have as many partitions.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Start time, such as 2013-07-01T00:00:00Z.")
    ] = "",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="End time (exclusive).")] = "",
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="Records per second.")] = None,
    pace: Annotated[
        float | None,
        typer.Option("--pace", min=0.001, help="Speed relative to the original; 1 takes the original time."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", parser=local_path, metavar="FILE", help="File that makes the replay resumable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Produce a range of history to a topic again, with the original times in a header."""
    with _needing_spark_extra():
        from pyspark_firn.jobs.replay import ReplayRequest
        from pyspark_firn.jobs.replay import replay as run
    request = ReplayRequest(
        store=store,
        topic=topic,
        bootstrap=tuple(parse_bootstrap(bootstrap)),
        target=target,
        start=start,
        end=end,
        records_per_s=rate,
        pace=pace,
        state_path=state,
    )
    with _reporting("replay", "records", shown=not as_json) as report:
        summary = run(request, progress=report)
    if as_json:
        print_json(asdict(summary))
    else:
        say(f"{count_text(summary.records, 'record')} of {topic} produced to {target}.")


def _inspect(
    what: str, store: str, topics: list[str] | None, workers: int | None, *, as_json: bool, records: bool = False
) -> Any:
    with _needing_spark_extra():
        from pyspark_firn.jobs.inspection import inspect
        from pyspark_firn.jobs.running import ProcessRunner
    with _reporting(what, "segments", shown=not as_json) as report:
        return inspect(store, ProcessRunner(workers), topics=topics or (), records=records, progress=report)


def _say_findings(found: Any) -> None:
    for finding in found.findings:
        place = found.place_of(finding)
        where = "" if place is None else f"{place}: "
        grade = "DAMAGE" if finding.is_damage else "waste "
        say(f"{grade}  {where}{finding.kind.value}: {finding.message.removesuffix('.')} ({finding.object_key})")
    records = sum(facts.records for facts in found.facts)
    verdict = "Every checksum is right, with no gap and no overlap." if found.is_sound else "There is damage."
    say(
        f"{count_text(len(found.facts), 'segment')} of {count_text(found.partitions, 'partition')}:"
        f" {count_text(records, 'record')}. {verdict}"
    )


@contextmanager
def _reporting(what: str, counted: str, *, shown: bool) -> Iterator[Callable[[int, int], None]]:
    with ended_by_signals(), progress(what, total=None, shown=shown, counted=counted) as report:
        yield lambda done, total: report(done, total or None, "")


@contextmanager
def _needing_spark_extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"Jobs need the package {error.name}. Install it with `{install_hint('spark')}`.") from None
