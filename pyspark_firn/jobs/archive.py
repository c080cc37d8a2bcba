"""``archive``: a topic's history as Parquet files by date, or as an Iceberg table; each run adds the records that came since.

Exactly once, even if processes are killed at any point. For Parquet, below ``<target>/<topic>/_firn/``:

    <run as 20 digits>.plan     which offsets this run writes: put if absent before its first file
    <run as 20 digits>.commit   the files that it wrote: put if absent after its last
    <run as 20 digits>.shown    readers see all that the commit names, and nothing else of the plan

A run that finds a plan without a commit does that plan first: the same offsets. Each attempt at a part gives its files names of its
own, since compaction may have removed records in between. They are *pending* (``_….parquet.pending``) until a commit names
them. The first commit counts: its files get their names, and those of other attempts are removed. A run that finds a commit
without ``.shown`` does that first. So readers of the folder see each record once, or not yet, with any number of kills and
parallel runs. They pass over ``_firn`` and pending files.

For Iceberg the table itself says how far it has come: files and the new ``firn.archive.…`` properties are one commit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import ConfigError, CorruptionError
from app.core.limits import MIB
from app.core.units import PartitionIndex, TopicId, TopicIdPartition
from app.metadata.manifest.manifest_state import ManifestState
from app.objectstore.api import AlreadyExists, ObjectMissing
from app.objectstore.location import DirectoryLocation, parse_store_url
from pyspark_firn.batch import plan as plan_read
from pyspark_firn.columns import HEADERS, KAFKA_COLUMNS, arrow_schema
from pyspark_firn.jobs.archive_plan import (
    FORMAT_VERSION,
    ArchivePart,
    ArchivePlan,
    beginnings,
    cut,
    decode_document,
    decode_plan,
    overtaken_files,
    unnamed_files,
)
from pyspark_firn.jobs.parquet_files import TABLE_DAYS, DayWriter, WrittenFile
from pyspark_firn.jobs.running import Runner
from pyspark_firn.jobs.sources import check_has_history
from pyspark_firn.jobs.targets import files_below, remove_files, remove_written, show_files, sweep, target_at, writing
from pyspark_firn.jobs.values import (
    SAMPLE_RECORDS,
    ValueDecoder,
    ValueShape,
    avro_shape,
    decode_shape,
    inferred_json_shape,
    json_shape,
)
from pyspark_firn.losses import JOB_MEND
from pyspark_firn.memory import keep_freed_memory
from pyspark_firn.options import Isolation, parse_read_options
from pyspark_firn.planning import PartitionRange, boundary_segments, plan_splits
from pyspark_firn.reading import SplitReader
from pyspark_firn.session import StoreSession
from pyspark_firn.snapshot import Snapshot, read_footer, take_snapshot
from pyspark_firn.splits import StoredSplit

if TYPE_CHECKING:
    from pyiceberg.table import Table

COLUMNS: Final = (*KAFKA_COLUMNS, HEADERS)
PART_BYTES_DEFAULT: Final = 256 * MIB
"""Of records before compression in one file, about."""
BAD_SUFFIX: Final = "_bad"
SPLIT_BYTES: Final = 1 << 40
"""A part is read in one go."""

Progress = Callable[[int, int], None]
"""Told (parts done, parts in all)."""


@dataclass(slots=True)
class ArchiveSummary:
    """The result of an archive run."""

    topic: str
    target: str
    runs: int = 0
    parts: int = 0
    files: int = 0
    records: int = 0
    bad_records: int = 0
    """That could not be decoded, and lie aside with the reason."""
    bytes: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    """Next offset of each partition."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PartTask:
    """One part for a worker."""

    store: str
    target: str
    folder: str
    topic: str
    split: StoredSplit | None
    part: ArchivePart
    shape: ValueShape | None = None
    """How to decode values; None: they are archived as they are."""
    bad_target: str = ""
    """Where records go whose value cannot be decoded; empty: they are there already."""
    bad_folder: str = ""
    io_properties: Mapping[str, str] | None = None
    """How the catalog of an Iceberg table has its files written; None for a folder of files."""


@dataclass(frozen=True, slots=True)
class PartDone:
    part: ArchivePart
    files: tuple[WrittenFile, ...]
    bad_files: tuple[WrittenFile, ...] = ()


def write_part(task: PartTask) -> PartDone:
    """Read one part and write its files, under names that no other attempt has. Raises: CorruptionError, StorageUnavailable."""
    keep_freed_memory()
    name = f"{task.part.file_stem}-{uuid.uuid4().hex}"
    pending = task.io_properties is None  # else a table says which files are its own
    if task.split is None:
        return PartDone(task.part, ())
    schema = arrow_schema(COLUMNS)
    decoder = ValueDecoder(task.shape, schema) if task.shape is not None else None
    target = target_at(task.target, task.io_properties)
    days = None if task.io_properties is None else TABLE_DAYS
    good = DayWriter(target, task.folder, name, decoder.good_schema if decoder else schema, days, pending=pending)
    bad: DayWriter | None = None
    if decoder is not None and task.bad_target:
        bad_target = target_at(task.bad_target, task.io_properties)
        bad = DayWriter(bad_target, task.bad_folder, name, decoder.bad_schema, days, pending=pending)
    try:
        with StoreSession(task.store) as session:
            reader = SplitReader(session, COLUMNS, Isolation.READ_COMMITTED, fail_on_data_loss=True, mend=JOB_MEND)
            for batch in reader.read(task.split):
                if decoder is None:
                    good.add(batch)
                else:
                    kept, aside = decoder.split(batch)
                    good.add(kept)
                    if bad is not None:
                        bad.add(aside)
        return PartDone(task.part, tuple(good.close()), tuple(bad.close()) if bad is not None else ())
    except BaseException:
        good.discard()
        if bad is not None:
            bad.discard()
        raise


def archive_parquet(
    store: str,
    topic: str,
    target: str,
    runner: Runner,
    *,
    part_bytes: int = PART_BYTES_DEFAULT,
    values: ValuesWanted | None = None,
    progress: Progress | None = None,
) -> ArchiveSummary:
    """Write the stored records that are not yet in ``<target>/<topic>/``; ``target`` is an address like a store's.

    With ``values``, they are decoded to the column ``data``; records that cannot be decoded go to ``<target>/<topic>_bad/``
    with the column ``reason``. The first run fixes the shape (``_firn/shape.json``).

    Safe to repeat, to kill, and to run twice at the same time. Raises: ConfigError, CorruptionError, StorageUnavailable.
    """
    summary = ArchiveSummary(topic, target)
    location = parse_store_url(target)
    if isinstance(location, DirectoryLocation):
        with writing(str(location.path)):
            location.path.mkdir(parents=True, exist_ok=True)
    with StoreSession(store) as source, StoreSession(target) as sink:
        while True:
            snapshot = _snapshot(source, store, topic)
            run, done, plan, unshown = _last_run(sink, topic)
            if unshown is not None:
                _show(sink, target, topic, unshown, done)
            _check_topic(
                snapshot, topic, done.get("topic_id") or (plan.topic_id if plan else None), _ends(done), target
            )
            resumed = plan is not None
            if plan is None:
                states = [one.state for one in snapshot.partitions]
                parts = cut(states, _ends(done), part_bytes)
                if not parts:
                    summary.ends = _ends(done)
                    return summary
                if run == 0:
                    _check_folders(sink, topic, target, with_values=values is not None)
                topic_id = str(snapshot.partitions[0].partition.topic_id)
                plan = ArchivePlan(topic, topic_id, (*parts, *beginnings(states, _ends(done), parts)))
                plan = _put_plan(sink, topic, run, plan)
            shape = _shape(source, sink, store, topic, values, is_new=run == 0)
            tasks = [
                replace(task, shape=shape, bad_target=target, bad_folder=f"{topic}{BAD_SUFFIX}")
                for task in _tasks(source, snapshot, store, target, topic, plan)
            ]
            with _swept((target, topic), (target, f"{topic}{BAD_SUFFIX}")):
                finished = _written(runner, tasks, progress)
            _commit(sink, target, topic, run, plan, finished, _ends(done), with_values=shape is not None)
            _count(summary, finished)
            summary.ends = _ends(done) | plan.ends()
            if not resumed:
                return summary


def _written(runner: Runner, tasks: Sequence[PartTask], progress: Progress | None) -> list[PartDone]:
    finished: list[PartDone] = []
    for one in runner.run(write_part, tasks):
        finished.append(one)
        if progress is not None:
            progress(len(finished), len(tasks))
    return finished


@contextmanager
def _swept(*folders: tuple[str, str]) -> Iterator[None]:
    """Remove files of killed writers in folders (target, folder): those of earlier runs, and those that the block ended."""
    for address, folder in folders:
        sweep(address, folder)
    try:
        yield
    finally:
        for address, folder in folders:
            sweep(address, folder)


@dataclass(frozen=True, slots=True)
class ValuesWanted:
    """The user's options about the meaning of values."""

    kind: str
    """``json`` or ``avro``."""
    schema: str | None = None
    """Fields as ``name type, …`` for JSON (None: inferred), an Avro schema for Avro."""

    def given_shape(self) -> ValueShape | None:
        """The shape, unless it is to be inferred. Raises: ConfigError."""
        match self.kind, self.schema:
            case "json", None:
                return None
            case "json", str(text):
                return json_shape(text)
            case "avro", str(text):
                return avro_shape(text)
            case "avro", None:
                raise ConfigError("Avro values do not hold their schema: give one.")
            case kind, _:
                raise ConfigError(f"Values of kind {kind!r} are not known: write json or avro.")


def _shape(
    source: StoreSession, sink: StoreSession, store: str, topic: str, wanted: ValuesWanted | None, *, is_new: bool
) -> ValueShape | None:
    """The archive's shape, as its first run recorded it. Raises: ConfigError if another is asked for."""
    key = f"{topic}/_firn/shape.json"
    try:
        known = decode_shape(decode_document(sink.run(sink.store.get(key)), key))
    except ObjectMissing:
        known = None
    if known is not None or wanted is None or not is_new:
        return _known_shape(known, wanted, is_new=is_new, archive=f"The archive of {topic}")
    shape = _new_shape(source, store, topic, wanted)
    try:
        sink.run(sink.store.put_if_absent(key, shape.encode()))
    except AlreadyExists:
        return decode_shape(decode_document(sink.run(sink.store.get(key)), key))
    return shape


def _known_shape(
    known: ValueShape | None, wanted: ValuesWanted | None, *, is_new: bool, archive: str
) -> ValueShape | None:
    """How an existing archive treats values. Raises: ConfigError if the user asks for another way."""
    if known is not None:
        given = wanted.given_shape() if wanted is not None else None
        if wanted is None or wanted.kind != known.kind or (given is not None and given != known):
            raise ConfigError(
                f"{archive} decodes its values as {known.kind} of another shape, or of one that its first run found: say the"
                " same, or name another target."
            )
        return known
    if wanted is not None and not is_new:
        raise ConfigError(f"{archive} holds values as they are: name another target to decode them.")
    return None


def _new_shape(source: StoreSession, store: str, topic: str, wanted: ValuesWanted) -> ValueShape:
    """The shape of an archive's first run. Raises: ConfigError."""
    given = wanted.given_shape()
    return given if given is not None else inferred_json_shape(_sample(source, store, topic))


def _sample(source: StoreSession, store: str, topic: str) -> list[bytes | None]:
    """Values of the first records of a topic."""
    options = _read_options(store, topic)
    values: list[bytes | None] = []
    reader = SplitReader(source, ("value",), Isolation.READ_COMMITTED, fail_on_data_loss=True, mend=JOB_MEND)
    for split in plan_read(options):
        if isinstance(split, StoredSplit):
            for batch in reader.read(split):
                values += batch.column(0).slice(0, SAMPLE_RECORDS - len(values)).to_pylist()
                if len(values) >= SAMPLE_RECORDS:
                    return values
    return values


def _snapshot(source: StoreSession, store: str, topic: str) -> Snapshot:
    """The records that can be archived now. Raises: ConfigError."""
    snapshot = source.run(take_snapshot(source, _read_options(store, topic)))
    check_has_history(snapshot.image.topics_by_name[topic], (one.state for one in snapshot.partitions))
    return snapshot


def _read_options(store: str, topic: str) -> Any:
    return parse_read_options({"store": store, "subscribe": topic}, streaming=False)


def _key(topic: str, run: int, kind: str) -> str:
    return f"{topic}/_firn/{run:020d}.{kind}"


def _last_run(sink: StoreSession, topic: str) -> tuple[int, dict[str, Any], ArchivePlan | None, ArchivePlan | None]:
    """(number of the run to do, last commit, the plan of that run if it has one already, the last commit's if it is not shown)."""
    prefix = f"{topic}/_firn/"
    names: list[str] = []
    while True:
        page = sink.run(sink.store.list_objects(prefix, start_after=names[-1] if names else ""))
        names += [info.key for info in page]
        if len(page) < 1000:
            break
    commits = sorted(name for name in names if name.endswith(".commit"))
    done: dict[str, Any] = {"version": FORMAT_VERSION, "run": -1, "ends": {}}
    if commits:
        done = decode_document(sink.run(sink.store.get(commits[-1])), commits[-1])
    run = int(done["run"]) + 1

    def plan_of(number: int) -> ArchivePlan:
        key = _key(topic, number, "plan")
        return decode_plan(sink.run(sink.store.get(key)), key)

    shown = not commits or done["version"] == 1 or _key(topic, run - 1, "shown") in names
    return (
        run,
        done,
        plan_of(run) if _key(topic, run, "plan") in names else None,
        None if shown else plan_of(run - 1),
    )


def _ends(done: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(end) for partition, end in done["ends"].items()}


def _check_topic(snapshot: Snapshot, topic: str, known: str | None, ends: Mapping[int, int], target: str) -> None:
    """``known``: id of the topic that the target was begun with. Raises: ConfigError, CorruptionError."""
    if known not in (None, str(snapshot.partitions[0].partition.topic_id)):
        raise ConfigError(
            f"{target} holds an archive of another topic {topic!r}, which was deleted since: name another target."
        )
    for one in snapshot.partitions if ends else ():
        # One that is not among them was made since.
        end = ends.get(int(one.partition.partition), 0)
        if one.start > end:
            raise CorruptionError(
                f"{one.name} starts at offset {one.start} now, the archive has come to {end}: [{end}, {one.start}) were deleted"
                " before they were archived; run archive into another target, and more often than retention deletes."
            )


def _check_folders(sink: StoreSession, topic: str, target: str, *, with_values: bool) -> None:
    """Raises: ConfigError if bad records of one topic would lie among those of another that has that name."""
    aside = f"{topic}{BAD_SUFFIX}"
    if with_values and sink.run(sink.store.list_objects(f"{aside}/_firn/", limit=1)):
        raise ConfigError(f"{target} holds an archive of the topic {aside!r}: name another target to decode values.")
    decoded = topic.removesuffix(BAD_SUFFIX)
    if decoded != topic and sink.run(sink.store.list_objects(f"{decoded}/_firn/shape.json", limit=1)):
        raise ConfigError(f"{target} keeps bad records of {decoded!r} under the name {topic!r}: name another target.")


def _put_plan(sink: StoreSession, topic: str, run: int, plan: ArchivePlan) -> ArchivePlan:
    """Write the plan down; if another run of the job was first, its plan counts."""
    key = _key(topic, run, "plan")
    try:
        sink.run(sink.store.put_if_absent(key, plan.encode()))
    except AlreadyExists:
        return decode_plan(sink.run(sink.store.get(key)), key)
    return plan


def _commit(
    sink: StoreSession,
    target: str,
    topic: str,
    run: int,
    plan: ArchivePlan,
    finished: list[PartDone],
    before: Mapping[int, int],
    *,
    with_values: bool,
) -> None:
    """Record the files of a run, unless another process has committed the same run: then the other commit counts."""
    files = sorted((asdict(file) for one in finished for file in one.files), key=lambda file: file["path"])
    document: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "run": run,
        "topic_id": plan.topic_id,
        "before": dict(before),
        "ends": dict(before) | plan.ends(),
        "records": sum(file["records"] for file in files),
        "files": files,
        "bad_files": sorted(
            (asdict(file) for one in finished for file in one.bad_files), key=lambda file: file["path"]
        ),
        "with_values": with_values,
    }
    key = _key(topic, run, "commit")
    try:
        sink.run(sink.store.put_if_absent(key, json.dumps(document).encode()))
    except AlreadyExists:
        document = decode_document(sink.run(sink.store.get(key)), key)
    _show(sink, target, topic, plan, document)


def _show(sink: StoreSession, target: str, topic: str, plan: ArchivePlan, commit: Mapping[str, Any]) -> None:
    """Make the files that a commit names visible to readers, and no other file of its plan. Repeatable, also beside others that
    do the same.

    Only now is anything removed: before the commit it is undecided which attempt counts. Costs a LIST for each thousand files
    of the archive. Raises: CorruptionError, StorageUnavailable.
    """
    key = _key(topic, int(commit["run"]), "shown")
    shown = commit["version"] == 1 or bool(sink.run(sink.store.list_objects(key, limit=1)))
    folders = [(topic, "files")]
    if commit.get("with_values") or commit["bad_files"]:  # Else it is the folder of the topic of that name.
        folders.append((f"{topic}{BAD_SUFFIX}", "bad_files"))
    before = {int(partition): int(end) for partition, end in commit.get("before", {}).items()}
    for folder, kind in folders:
        named = {file["path"] for file in commit[kind]}
        remove_files(target, folder, list(unnamed_files(plan, before, files_below(target, folder), named)))
        if not shown:
            show_files(target, folder, sorted(named))
    if not shown:
        with suppress(AlreadyExists):
            sink.run(sink.store.put_if_absent(key, b"{}"))


def _tasks(
    source: StoreSession,
    snapshot: Snapshot,
    store: str,
    target: str,
    folder: str,
    plan: ArchivePlan,
) -> Iterator[PartTask]:
    """The plan's parts with the segments that the store has for them now. Raises: CorruptionError if some of it is gone."""
    states = {int(one.partition.partition): one.state for one in snapshot.partitions}
    for part in plan.parts:
        if part.start == part.end:
            continue
        state = states[part.partition]
        if part.start < state.log_start_offset:
            raise CorruptionError(
                f"{plan.topic}-{part.partition} starts at offset {state.log_start_offset} now: a run that was begun was to"
                f" archive [{part.start}, {part.end}); archive into another target."
            )
        split = _split_of(source, snapshot, state, plan, part)
        yield PartTask(store, target, folder, plan.topic, split, part)


def _split_of(
    source: StoreSession, snapshot: Snapshot, state: ManifestState, plan: ArchivePlan, part: ArchivePart
) -> StoredSplit | None:
    partition = TopicIdPartition(TopicId(uuid.UUID(plan.topic_id)), PartitionIndex(part.partition))
    wanted = PartitionRange(
        topic=plan.topic, partition=partition, start=part.start, end=part.end, tiered_end=state.tiered_end
    )
    for entry in boundary_segments(state, part.start, part.end):
        source.run(read_footer(source, snapshot, partition, entry))
    splits = plan_splits(wanted, state, snapshot.footers, SPLIT_BYTES)
    assert len(splits) <= 1, splits
    return splits[0] if splits else None


def _count(summary: ArchiveSummary, finished: list[PartDone]) -> None:
    summary.runs += 1
    summary.parts += len(finished)
    for one in finished:
        summary.files += len(one.files)
        summary.records += sum(file.records for file in one.files)
        summary.bad_records += sum(file.records for file in one.bad_files)
        summary.bytes += sum(file.bytes for file in one.files)


# --- Iceberg --------------------------------------------------------------------------------------------------------


def archive_iceberg(
    store: str,
    topic: str,
    table_name: str,
    catalog: Mapping[str, str],
    runner: Runner,
    *,
    part_bytes: int = PART_BYTES_DEFAULT,
    values: ValuesWanted | None = None,
    progress: Progress | None = None,
) -> ArchiveSummary:
    """Append the stored records that an Iceberg table does not have yet. The table is created if needed, partitioned by day.

    ``catalog``: properties of a pyiceberg catalog (``type``, ``uri``, ``warehouse`` …). The files and the new offsets are one
    commit of the table; a run that loses a race against another adds nothing, and removes its files. Files that a killed run
    has left are in no table; below a folder the next run removes them, elsewhere Iceberg's own removal of orphan files does.

    With ``values``, they are decoded to the column ``data``; records that cannot be decoded go to the table ``<table_name>_bad``
    with the column ``reason``. It is committed first. A run that finds it ahead of the other table archives the records between
    them first. Raises: ConfigError, CorruptionError, StorageUnavailable.
    """
    from pyspark_firn.jobs.iceberg import add_files, address_of, offsets_of

    summary = ArchiveSummary(topic, table_name)
    with StoreSession(store) as source:
        while True:
            snapshot = _snapshot(source, store, topic)
            topic_id = str(snapshot.partitions[0].partition.topic_id)
            table, bad_table, shape = _tables(source, store, topic, table_name, catalog, values)
            before = offsets_of(table, topic_id)
            aside = offsets_of(bad_table, topic_id) if bad_table is not None else {}
            until = aside if any(end > before.get(partition, 0) for partition, end in aside.items()) else None
            _check_topic(snapshot, topic, topic_id, before, table_name)
            states = [one.state for one in snapshot.partitions]
            parts = cut(states, before, part_bytes, until)
            summary.ends = dict(before)
            if not parts:
                return summary
            plan = ArchivePlan(topic, topic_id, (*parts, *beginnings(states, before, parts)))
            # A topic of the same name, made again, has the same offsets.
            target, folder = address_of(table), f"data/{topic}-{topic_id}"
            bad_target = address_of(bad_table) if bad_table is not None and until is None else ""
            tasks = [
                replace(
                    task, shape=shape, bad_target=bad_target, bad_folder=folder, io_properties=dict(table.io.properties)
                )
                for task in _tasks(source, snapshot, store, target, folder, plan)
            ]
            with _swept(*((address, folder) for address in {target, bad_target} - {""})):
                finished = _written(runner, tasks, progress)
            ends = dict(before) | plan.ends()
            # By the table that takes them; that of bad records first.
            written = {target: [file.path for one in finished for file in one.files]}
            tables = {target: table}
            if bad_table is not None and bad_target:
                written = {bad_target: [file.path for one in finished for file in one.bad_files], **written}
                tables[bad_target] = bad_table
            for address in list(written):
                try:
                    add_files(
                        tables[address], [f"{address}/{folder}/{path}" for path in written[address]], topic_id, ends
                    )
                except ConfigError:
                    for refused, paths in written.items():
                        remove_written(refused, folder, paths, table.io.properties)
                    raise
                paths = written.pop(address)
                if address.startswith("file:"):
                    found = files_below(address, folder)
                    remove_files(address, folder, list(overtaken_files(before, ends, found, set(paths))))
            _count(summary, finished)
            summary.ends = ends
            if until is None:
                return summary


def _tables(
    source: StoreSession,
    store: str,
    topic: str,
    name: str,
    catalog: Mapping[str, str],
    wanted: ValuesWanted | None,
) -> tuple[Table, Table | None, ValueShape | None]:
    """(table, table of bad records if values are decoded, how they are), made if need be. Raises: ConfigError."""
    from pyspark_firn.jobs.iceberg import made_table, opened_table, shape_of

    table = opened_table(name, catalog)
    columns = arrow_schema(COLUMNS)
    if table is not None:
        shape = _known_shape(shape_of(table), wanted, is_new=False, archive=f"The table {name}")
    else:
        shape = _new_shape(source, store, topic, wanted) if wanted is not None else None
        table = made_table(name, catalog, ValueDecoder(shape, columns).good_schema if shape else columns, shape)
    if shape is None:
        return table, None, None
    bad_name = f"{name}{BAD_SUFFIX}"
    bad_table = opened_table(bad_name, catalog)
    if bad_table is None:
        bad_table = made_table(bad_name, catalog, ValueDecoder(shape, columns).bad_schema, None)
    return table, bad_table, shape
