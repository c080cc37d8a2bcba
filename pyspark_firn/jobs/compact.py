"""``compact``: small segments of a topic merged, or only the newest value of each key kept.

A new segment covers exactly the offsets of those it replaces, and takes their place in one entry of the manifest: a consumer sees
the old ones or the new one, never a mixture. The order is the broker's own: COPY_STARTED durable → upload → every input is still
COPY_FINISHED → one entry with the inputs' DELETE_STARTED and the output's COPY_FINISHED. The broker deletes the objects of the
replaced segments when it is back, so readers that planned with them can still read them.

Beside a running cluster the partition's leader writes the manifest, asked over HTTP (``LeaderManifest``). With no broker running
the job takes that right by a SEAL (``OfflineManifest``), so a broker that was only silent finds out by its next write. Killed at
any point, the job leaves an output that is never read, and the next leader abandons it. Running the job again goes on.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import random
import ssl
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote
from uuid import UUID

from app.core.errors import BrokerUnavailable, ConfigError, ConflictError, CorruptionError, StorageUnavailable, clause
from app.core.limits import MIB
from app.core.units import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    SegmentId,
    TopicIdPartition,
)
from app.machine.files import PosixFileSystem
from app.machine.runtime import SystemClock
from app.metadata.image.image import ClusterImage
from app.metadata.log import layout
from app.metadata.manifest.manifest import SegmentEntry, SegmentManifest
from app.metadata.peers.liveness import SILENCE_MS_MAX, ObjectLiveness
from app.objectstore.api import ObjectMissing
from app.objectstore.directory import DirectPool
from app.records.batch import LOG_APPEND_TIME, BatchHeader, iter_headers, parse_header
from app.records.builder import build_batch
from app.records.record import Record, iter_records
from app.tiering.repair.verify import read_checked_footer
from app.tiering.store.segment_format import AbortedTransaction, SegmentFooter, check_stored_chunk
from app.tiering.store.store_work import InlineStoreWork, UploadJob, unfold_chunk
from app.tiering.upload import replacement
from app.tiering.upload.replacement import Replacement
from pyspark_firn.jobs.running import Runner
from pyspark_firn.jobs.sources import check_has_history
from pyspark_firn.jobs.targets import temporary_place, writing
from pyspark_firn.session import StoreSession

TARGET_BYTES_DEFAULT: Final = 512 * MIB
CHUNK_BYTES: Final = 4 * MIB
DIGEST_BYTES: Final = 16
"""Of a key: keys are told apart by 128 bits, as the broker's cleaner does."""
ATTEMPTS: Final = 4
RETRY_BASE_S: Final = 0.5
ANSWER_TIMEOUT_S: Final = 60.0
_logger = logging.getLogger("pyspark_firn")

KEYS_AT_ONCE_MAX: Final = 4_000_000
"""Keys of a partition in memory, in some 600 MB. One that has more is read again for each other part of them."""

Progress = Callable[[int, int], None]
"""Told (segments done, segments in all)."""


@dataclass(slots=True)
class CompactSummary:
    """The result of a compaction."""

    topic: str
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_dropped: int = 0
    groups_skipped: int = 0
    """Runs of segments that could not be replaced now."""
    segments_to_do: int = 0
    """How many of ``segments_before`` were looked into."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Input:
    entry: SegmentEntry
    key: str
    footer: SegmentFooter


def groups_of(finished: Sequence[SegmentEntry], target_bytes: int, *, by_key: bool) -> list[list[SegmentEntry]]:
    """Runs of neighbours worth replacing, each of at most ``target_bytes`` of records. Pure.

    Merging takes runs of two segments and more; by key every segment is looked into, alone if it has no room for another.
    """
    groups: list[list[SegmentEntry]] = []
    current: list[SegmentEntry] = []
    size = 0
    for entry in finished:
        joins = current and current[-1].end_offset == entry.base_offset and size + entry.raw_bytes <= target_bytes
        if not joins:
            if current:
                groups.append(current)
            current, size = [], 0
        current.append(entry)
        size += entry.raw_bytes
    if current:
        groups.append(current)
    return groups if by_key else [group for group in groups if len(group) > 1]


def compact(
    store: str,
    topic: str,
    *,
    http: str | None = None,
    login: HttpLogin | None = None,
    target_bytes: int = TARGET_BYTES_DEFAULT,
    by_key: bool = False,
    runner: Runner | None = None,
    progress: Progress | None = None,
) -> CompactSummary:
    """Compact every partition of a topic: through the leaders if ``http`` is an address of the cluster, else offline.
    ``login``: the caller's login at ``http``, if callers log in there.

    Beside a running cluster, only segments that have left the local disks are compacted. ``runner`` works at parts beside each
    other: at runs of segments where leaders write the manifests and nothing has to be known of the whole partition, else at
    partitions. With ``by_key`` each worker holds keys of a partition, at most ``KEYS_AT_ONCE_MAX``, and a bit for each offset.

    Raises: ConfigError (offline, and a broker lives; no such topic), ConflictError (the segments that were read have changed:
    run it again), BrokerUnavailable, CorruptionError, StorageUnavailable, FencedError.
    """
    summary = CompactSummary(topic)
    with StoreSession(store) as session:
        image = session.run(session.metadata.cluster())
        found = image.topic(topic)
        if found is None:
            raise ConfigError(f"There is no topic {topic!r} in {store}.")
        if http is None:
            session.run(_check_silence(session, image))
        parts: list[CompactPart] = []
        states = []
        for one in found.partitions:
            partition = TopicIdPartition(found.topic_id, one.partition_index)
            states.append(session.run(session.metadata.manifest(partition)))
            finished = list(states[-1].finished)
            summary.segments_before += len(finished)
            summary.bytes_before += sum(entry.raw_bytes for entry in finished)
            groups = groups_of(finished, target_bytes, by_key=by_key)
            for some in [groups] if http is None or by_key else [[group] for group in groups]:
                ids = tuple(tuple(entry.segment_id for entry in group) for group in some)
                if ids:
                    parts.append(CompactPart(store, topic, partition, one.leader_epoch, http, ids, by_key, login))
        check_has_history(found, states)
        summary.segments_to_do = sum(len(group) for part in parts for group in part.groups)
        for done in _run(parts, runner, summary, progress):
            summary.records_dropped += done.records_dropped
            summary.groups_skipped += done.groups_skipped
        for one in found.partitions:
            finished = _finished(session, TopicIdPartition(found.topic_id, one.partition_index))
            summary.segments_after += len(finished)
            summary.bytes_after += sum(entry.raw_bytes for entry in finished)
    return summary


@dataclass(frozen=True, slots=True)
class HttpLogin:
    """The login for HTTP requests."""

    authorization: str = field(repr=False)
    """The header: ``Basic …`` or ``Bearer …``."""
    trust: str = ""
    """PEM file of the authority of HTTPS; empty for the system's."""


@dataclass(frozen=True, slots=True)
class CompactPart:
    """Some runs of segments of one partition for a worker."""

    store: str
    topic: str
    partition: TopicIdPartition
    leader_epoch: LeaderEpoch
    http: str | None
    groups: tuple[tuple[UUID, ...], ...]
    by_key: bool
    login: HttpLogin | None = None


@dataclass(slots=True)
class CompactedPart:
    """The result of a part."""

    segments: int = 0
    records_dropped: int = 0
    groups_skipped: int = 0


def compact_part(part: CompactPart, progress: Callable[[int], None] | None = None) -> CompactedPart:
    """Replace the segments of a part; ``progress`` is told how many are done, after each run. Raises: as ``compact``."""
    with StoreSession(part.store) as session:
        writer: ManifestWriter = (
            OfflineManifest(session, part.partition, part.leader_epoch)
            if part.http is None
            else LeaderManifest(part.http, part.topic, part.partition.partition, part.login)
        )
        return Compaction(session, part.partition, writer, by_key=part.by_key).run(part.groups, progress)


def _run(
    parts: Sequence[CompactPart], runner: Runner | None, summary: CompactSummary, progress: Progress | None
) -> Iterator[CompactedPart]:
    """Results of the parts; ``progress`` hears of every run of segments where they are done in this process."""
    done = 0

    def report(segments: int) -> None:
        if progress is not None:
            progress(done + segments, summary.segments_to_do)

    if runner is None or runner.parallelism == 1 or len(parts) == 1:
        results: Iterator[CompactedPart] = (compact_part(part, report) for part in parts)
    else:
        results = runner.run(compact_part, parts)
    for result in results:
        done += result.segments
        report(0)
        yield result


def _finished(session: StoreSession, partition: TopicIdPartition) -> list[SegmentEntry]:
    return list(session.run(session.metadata.manifest(partition)).finished)


async def _check_silence(session: StoreSession, image: ClusterImage) -> None:
    """Raises: ConfigError if a broker has given a sign of life in the store lately."""
    liveness = ObjectLiveness(session.store, rng=random.Random(), clock=SystemClock())
    for broker in image.brokers.values():
        age_ms = await liveness.age_ms(broker.broker_id, broker.directory_id)
        if age_ms is not None and age_ms < SILENCE_MS_MAX:
            raise ConfigError(
                f"Broker {broker.broker_id} has given a sign of life {age_ms / 1000:.0f} s ago: stop it, or wait until it has been"
                f" silent for {SILENCE_MS_MAX / 1000:.0f} s."
            )


class ManifestWriter(Protocol):
    """Who writes the manifest of a partition for the job. Every step may be repeated.

    Each raises, with nothing changed: ConflictError (the inputs are not readable neighbours any more).
    """

    def begin(self, wanted: Replacement) -> None:
        """COPY_STARTED of the output is durable when this returns."""
        ...

    def finish(self, wanted: Replacement) -> None:
        """The output, whose object is whole in the store, is in the place of the inputs when this returns."""
        ...

    def give_up(self, wanted: Replacement) -> None:
        """The output will not come."""
        ...


class OfflineManifest:
    """The job itself, of a partition whose broker does not run."""

    def __init__(self, session: StoreSession, partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> None:
        self._session = session
        self._work = _work_of(session)
        self._manifest = SegmentManifest(
            session.store,
            *partition,
            writer_id=f"compact-{uuid.uuid4()}",
            broker_id=BrokerId(-1),
            leader_epoch=leader_epoch,
            rng=random.Random(),
            clock=SystemClock(),
        )
        session.run(self._manifest.load())

    def begin(self, wanted: Replacement) -> None:
        self._session.run(replacement.begin(self._manifest, wanted, local_start_offset=wanted.end_offset))

    def finish(self, wanted: Replacement) -> None:
        self._session.run(replacement.finish(self._manifest, wanted, self._work))

    def give_up(self, wanted: Replacement) -> None:
        self._session.run(replacement.give_up(self._manifest, wanted.segment_id))


class LeaderManifest:
    """The partition's leader, reached through any of the cluster's HTTP addresses."""

    def __init__(self, address: str, topic: str, partition: PartitionIndex, login: HttpLogin | None = None) -> None:
        self._url = f"{address.rstrip('/')}/firn/v1/topics/{quote(topic)}/partitions/{partition}/replacements"
        self._headers = {"Content-Type": "application/json"}
        self._context: ssl.SSLContext | None = None
        if login is not None:
            self._headers["Authorization"] = login.authorization
            if login.trust and self._url.startswith("https:"):
                self._context = ssl.create_default_context(cafile=login.trust)

    def begin(self, wanted: Replacement) -> None:
        self._ask("begin", wanted)

    def finish(self, wanted: Replacement) -> None:
        self._ask("finish", wanted)

    def give_up(self, wanted: Replacement) -> None:
        self._ask("give-up", wanted)

    def _ask(self, step: str, wanted: Replacement) -> None:
        """Raises: ConflictError, BrokerUnavailable, ConfigError."""
        body = json.dumps(
            {
                "step": step,
                "inputs": [str(segment_id) for segment_id in wanted.inputs],
                "segment_id": str(wanted.segment_id),
                "base_offset": wanted.base_offset,
                "end_offset": wanted.end_offset,
            }
        ).encode()
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        failure = BrokerUnavailable(f"{self._url} was not asked.")
        for attempt in range(ATTEMPTS):
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S, context=self._context):
                    return
            except urllib.error.HTTPError as error:
                message = _message_of(error)
                if error.code == HTTPStatus.CONFLICT:
                    raise ConflictError(message) from None
                if error.code == HTTPStatus.UNPROCESSABLE_ENTITY and "`output`" in message:
                    raise ConfigError(
                        f"{self._url} is served by an older version of Firn, which asks for the whole record of the new segment."
                        " Nothing was changed. Upgrade the brokers and the http process."
                    ) from None
                if error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise ConfigError(f"{self._url} refuses: {clause(message)}.") from None
                failure = BrokerUnavailable(f"{self._url}: {clause(message)}.")
            except (OSError, http.client.HTTPException) as error:
                failure = BrokerUnavailable(f"{self._url} cannot be reached: {clause(error)}.")
            if attempt + 1 < ATTEMPTS:
                time.sleep(RETRY_BASE_S * 2**attempt)
        raise failure


def _message_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"{error.code} {error.reason}"


class Compaction:
    """Of one partition."""

    def __init__(
        self,
        session: StoreSession,
        partition: TopicIdPartition,
        writer: ManifestWriter,
        *,
        by_key: bool,
    ) -> None:
        self._session = session
        self._partition = partition
        self._writer = writer
        self._by_key = by_key
        self._done = CompactedPart()

    def run(self, groups: Sequence[Sequence[UUID]], progress: Callable[[int], None] | None) -> CompactedPart:
        finished = _finished(self._session, self._partition)
        by_id = {entry.segment_id: entry for entry in finished}
        superseded = self._older_values(finished) if self._by_key and groups else None
        for group in groups:
            entries = [by_id[segment_id] for segment_id in group if segment_id in by_id]
            skipped, dropped = self._done.groups_skipped, self._done.records_dropped
            try:
                if len(entries) < len(group):
                    raise ObjectMissing("It is in the manifest no more.")
                self._replace([self._input(entry) for entry in entries], superseded)
            except ObjectMissing as error:
                self._skip(f"some of a run of segments was deleted or replaced: {error}")
            if self._done.groups_skipped > skipped:
                self._done.records_dropped = dropped
            self._done.segments += len(group)
            if progress is not None:
                progress(self._done.segments)
        return self._done

    def _input(self, entry: SegmentEntry) -> _Input:
        key = entry.object_key(*self._partition)
        footer, _ = self._session.run(read_checked_footer(self._session.store, self._partition, entry, key))
        return _Input(entry, key, footer)

    # --- records ----------------------------------------------------------------------------------------------------

    def _batches(self, one: _Input) -> Iterator[tuple[BatchHeader, memoryview]]:
        for chunk in one.footer.chunks:
            end = chunk.position + chunk.stored_bytes
            stored = self._session.run(self._session.store.get_range(one.key, chunk.position, end))
            check_stored_chunk(stored, chunk, one.key)
            raw = memoryview(unfold_chunk(stored, chunk, one.key))
            for position, header in iter_headers(raw):
                yield header, raw[position : position + header.size_bytes]

    def _older_values(self, entries: Sequence[SegmentEntry]) -> Superseded:
        """Every committed record of the store behind which there is another of its key."""
        superseded = Superseded(entries[0].base_offset, entries[-1].end_offset)
        shares = [KeyShare(0, 1)]
        while shares:
            share = shares.pop()
            newest: dict[bytes, int] = {}
            for record in self.keyed(entries):
                digest = _digest(record.key or b"")
                if not share.has(digest):
                    continue
                before = newest.get(digest)
                if before is not None:
                    superseded.add(before)
                newest[digest] = record.offset
                if len(newest) > KEYS_AT_ONCE_MAX:
                    # The findings so far are true. Half of the keys are dropped here and found again later, from the start.
                    share, other = share.halves()
                    shares.append(other)
                    newest = {digest: offset for digest, offset in newest.items() if share.has(digest)}
        return superseded

    def keyed(self, entries: Sequence[SegmentEntry]) -> Iterator[Record]:
        """The committed records that have a key."""
        for entry in entries:
            try:
                one = self._input(entry)
                for header, batch in self._batches(one):
                    if not header.is_control and not _is_aborted(header, one.footer.aborted):
                        yield from (record for record in iter_records(batch) if record.key is not None)
            except ObjectMissing:
                # Deleted or replaced meanwhile. A record that was not read does not replace older ones.
                _logger.warning("%s: %s is not there any more", self._partition, entry.object_key(*self._partition))

    def _kept(self, one: _Input, superseded: Superseded | None, *, is_first: bool) -> Iterator[bytes | memoryview]:
        """The batches of an input that go into the output, rewritten where records of theirs are dropped."""
        if superseded is None:
            yield from (batch for _, batch in self._batches(one))
            return
        for header, batch in self._batches(one):
            if header.is_control or not header.record_count:
                is_first = False
                yield batch
                continue
            records = list(iter_records(batch))
            aborted = _is_aborted(header, one.footer.aborted)
            kept = [] if aborted else [record for record in records if record.offset not in superseded]
            self._done.records_dropped += len(records) - len(kept)
            if len(kept) == len(records):
                yield batch
            elif kept or is_first:
                # The first batch stays, if need be without records: a segment begins with its base offset.
                yield _rewritten(header, kept)
            is_first = False

    # --- the swap ---------------------------------------------------------------------------------------------------

    def _replace(self, inputs: Sequence[_Input], superseded: Superseded | None) -> None:
        # Without a name, so that it goes with its process, however that ends.
        with writing(temporary_place()), tempfile.TemporaryFile(prefix="firn-compact-") as file:
            written = 0
            dropped_before = self._done.records_dropped
            end = inputs[0].entry.base_offset
            for number, one in enumerate(inputs):
                for batch in self._kept(one, superseded, is_first=number == 0):
                    written += file.write(batch)
                    end = parse_header(batch).end_offset
            if end < inputs[-1].entry.end_offset:
                written += file.write(_empty_end(inputs[-1]))
            file.flush()
            if len(inputs) == 1 and self._done.records_dropped == dropped_before:
                return  # Nothing to gain.
            self._upload_and_swap(inputs, Path(f"/dev/fd/{file.fileno()}"), written)

    def _upload_and_swap(self, inputs: Sequence[_Input], path: Path, log_bytes: int) -> None:
        wanted = Replacement(
            SegmentId(uuid.uuid4()),
            inputs[0].entry.base_offset,
            inputs[-1].entry.end_offset,
            tuple(one.entry.segment_id for one in inputs),
        )
        try:
            self._writer.begin(wanted)
        except ConflictError as error:
            # Some of it is still on a local disk, or was deleted: another run will find it as it is then.
            self._skip(error)
            return
        try:
            self._session.run(self.upload(wanted, inputs, path, log_bytes))
            self._writer.finish(wanted)
        except (ConflictError, CorruptionError, StorageUnavailable) as error:
            self._writer.give_up(wanted)
            if not isinstance(error, ConflictError):
                raise
            self._skip(error)

    def _skip(self, reason: object) -> None:
        self._done.groups_skipped += 1
        _logger.warning("%s: %s", self._partition, reason)

    async def upload(self, wanted: Replacement, inputs: Sequence[_Input], path: Path, log_bytes: int) -> None:
        """Upload the output. Raises: CorruptionError, StorageUnavailable."""
        last = inputs[-1]
        aborted = sorted({transaction for one in inputs for transaction in one.footer.aborted}, key=_first_offset)
        await _work_of(self._session).upload_segment(
            UploadJob(
                key=layout.segment_key(*self._partition, wanted.base_offset, wanted.segment_id),
                segment_id=wanted.segment_id.bytes,
                topic_id=self._partition.topic_id.bytes,
                partition=self._partition.partition,
                path=str(path),
                log_bytes=log_bytes,
                base_offset=wanted.base_offset,
                end_offset=wanted.end_offset,
                leader_epochs=[(one.epoch, one.start_offset) for one in last.footer.leader_epochs],
                aborted=[
                    (one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset) for one in aborted
                ],
                producer_snapshot=last.footer.producer_snapshot,
                compression="auto",
                chunk_bytes=CHUNK_BYTES,
                created_ms=SystemClock().now_ms(),
            )
        )


def _work_of(session: StoreSession) -> InlineStoreWork:
    return InlineStoreWork(session.store, PosixFileSystem(), DirectPool(), random.Random())


class Superseded:
    """Offsets of [base, end), a bit for each."""

    def __init__(self, base_offset: Offset, end_offset: Offset) -> None:
        self._base = base_offset
        self._bits = bytearray((end_offset - base_offset + 7) // 8)

    def add(self, offset: int) -> None:
        at = offset - self._base
        self._bits[at >> 3] |= 1 << (at & 7)

    def __contains__(self, offset: int) -> bool:
        at = offset - self._base
        return bool(self._bits[at >> 3] >> (at & 7) & 1)


class KeyShare(NamedTuple):
    """The keys whose digest, as a number, leaves ``rest`` when it is divided by ``divisor``, a power of two."""

    rest: int
    divisor: int

    def has(self, digest: bytes) -> bool:
        return int.from_bytes(digest[:4]) % self.divisor == self.rest

    def halves(self) -> tuple[KeyShare, KeyShare]:
        divisor = 2 * self.divisor
        return KeyShare(self.rest, divisor), KeyShare(self.rest + self.divisor, divisor)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


def _first_offset(transaction: AbortedTransaction) -> tuple[int, int]:
    return transaction.first_offset, transaction.producer_id


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        header.producer_id == one.producer_id and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )


def _rewritten(header: BatchHeader, kept: Sequence[Record]) -> bytes:
    """The batch with only some of its records, at the same offsets and of the same producer."""
    return build_batch(
        [record[1:] for record in kept],
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        codec=header.codec if kept else 0,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        log_append_time=header.max_timestamp if header.attributes & LOG_APPEND_TIME else None,
        offset_deltas=[record.offset - header.base_offset for record in kept],
        last_offset_delta=header.last_offset_delta,
    )


def _empty_end(last: _Input) -> bytes:
    """A batch without records that covers the last offset of a segment: a segment ends where its last batch does."""
    return build_batch(
        [],
        base_offset=Offset(last.entry.end_offset - 1),
        last_offset_delta=0,
        leader_epoch=last.footer.leader_epochs[-1].epoch if last.footer.leader_epochs else NO_LEADER_EPOCH,
    )
