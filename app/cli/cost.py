"""``firn cost``: the monthly price of a workload on AWS, beside Kafka's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.output import console, count_text, print_json, print_table
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, Json, connected, parse_assignments, run_async
from app.core.errors import ConfigError, ConflictError, clause

SHOWN_GIB_MIN: Final = 0.05
"""Less a month is shown as 0.0, and says nothing."""
TOPICS_SHOWN: Final = 20

if TYPE_CHECKING:
    from app.cost.bill import Avoidable, Bill
    from app.cost.measured import MeasuredBill
    from app.cost.prices import Prices
    from app.cost.workload import Workload, WriteAhead


def cost(
    write: Annotated[
        float | None, typer.Option("--write", "-w", metavar="MB/S", help="Average rate of record bytes written.")
    ] = None,
    fan_out: Annotated[
        float, typer.Option("--fan-out", metavar="N", help="Number of consumers that read every new record.")
    ] = 2.0,
    retention: Annotated[float, typer.Option("--retention", metavar="DAYS", help="How long records are kept.")] = 7.0,
    replay: Annotated[
        float, typer.Option("--replay", metavar="SHARE", help="Bytes read from history per byte written.")
    ] = 0.1,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", help="Number of partitions of all topics.")
    ] = 100,
    segment: Annotated[str, typer.Option("--segment", metavar="SIZE", help="segment.bytes.")] = "1GiB",
    local: Annotated[
        float, typer.Option("--local", metavar="HOURS", help="How long tiered records stay on the local disk.")
    ] = 1.0,
    stored: Annotated[
        float,
        typer.Option(
            "--stored", metavar="SHARE", help="Bytes in the store per byte of records; below 1 if chunks compress."
        ),
    ] = 1.0,
    zones: Annotated[int, typer.Option("--zones", metavar="N", help="Number of zones with brokers and clients.")] = 3,
    peak: Annotated[
        float, typer.Option("--peak", metavar="X", help="Load of the busiest hour, as a multiple of the average.")
    ] = 2.0,
    replicas: Annotated[
        int,
        typer.Option("--replicas", metavar="N", min=1, help="Brokers that Firn keeps each record on; Kafka has three."),
    ] = 1,
    durability: Annotated[
        str | None,
        typer.Option(
            "--durability",
            metavar="NAME",
            help="firn.durability of the topics. With object the bill is shown beside those of one to three copies.",
        ),
    ] = None,
    linger: Annotated[
        float, typer.Option("--linger", metavar="MS", help="firn.wal.linger.ms, with --durability object.")
    ] = 250.0,
    wal_store: Annotated[
        str,
        typer.Option(
            "--wal-store",
            metavar="KIND",
            help="Where write-ahead logs are, with --durability object: s3 (Standard), express (S3 Express One Zone) or file (a "
            "file system, whose price is not known).",
        ),
    ] = "s3",
    requests: Annotated[
        float | None,
        typer.Option(
            "--requests", metavar="N", help="Produce requests a second, with --durability object. [many: the most]"
        ),
    ] = None,
    volume: Annotated[
        float | None,
        typer.Option("--volume", metavar="GIB", help="Firn's data directory is on a gp3 volume of this size. [NVMe]"),
    ] = None,
    around: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=COUNT",
            help="Resources around Firn's broker: load_balancer, endpoint, nat, key, metric, alarm, http_machine, "
            "http_load_balancer.",
        ),
    ] = None,
    spark_read: Annotated[
        float,
        typer.Option("--spark-read", metavar="GB", help="GB a month that Spark's batch jobs read from the bucket."),
    ] = 0.0,
    spark_scans: Annotated[
        float, typer.Option("--spark-scans", metavar="N", help="Number of these batch jobs a month.")
    ] = 0.0,
    spark_streams: Annotated[
        float,
        typer.Option("--spark-streams", metavar="N", help="Spark streams that read every new record from the bucket."),
    ] = 0.0,
    spark_trigger: Annotated[
        float,
        typer.Option("--spark-trigger", metavar="SECONDS", help="Time from one trigger of a stream to the next one."),
    ] = 60.0,
    spark_partitions: Annotated[
        int | None, typer.Option("--spark-partitions", metavar="N", help="Partitions that each Spark job reads. [all]")
    ] = None,
    spark_hours: Annotated[
        float, typer.Option("--spark-hours", metavar="HOURS", help="Hours a month of all Spark workers together.")
    ] = 0.0,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="NAME=DOLLARS", help="Use this price instead of the list price."),
    ] = None,
    measured: Annotated[
        bool,
        typer.Option(
            "--measured", help="Do not estimate: read the counters of the last hour from the brokers of --bootstrap."
        ),
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> int:
    """Estimate the monthly cost on AWS, compared with Kafka, or measure it.

    Firn's bill has as many brokers as carry the load. Each record has one copy until its segment is in the object store, or as
    many as --replicas says.

    Kafka has three replicas on EBS, with tiered storage and without. Requests are counted as Firn issues them; docs/cost.md
    explains the method, the assumptions, and the costs that are left out.

    With --measured the bill is the price of a month like the last hour, without machines and disks, with the share of each topic.
    """
    from app.cost.bill import Around, bills
    from app.cost.prices import AS_OF, REGION
    from app.cost.spark import SparkReads, with_spark
    from app.cost.workload import Workload, parse_bytes

    prices = _prices(price or ())
    if measured:
        if write is not None:
            raise ConfigError("--measured takes no --write: what is written is known.")
        return run_async(lambda: _measure(bootstrap, prices, as_json=json))
    if write is None:
        raise ConfigError("--write is missing: how many MB/s of records are written. Or ask a cluster with --measured.")
    workload = Workload(
        write_mb_per_s=write,
        fan_out=fan_out,
        retention_days=retention,
        replay_share=replay,
        partitions=partitions,
        segment_bytes=parse_bytes(segment),
        local_hours=local,
        stored_share=stored,
        zones=zones,
        peak=peak,
    )
    if volume is not None and not 0 < volume < float("inf"):
        raise ConfigError("--volume: the size of a volume must be a number above 0.")
    try:
        stands = Around(**{name: int(text) for name, text in parse_assignments(around or (), "--with").items()})
    except ValueError as error:
        raise ConfigError(f"--with: {clause(error)}.") from None
    except TypeError:
        names_there_are = ", ".join(field.name for field in fields(Around))
        raise ConfigError(f"--with names something else than {names_there_are}.") from None
    write_ahead = _write_ahead(durability, replicas, linger, requests, wal_store)
    spark = SparkReads(
        read_gib=spark_read,
        scans=spark_scans,
        streams=spark_streams,
        trigger_s=spark_trigger,
        partitions=spark_partitions,
        worker_hours=spark_hours,
    )
    found = bills(workload, prices, firn_replicas=replicas, volume_gib=volume, around=stands, write_ahead=write_ahead)
    found = with_spark(found, workload, spark, prices)
    if json:
        print_json(
            {"prices": f"{REGION}, {AS_OF}", "workload": _facts(workload), "bills": [_as_json(b) for b in found]}
        )
        return 0
    _print(workload, found, f"AWS list prices, {REGION}, {AS_OF}", replicas)
    return 0


def _prices(assignments: Sequence[str]) -> Prices:
    """Raises: ConfigError."""
    from app.cost.prices import Prices, names, with_overrides

    try:
        overrides = {name: float(text) for name, text in parse_assignments(assignments, "--price").items()}
        return with_overrides(Prices(), overrides)
    except KeyError as error:
        raise ConfigError(f"No price is called {error.args[0]}; there are {', '.join(names())}.") from None
    except ValueError as error:
        raise ConfigError(f"--price: {clause(error)}.") from None


def _write_ahead(
    durability: str | None, replicas: int, linger_ms: float, requests: float | None, store: str
) -> WriteAhead | None:
    """None for topics that have no write-ahead log. Raises: ConfigError."""
    from app.cost.prices import StoreKind
    from app.cost.workload import WriteAhead

    try:
        kind = StoreKind(store)
    except ValueError:
        raise ConfigError(f"--wal-store: the kinds of stores are {', '.join(StoreKind)}.") from None
    if durability in (None, "memory", "disk"):
        return None
    if durability != "object":
        raise ConfigError("--durability: firn.durability is memory, disk or object.")
    if replicas != 1:
        raise ConfigError(
            "--replicas: topics with object durability have one copy on brokers. Bills of one to three copies are beside it."
        )
    if requests is None:
        return WriteAhead(linger_ms=linger_ms, store=kind)
    return WriteAhead(linger_ms=linger_ms, appends_per_s=requests, store=kind)


def _facts(workload: Workload) -> dict[str, float]:
    return {
        "written_gib_per_month": workload.gib_per_month,
        "retained_gib": workload.retained_gib,
        "segment_bytes_when_rolled": workload.rolled_bytes,
        "segments_per_month": workload.segments_per_month,
    }


def _as_json(bill: Bill) -> dict[str, Any]:
    told: dict[str, Any] = {
        "system": bill.system,
        "dollars_per_month": round(bill.dollars, 2),
        "lines": [{"what": line.what, "dollars": round(line.dollars, 2), "how": line.how} for line in bill.lines],
        "operations_per_month": {name: round(count) for name, count in sorted(bill.operations.items())},
        "dollars_per_gib_stored_month": bill.storage_gib_month,
        "dollars_per_gib_replayed": bill.replayed_gib,
    }
    if bill.avoidable is not None:
        told["without_producers_between_zones"] = {
            "producers_dollars": round(bill.avoidable.producers_dollars, 2),
            "requests_dollars": round(bill.avoidable.requests_dollars, 2),
            "saved_dollars": round(bill.avoidable.saved_dollars, 2),
        }
    return told


def _print(workload: Workload, found: Sequence[Bill], prices: str, replicas: int) -> None:
    out = console()
    out.print(
        f"{workload.write_mb_per_s:g} MB/s in, read {workload.fan_out:g} times as it comes and {workload.replay_share:.0%} "
        f"of it again, kept {workload.retention_days:g} days: {workload.gib_per_month:,.0f} GiB written a month, "
        f"{workload.retained_gib:,.0f} GiB kept",
        soft_wrap=True,
    )
    out.print(f"{prices}; dollars a month\n")
    positions = _positions(found)
    rows = []
    for position in positions:
        cells = []
        for bill in found:
            line = next((one for one in bill.lines if one.what == position), None)
            cells.append("–" if line is None else f"{line.dollars:,.0f}")
        rows.append([position, *cells])
    rows.append(["total", *(f"{bill.dollars:,.0f}" for bill in found)])
    rows.append(["", *("" for _ in found)])
    rows.append(["a GiB kept for a month", *(f"{bill.storage_gib_month:.4f}" for bill in found)])
    rows.append(["a GiB replayed", *(f"{bill.replayed_gib:.4f}" for bill in found)])
    print_table(["", *(f">{bill.system}" for bill in found)], rows)
    for bill in found:
        out.print(f"\n{bill.system}")
        for line in bill.lines:
            out.print(f"  {line.what}: {line.how}", soft_wrap=True)
    avoidable = found[0].avoidable
    if avoidable is not None:
        _print_object(found, avoidable)
        return
    copies = "one, on its broker's disk," if replicas == 1 else f"{replicas}"
    out.print(
        f"\nWith Kafka a record has three copies from its acknowledgement on. With Firn it has {copies} until its segment is in "
        "the object store, and then S3's.",
        soft_wrap=True,
    )


def _positions(found: Sequence[Bill]) -> list[str]:
    """The items of all bills, each in the order of its own bill."""
    positions: list[str] = []
    for bill in found:
        place = 0
        for line in bill.lines:
            if line.what not in positions:
                positions.insert(place, line.what)
            place = positions.index(line.what) + 1
    return positions


def _print_object(found: Sequence[Bill], avoidable: Avoidable) -> None:
    out = console()
    first, last = found[0], found[-1]
    producers, instead = avoidable.producers_dollars, avoidable.requests_dollars
    if producers:
        out.print(
            f"\nProducers' bytes between zones are {producers:,.0f} dollars, {producers / first.dollars:.0%} of the bill. If each "
            "producer wrote to a broker in its own zone, and leaders read from the logs of those brokers, requests would cost "
            f"{instead:,.0f} dollars more instead: {avoidable.saved_dollars:,.0f} saved. Firn does not do so, because "
            "acknowledgements would take twice as long.",
            soft_wrap=True,
        )
    out.print(
        "\nWith object durability an acknowledged record is in the object store, whatever happens to brokers. The bill is "
        f"{first.dollars / last.dollars:.0%} of that of {last.system}.",
        soft_wrap=True,
    )


async def _measure(bootstrap: str, prices: Prices, *, as_json: bool) -> int:
    """Raises: ConfigError, ConflictError (no broker has counted for long enough), RequestRejected, BrokerUnavailable."""
    from app.client.admin import AdminClient
    from app.cost import measured

    async with connected(bootstrap) as cluster:
        answers = await AdminClient(cluster).metrics_of_all(measured.MEASURED_NAMES)
    found = {
        node_id: measured.spent_of((one.name, dict(one.labels), one.value) for one in answer.samples)
        for node_id, answer in answers.items()
    }
    known = [spent for spent in found.values() if spent is not None]
    if not known:
        raise ConflictError("No broker has counted for a minute yet. Ask again in a minute.")
    bill = measured.measured_bill(known, prices)
    if as_json:
        print_json(measured.as_json(bill))
    else:
        _print_measured(bill, [node_id for node_id, spent in found.items() if spent is None])
    return 0


def _print_measured(bill: MeasuredBill, without: Sequence[int]) -> None:
    from app.cost.measured import NOT_MEASURED
    from app.cost.prices import AS_OF, REGION

    out = console()
    out.print(
        f"A month like the last {count_text(max(1, round(bill.seconds / 60)), 'minute')} of {count_text(bill.brokers, 'broker')}; "
        f"AWS list prices, {REGION}, {AS_OF}\n",
        soft_wrap=True,
    )
    print_table(["", ">dollars", "how"], [*([one.what, _cents(one.dollars), one.how] for one in bill.lines)])
    out.print(f"\ntotal: {_cents(bill.dollars)}, without {NOT_MEASURED}\n", soft_wrap=True)
    shown = [(one.topic, one.dollars) for one in bill.topics[:TOPICS_SHOWN]]
    if rest := sum(one.dollars for one in bill.topics[TOPICS_SHOWN:]):
        shown.append((f"{len(bill.topics) - TOPICS_SHOWN} other topics", rest))
    shown.append(("(no topic)", bill.nobodys_dollars))
    share = 100 / bill.dollars if bill.dollars else 0.0
    print_table(
        ["topic", ">dollars", ">share"], [[topic, _cents(part), f"{part * share:.1f}%"] for topic, part in shown]
    )
    for whose, gib in bill.unknown_gib.items():
        if gib < SHOWN_GIB_MIN:
            continue
        out.print(
            f"\n{gib:,.1f} GiB of {whose} are not in the bill. They may cross zones: broker.rack is not set, or the other side "
            "does not say its zone (docs/cost.md).",
            soft_wrap=True,
        )
    for node_id in without:
        out.print(f"\nBroker {node_id} is not in the bill: it has not counted for a minute yet.", soft_wrap=True)


def _cents(dollars: float) -> str:
    return f"{dollars:,.2f}"
