"""From a workload to the bills of systems: Firn, Kafka with three replicas on EBS, Kafka with tiered storage.

With ``firn.durability=memory`` or ``disk`` Firn's brokers keep the untiered records, in one copy or several. With ``object``
acknowledged records are in the bucket, by the write-ahead log, and no broker sends records to another.

The model leaves out costs that are the same for all: the monitoring, the people, snapshots, the clients' machines, traffic that
leaves the region, discounts. Consumers of Kafka read from a replica in their own zone (KIP-392), which is the better case for it,
and so do consumers of Firn where every zone has a replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Final

from app.core.errors import ConfigError
from app.core.limits import GIB, MIB, WAL_OBJECTS_MAX
from app.cost import requests
from app.cost.prices import (
    HOURS_PER_MONTH,
    SECONDS_PER_MONTH,
    WITH_EBS,
    WITH_NVME,
    Instance,
    Prices,
    StoreKind,
    StorePrices,
    store_prices,
)
from app.cost.workload import Workload, WriteAhead

UTILISATION: Final = 0.5
"""Share of a core, of a network card and of a volume's throughput that is used in the busiest hour."""
DISK_FULL: Final = 0.7
"""Share of a disk that is used: a log directory that fills up stops a broker."""
KAFKA_REPLICAS: Final = 3
FIRN_CORES: Final = 2
"""One for the broker, one for its store process."""
EBS_FREE_MIB_PER_S: Final = 125
TIB: Final = 1024.0


@dataclass(frozen=True, slots=True)
class Work:
    """CPU seconds of a server for a GB, medians of ``loadtests/RESULTS.md`` with both systems in turns: Produce of 16 KB requests,
    hot Fetch by ten consumers, replay from a directory (Kafka) and from S3 (Firn), uploads (Firn). That Kafka uploads for as
    much is an estimate."""

    produce_s_per_gb: float
    fetch_s_per_gb: float
    cold_s_per_gb: float
    upload_s_per_gb: float


FIRN_WORK: Final = Work(2.4, 0.3, 1.8, 1.3)
FIRN_OBJECT_WORK: Final = replace(FIRN_WORK, upload_s_per_gb=2 * FIRN_WORK.upload_s_per_gb)
"""An estimate: records of the write-ahead log are uploaded once more."""
KAFKA_WORK: Final = Work(13.2, 0.3, 2.7, 1.3)

# Kafka's tier is assumed, not measured: a remote storage manager that puts a segment in parts, and its indexes and metadata
# as objects of their own, and reads chunks of 4 MiB, as the open ones do by default.
KAFKA_TIER_PART_BYTES: Final = 25 * MIB
KAFKA_TIER_OBJECTS: Final = 3
KAFKA_TIER_CHUNK_BYTES: Final = 4 * MIB


_WHERE: Final = {
    StoreKind.S3: "",
    StoreKind.EXPRESS: ", in S3 Express One Zone",
    StoreKind.FILE: ", in a file system, whose price is not known",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One position of a bill: dollars a month, and how they come about."""

    what: str
    dollars: float
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The resources around a broker that ``infra/terraform`` deploys, by number.

    Kafka's bill has none of it: its brokers are reached directly, and its way to AWS's APIs is not modelled."""

    load_balancer: int = 0
    """Network load balancers that every byte of a client goes through."""
    endpoint: int = 0
    """Interface endpoints, each in every zone."""
    nat: int = 0
    key: int = 0
    metric: int = 0
    alarm: int = 0
    http_machine: int = 0
    http_load_balancer: int = 0
    """Application load balancers, without their traffic, whose amount is not known."""

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ConfigError(f"The number of {field.name} must be 0 or more.")


NOTHING_AROUND: Final = Around()


@dataclass(frozen=True, slots=True)
class Avoidable:
    """If each producer wrote to a broker in its own zone, which puts the records into its own write-ahead log, and the partition's
    leader read them from there. Firn does not do so: the offset, and with it the acknowledgement, would wait for the leader's read
    and for another object."""

    producers_dollars: float
    """The present cost of producers' bytes between zones."""
    requests_dollars: float
    """The cost of the other way: each record is put twice, and the objects of other zones' brokers are read."""

    @property
    def saved_dollars(self) -> float:
        return self.producers_dollars - self.requests_dollars


@dataclass(frozen=True, slots=True)
class Bill:
    """One system's month."""

    system: str
    lines: tuple[Line, ...]
    operations: Mapping[str, float]
    """Requests of the month by operation; empty where nothing is known of them."""
    storage_gib_month: float
    """Dollars to keep one GiB of records for a month, in the tier where it lies for most of its life."""
    replayed_gib: float
    """Dollars to read one GiB of records again: requests, and traffic between zones. Machines are not in it."""
    avoidable: Avoidable | None = None
    """The saving by another way of producers to brokers; only of ``object`` topics."""

    @property
    def dollars(self) -> float:
        return sum(line.dollars for line in self.lines)


def bills(
    workload: Workload,
    prices: Prices,
    *,
    firn_replicas: int = 1,
    volume_gib: float | None = None,
    around: Around = NOTHING_AROUND,
    write_ahead: WriteAhead | None = None,
) -> tuple[Bill, ...]:
    """The bill of Firn first, then the bills to compare it with. Raises: ConfigError if ``volume_gib`` is too small.

    With ``write_ahead`` the first bill is that of ``firn.durability=object``, and those of brokers that keep one to three copies
    follow.
    """
    if write_ahead is None:
        of_firn = [firn(workload, prices, replicas=firn_replicas, volume_gib=volume_gib, around=around)]
    else:
        of_firn = [firn_object(workload, prices, write_ahead, volume_gib=volume_gib, around=around)]
        for replicas in (1, 2, 3):
            of_firn.append(firn(workload, prices, replicas=replicas, volume_gib=volume_gib, around=around))
    return (
        *of_firn,
        kafka(workload, prices, tiered=True),
        kafka(workload, prices, tiered=False),
    )


def firn_operations(workload: Workload, brokers: int) -> dict[str, float]:
    """Requests of a month in which as much expires as comes in."""
    segments = workload.segments_per_month
    live = workload.retained_gib * GIB / workload.rolled_bytes
    stored = workload.rolled_bytes * workload.stored_share
    return requests.add(
        requests.times(requests.copy_segment(stored), segments),
        requests.expire_segments(segments),
        requests.snapshots(4 * segments, live / workload.partitions),
        requests.times(requests.replay_segment(workload.rolled_bytes), segments * workload.replay_share),
        requests.heartbeats(SECONDS_PER_MONTH, brokers),
        requests.times(requests.sweeps(1, live / workload.partitions), workload.partitions),
    )


def firn(
    workload: Workload,
    prices: Prices,
    *,
    replicas: int = 1,
    volume_gib: float | None = None,
    around: Around = NOTHING_AROUND,
) -> Bill:
    """As many brokers as carry the load, ``replicas`` at least. ``replicas`` of the hot tier; tiered records are in the bucket
    once for any number of replicas. ``volume_gib``: the data directory of each broker lies on a gp3 volume of this size, which
    outlives the machine; None: on the machine's NVMe. Raises: as ``bills``."""
    machines = _machines(workload, FIRN_WORK, replicas, volume_gib)
    operations = firn_operations(workload, machines.count)
    stored_gib = workload.retained_gib * workload.stored_share
    lines = [
        _instances(machines.instance, machines.count),
        _s3_storage(stored_gib, prices),
        _s3_requests(operations, prices),
        *_between_zones(workload, prices, replicas, own_zone_reads=replicas >= workload.zones),
    ]
    if volume_gib is not None:
        lines += _volumes(volume_gib, machines.count, machines.disk_mb_per_s, prices)
    lines += _around(workload, around, prices)
    return Bill(
        "Firn" if replicas == 1 else f"Firn, {replicas} replicas",
        tuple(lines),
        operations,
        s3_rate(stored_gib, prices) * workload.stored_share,
        _replayed(workload, prices),
    )


def firn_object(
    workload: Workload,
    prices: Prices,
    write_ahead: WriteAhead,
    *,
    volume_gib: float | None = None,
    around: Around = NOTHING_AROUND,
) -> Bill:
    """Topics with ``firn.durability=object``: one broker has each partition, and its acknowledged records are in the bucket.

    Local disks are caches, of the same size as with one replica. Producers and consumers reach the leader in any zone.
    Raises: as ``bills``.
    """
    machines = _machines(workload, FIRN_OBJECT_WORK, 1, volume_gib, uploads=2)
    count = machines.count
    # Untiered records hold the log back, so partitions are rolled when that is too long (J38).
    objects = write_ahead_objects(workload, write_ahead, count)["put_if_absent"] / SECONDS_PER_MONTH
    rolled_bytes = min(
        workload.segment_bytes,
        write_ahead.retention_bytes * count / workload.partitions,
        workload.partition_bytes_per_s * WAL_OBJECTS_MAX / objects,
    )
    rolled = replace(workload, segment_bytes=max(1, int(rolled_bytes)))
    wal = write_ahead_operations(rolled, write_ahead, count)
    operations = requests.add(firn_operations(rolled, count), *wal.values())
    stored_gib = workload.retained_gib * workload.stored_share
    held_gib = write_ahead_gib(rolled, write_ahead, count)
    puts, _ = requests.billed(wal["objects"])
    of_wal = store_prices(prices, write_ahead.store)
    lines = [
        _instances(machines.instance, count),
        _s3_storage(stored_gib, prices),
        _s3_requests(firn_operations(rolled, count), prices),
        Line(
            "write-ahead log: PUTs",
            of_wal.of(puts, 0, up_gib=rolled.gib_per_month),
            f"{puts:,.0f} objects by {count}, of {rolled.gib_per_month * GIB / puts / MIB:,.2f} MiB on average",
        ),
        Line(
            "write-ahead log: storage",
            held_gib * of_wal.gib_month,
            f"{held_gib:,.1f} GiB of records that are not tiered yet" + _WHERE[write_ahead.store],
        ),
        _wal_others(wal, write_ahead, count, held_gib, of_wal),
        *_between_zones(workload, prices, 1, own_zone_reads=False),
    ]
    if volume_gib is not None:
        lines += _volumes(volume_gib, count, machines.disk_mb_per_s, prices)
    lines += _around(workload, around, prices)
    return Bill(
        "Firn, object",
        tuple(lines),
        operations,
        s3_rate(stored_gib, prices) * workload.stored_share,
        _replayed(rolled, prices),
        _avoidable(rolled, wal["objects"], prices, of_wal),
    )


def write_ahead_operations(workload: Workload, write_ahead: WriteAhead, brokers: int) -> dict[str, dict[str, float]]:
    """Requests of a month for the write-ahead logs of all brokers, by their purpose.

    Sealing and reading is reckoned for as many objects as a log holds.
    """
    share = 1 / brokers
    objects = write_ahead_objects(workload, write_ahead, brokers)
    month = objects["put_if_absent"]
    held = month * write_ahead_gib(workload, write_ahead, brokers) / workload.gib_per_month
    taken = requests.take_over_write_ahead(held, workload.partitions * share)
    return {
        "objects": requests.times(objects, brokers),
        "take-over": requests.times(taken, brokers * write_ahead.take_overs),
        "trimming": requests.times(
            requests.trim_write_ahead(SECONDS_PER_MONTH, month, workload.segments_per_month * share), brokers
        ),
        "sweeps": requests.sweep_write_ahead(1, held * brokers),
    }


def write_ahead_objects(workload: Workload, write_ahead: WriteAhead, brokers: int) -> dict[str, float]:
    """Requests of a month by which one of the brokers writes its log."""
    return requests.write_ahead(
        SECONDS_PER_MONTH,
        workload.write_mb_per_s * 1e6 / brokers,
        linger_ms=write_ahead.linger_ms,
        object_bytes=write_ahead.object_bytes,
        appends_per_s=write_ahead.appends_per_s / brokers,
    )


def write_ahead_gib(workload: Workload, write_ahead: WriteAhead, brokers: int) -> float:
    """GiB that the logs of all brokers hold: the records since the partition began its segment that rolls next."""
    seconds = workload.rolled_bytes / workload.partition_bytes_per_s
    held = min(workload.write_mb_per_s * 1e6 * seconds, write_ahead.retention_bytes * brokers)
    return held / GIB


def _wal_others(
    wal: Mapping[str, Mapping[str, float]],
    write_ahead: WriteAhead,
    brokers: int,
    held_gib: float,
    prices: StorePrices,
) -> Line:
    others = requests.add(wal["take-over"], wal["trimming"], wal["sweeps"])
    puts, gets = requests.billed(others)
    how = (
        f"{brokers * write_ahead.take_overs:g} take-overs, sweeps: {puts:,.0f} PUT or LIST, {gets:,.0f} GET; "
        f"{others['delete_many']:,.0f} DELETE, which are free"
    )
    # A take-over reads the objects of its log, and hardly more.
    return Line("write-ahead log: others", prices.of(puts, gets, down_gib=held_gib * write_ahead.take_overs), how)


def _avoidable(workload: Workload, objects: Mapping[str, float], prices: Prices, of_wal: StorePrices) -> Avoidable:
    """Objects are put once more, by leaders, and those of other zones are read by the brokers of each zone."""
    share = workload.crossing_share
    puts, gib, others = objects["put_if_absent"], workload.gib_per_month, workload.zones - 1
    again = 1.0 if share else 0.0
    more = of_wal.of(puts * again, puts * others, gib * again, gib * others)
    return Avoidable(gib * share * 2 * prices.zone_gib_each_way, more)


@dataclass(frozen=True, slots=True)
class _Machines:
    instance: Instance
    count: int
    disk_mb_per_s: float


def _machines(
    workload: Workload, work: Work, replicas: int, volume_gib: float | None, *, uploads: int = 1
) -> _Machines:
    """Those that carry the load of Firn. ``uploads``: so often each record is sent to the store. Raises: as ``bills``."""
    cpu = _cores(workload, work, replicas, tiered=True)
    sent = workload.write_mb_per_s * workload.peak * (replicas + workload.fan_out + uploads + workload.replay_share)
    disk_gb = workload.local_gib * GIB / 1e9 * replicas / DISK_FULL
    disk_mb_per_s = workload.write_mb_per_s * workload.peak * (replicas + workload.replay_share) / UTILISATION
    if volume_gib is None:
        instance, count = _cheapest(WITH_NVME, cpu, sent, replicas, cores_used=FIRN_CORES, nvme_gb=disk_gb)
    else:
        instance, count = _cheapest(WITH_EBS, cpu, sent, replicas, cores_used=FIRN_CORES, ebs_mb_per_s=disk_mb_per_s)
        needed_gib = disk_gb * 1e9 / GIB / count
        if volume_gib < needed_gib:
            raise ConfigError(
                f"A volume of {volume_gib:g} GiB is too small: local records fill {needed_gib:,.0f} GiB to {DISK_FULL:.0%}. "
                "Take a larger one, or keep records on the local disk for a shorter time (--local)."
            )
    return _Machines(instance, count, disk_mb_per_s)


def _replayed(workload: Workload, prices: Prices) -> float:
    """Dollars to read a GiB again."""
    per_gib = requests.times(requests.replay_segment(workload.rolled_bytes), GIB / workload.rolled_bytes)
    return request_dollars(per_gib, prices) + workload.crossing_share * 2 * prices.zone_gib_each_way


def kafka(workload: Workload, prices: Prices, *, tiered: bool) -> Bill:
    """Three replicas on gp3; with ``tiered`` only the local part of the log."""
    cpu = _cores(workload, KAFKA_WORK, KAFKA_REPLICAS, tiered=tiered)
    sent = (
        workload.write_mb_per_s * workload.peak * (KAFKA_REPLICAS + workload.fan_out + workload.replay_share + tiered)
    )
    on_disk_gib = (workload.local_gib if tiered else workload.retained_gib) * KAFKA_REPLICAS / DISK_FULL
    read_from_disk = 0.0 if tiered else workload.replay_share
    disk_mb_per_s = workload.write_mb_per_s * workload.peak * (KAFKA_REPLICAS + read_from_disk) / UTILISATION
    instance, count = _cheapest(WITH_EBS, cpu, sent, KAFKA_REPLICAS, ebs_mb_per_s=disk_mb_per_s)
    lines = [
        _instances(instance, count),
        Line("EBS", on_disk_gib * prices.ebs_gib_month, f"{on_disk_gib:,.0f} GiB of gp3, {DISK_FULL:.0%} full"),
        *_bought_throughput(disk_mb_per_s, count, prices),
        *_between_zones(workload, prices, KAFKA_REPLICAS, own_zone_reads=True, tiered=tiered),
    ]
    storage = KAFKA_REPLICAS / DISK_FULL * prices.ebs_gib_month
    per_gib_replayed = 0.0
    operations: dict[str, float] = {}
    if tiered:
        segment = workload.rolled_bytes
        operations = {
            "put": workload.segments_per_month * (ceil(segment / KAFKA_TIER_PART_BYTES) + 1 + KAFKA_TIER_OBJECTS),
            "get": workload.segments_per_month * workload.replay_share * (ceil(segment / KAFKA_TIER_CHUNK_BYTES) + 2),
        }
        lines.insert(1, _s3_storage(workload.retained_gib, prices))
        lines.insert(2, _s3_requests(operations, prices))
        storage = s3_rate(workload.retained_gib, prices)
        per_gib_replayed = request_dollars(
            {"get": GIB / segment * (ceil(segment / KAFKA_TIER_CHUNK_BYTES) + 2)}, prices
        )
        # The leader alone reads the tier, wherever the consumer is.
        per_gib_replayed += workload.crossing_share * 2 * prices.zone_gib_each_way
    return Bill("Kafka, tiered" if tiered else "Kafka, 3 × EBS", tuple(lines), operations, storage, per_gib_replayed)


def _cores(workload: Workload, work: Work, replicas: int, *, tiered: bool) -> float:
    """Cores in the busiest hour, with room. A follower fetches and appends, and appending is most of the work of a produce."""
    per_gb = work.produce_s_per_gb + work.fetch_s_per_gb * workload.fan_out
    per_gb += (replicas - 1) * (work.produce_s_per_gb / 2 + work.fetch_s_per_gb)
    per_gb += workload.replay_share * (work.cold_s_per_gb if tiered else work.fetch_s_per_gb)
    if tiered:
        per_gb += work.upload_s_per_gb
    return workload.write_mb_per_s * workload.peak / 1000 * per_gb / UTILISATION


def _cheapest(
    instances: Sequence[Instance],
    cores: float,
    network_mb_per_s: float,
    least: int,
    *,
    cores_used: int = 1 << 10,
    nvme_gb: float = 0.0,
    ebs_mb_per_s: float = 0.0,
) -> tuple[Instance, int]:
    """The cheapest type and number that carry the load, never fewer than ``least``; of the same price the fewest. ``cores_used``
    limits one machine's cores."""

    def count(one: Instance) -> int:
        wanted = [cores / min(one.cores, cores_used), network_mb_per_s / UTILISATION / one.network_mb_per_s]
        if nvme_gb:
            wanted.append(nvme_gb / one.nvme_gb)
        if ebs_mb_per_s:
            wanted.append(ebs_mb_per_s / one.ebs_mb_per_s)
        return max(least, *(ceil(share) for share in wanted))

    best = min(instances, key=lambda one: (round(count(one) * one.hour, 4), count(one)))
    return best, count(best)


def _instances(instance: Instance, count: int) -> Line:
    return Line("instances", instance.hour * HOURS_PER_MONTH * count, f"{count} × {instance.name} on demand")


def _volumes(gib: float, count: int, mb_per_s: float, prices: Prices) -> list[Line]:
    """Volumes that are paid by size, however full they are, with the throughput of the busiest hour."""
    volumes = Line("EBS", gib * count * prices.ebs_gib_month, f"{count} × {gib:,.0f} GiB of gp3")
    return [volumes, *_bought_throughput(mb_per_s, count, prices)]


def _bought_throughput(mb_per_s: float, count: int, prices: Prices) -> list[Line]:
    bought_mib = max(0.0, mb_per_s * 1e6 / MIB / count - EBS_FREE_MIB_PER_S) * count
    if not bought_mib:
        return []
    return [Line("EBS throughput", bought_mib * prices.ebs_mib_per_s_month, f"{bought_mib:,.0f} MiB/s beyond the free")]


def _around(workload: Workload, around: Around, prices: Prices) -> list[Line]:
    lines = []
    if around.load_balancer:
        gib = workload.gib_per_month * (1 + workload.fan_out + workload.replay_share)
        dollars = around.load_balancer * prices.load_balancer_hour * HOURS_PER_MONTH + gib * prices.load_balancer_gib
        lines.append(Line("load balancer", dollars, f"{around.load_balancer} for {gib:,.0f} GiB to and from clients"))
    ways = around.endpoint * workload.zones * prices.endpoint_zone_hour + around.nat * prices.nat_hour
    if ways:
        how = f"interface endpoints: {around.endpoint} in each of {workload.zones:g}; NAT gateways: {around.nat}"
        lines.append(Line("way to AWS's APIs", ways * HOURS_PER_MONTH, how))
    watching = around.metric * prices.metric_month + around.alarm * prices.alarm_month
    if watching:
        lines.append(
            Line("CloudWatch", watching, f"metrics: {around.metric}; alarms: {around.alarm}; logs by the GB besides")
        )
    hours = around.http_machine * prices.http_machine_hour + around.http_load_balancer * prices.http_load_balancer_hour
    if hours:
        how = f"machines: {around.http_machine} × t4g.small; application load balancers: {around.http_load_balancer}"
        lines.append(Line("HTTP", hours * HOURS_PER_MONTH, f"{how}; what goes through besides"))
    if around.key:
        lines.append(Line("KMS", around.key * prices.kms_key_month, f"keys: {around.key}; requests besides"))
    return lines


def _s3_storage(gib: float, prices: Prices) -> Line:
    return Line("S3 storage", gib * s3_rate(gib, prices), f"{gib:,.0f} GiB of S3 Standard")


def s3_rate(gib: float, prices: Prices) -> float:
    """Average dollars a GiB-month at this size."""
    steps = ((50 * TIB, prices.s3_gib_month_first), (450 * TIB, prices.s3_gib_month_next))
    left, dollars = gib, 0.0
    for size, price in steps:
        dollars += min(left, size) * price
        left -= min(left, size)
    return (dollars + left * prices.s3_gib_month_rest) / gib


def _s3_requests(operations: Mapping[str, float], prices: Prices) -> Line:
    puts, gets = requests.billed(operations)
    return Line("S3 requests", request_dollars(operations, prices), f"{puts:,.0f} PUT or LIST, {gets:,.0f} GET")


def request_dollars(operations: Mapping[str, float], prices: Prices) -> float:
    """The cost of these requests."""
    puts, gets = requests.billed(operations)
    return puts / 1000 * prices.s3_put_per_1000 + gets / 1000 * prices.s3_get_per_1000


def _between_zones(
    workload: Workload, prices: Prices, replicas: int, *, own_zone_reads: bool, tiered: bool = True
) -> list[Line]:
    """Producers reach a partition's leader in any zone, and so do consumers without ``own_zone_reads``. Each follower is in another
    zone than the leader."""
    share = workload.crossing_share
    consumers = 0.0 if own_zone_reads else workload.fan_out * share
    replays = 0.0 if own_zone_reads and not tiered else workload.replay_share * share
    followers = (replicas - 1) * (1.0 if workload.zones > 1 else 0.0)
    crossing = {"producers": share, "consumers": consumers + replays, "followers": followers}
    return [zone_line(whose, workload.gib_per_month * times, prices) for whose, times in crossing.items() if times]


def zone_line(whose: str, gib: float, prices: Prices) -> Line:
    """Bytes from one zone to another are billed to both."""
    return Line(f"between zones: {whose}", gib * 2 * prices.zone_gib_each_way, f"{gib:,.0f} GiB, billed on both sides")
