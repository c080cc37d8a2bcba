"""``firn cost``: what a workload costs a month on AWS, beside Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import console, print_json, print_table
from app.cli.session import Json, parse_assignments
from app.errors import ConfigError

if TYPE_CHECKING:
    from app.cost.bill import Bill
    from app.cost.workload import Workload


def cost(
    write: Annotated[
        float, typer.Option("--write", "-w", metavar="MB/S", help="Average rate of record bytes written.")
    ],
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
    volume: Annotated[
        float | None,
        typer.Option("--volume", metavar="GIB", help="Firn's data directory is on a gp3 volume of this size. [NVMe]"),
    ] = None,
    around: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=COUNT",
            help="What stands around Firn's broker: load_balancer, endpoint, nat, key, metric, alarm, http_machine, "
            "http_load_balancer.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="NAME=DOLLARS", help="Use this price instead of the list price."),
    ] = None,
    json: Json = False,
) -> int:
    """Estimate the monthly cost on AWS, compared with Kafka.

    Firn's bill has as many brokers as carry the load. Each record has one copy until its segment is in the object store, or as
    many as --replicas says.

    Kafka has three replicas on EBS, with tiered storage and without. Requests are counted from what Firn issues; docs/cost.md
    says how, what is assumed, and what is left out.
    """
    from app.cost.bill import Around, bills
    from app.cost.prices import AS_OF, REGION, Prices, names, with_overrides
    from app.cost.workload import Workload, parse_bytes

    try:
        overrides = {name: float(text) for name, text in parse_assignments(price or (), "--price").items()}
        prices = with_overrides(Prices(), overrides)
    except KeyError as error:
        raise ConfigError(f"no price is called {error.args[0]}; there are {', '.join(names())}.") from None
    except ValueError as error:
        raise ConfigError(f"--price: {error}.") from None
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
        raise ConfigError(f"--with: {error}.") from None
    except TypeError:
        names_there_are = ", ".join(field.name for field in fields(Around))
        raise ConfigError(f"--with names something else than {names_there_are}.") from None
    found = bills(workload, prices, firn_replicas=replicas, volume_gib=volume, around=stands)
    if json:
        print_json(
            {"prices": f"{REGION}, {AS_OF}", "workload": _facts(workload), "bills": [_as_json(b) for b in found]}
        )
        return 0
    _print(workload, found, f"AWS list prices, {REGION}, {AS_OF}", replicas)
    return 0


def _facts(workload: Workload) -> dict[str, float]:
    return {
        "written_gib_per_month": workload.gib_per_month,
        "retained_gib": workload.retained_gib,
        "segment_bytes_when_rolled": workload.rolled_bytes,
        "segments_per_month": workload.segments_per_month,
    }


def _as_json(bill: Bill) -> dict[str, Any]:
    return {
        "system": bill.system,
        "dollars_per_month": round(bill.dollars, 2),
        "lines": [{"what": line.what, "dollars": round(line.dollars, 2), "how": line.how} for line in bill.lines],
        "operations_per_month": {name: round(count) for name, count in sorted(bill.operations.items())},
        "dollars_per_gib_stored_month": bill.storage_gib_month,
        "dollars_per_gib_replayed": bill.replayed_gib,
    }


def _print(workload: Workload, found: Sequence[Bill], prices: str, replicas: int) -> None:
    out = console()
    out.print(
        f"{workload.write_mb_per_s:g} MB/s in, read {workload.fan_out:g} times as it comes and {workload.replay_share:.0%} "
        f"of it again, kept {workload.retention_days:g} days: {workload.gib_per_month:,.0f} GiB written a month, "
        f"{workload.retained_gib:,.0f} GiB kept",
        soft_wrap=True,
    )
    out.print(f"{prices}; dollars a month\n")
    positions = list(dict.fromkeys(line.what for bill in found for line in bill.lines))
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
    copies = "one, on its broker's disk," if replicas == 1 else f"{replicas}"
    out.print(
        f"\nWith Kafka a record has three copies from its acknowledgement on. With Firn it has {copies} until its segment is in "
        "the object store, and then S3's.",
        soft_wrap=True,
    )
