"""AWS list prices, all of them here: us-east-1, on demand, US dollars, before tax and discounts.

AWS publishes them at aws.amazon.com/s3/pricing (Standard and Express One Zone; PUT, COPY, POST and LIST are one class, DELETE is
free),
aws.amazon.com/ec2/pricing/on-demand (instances; data transfer between zones is billed on either side),
aws.amazon.com/ebs/pricing (gp3) and aws.amazon.com/elasticache/pricing. Written down by hand, and held in November 2026 against
copies of the list that others publish (``docs/cost.md``); look again before you rely on one, and override it
(``firn cost --price name=value``) where yours differs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final

AS_OF: Final = "2026-11"
REGION: Final = "us-east-1"
HOURS_PER_MONTH: Final = 730
SECONDS_PER_MONTH: Final = HOURS_PER_MONTH * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars. AWS bills storage and transfer by GB of 2^30 bytes."""

    s3_gib_month_first: float = 0.023
    """S3 Standard, the first 50 TiB of an account's month."""
    s3_gib_month_next: float = 0.022
    """The next 450 TiB."""
    s3_gib_month_rest: float = 0.021
    s3_put_per_1000: float = 0.005
    """PUT, COPY, POST, LIST."""
    s3_get_per_1000: float = 0.0004
    """GET and HEAD."""
    express_gib_month: float = 0.11
    """S3 Express One Zone."""
    express_put_per_1000: float = 0.00113
    express_get_per_1000: float = 0.00003
    express_put_gib: float = 0.0032
    """Uploads are billed by bytes as well, from the first one on."""
    express_get_gib: float = 0.0006
    zone_gib_each_way: float = 0.01
    """Between two zones of a region, billed to the sender and to the receiver."""
    ebs_gib_month: float = 0.08
    """gp3, with 3,000 IOPS and 125 MiB/s."""
    ebs_mib_per_s_month: float = 0.04
    """Throughput of a gp3 volume above 125 MiB/s."""
    load_balancer_hour: float = 0.0225
    """A network load balancer, without its traffic."""
    load_balancer_gib: float = 0.006
    """Through it: a capacity unit is a GB an hour of TCP."""
    endpoint_zone_hour: float = 0.01
    """An interface endpoint, in each zone."""
    nat_hour: float = 0.045
    """A NAT gateway, without its traffic: API calls, not records."""
    http_machine_hour: float = 0.0168
    """t4g.small, for HTTP processes."""
    http_load_balancer_hour: float = 0.0225
    """An application load balancer, without its traffic."""
    kms_key_month: float = 1.0
    metric_month: float = 0.30
    """A metric of one's own in CloudWatch, the first 10,000."""
    alarm_month: float = 0.10
    spark_worker_hour: float = 0.192
    """m6i.xlarge, for a worker of Spark, without the fee of a service that runs it."""
    spark_gib: float = 0.0
    """From the bucket to Spark: free in the bucket's region."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One type, with its limits for a broker, as DescribeInstanceTypes gives them (``tests/cost/test_prices.py``). Network and EBS
    are the baselines, which do not run out of credits."""

    name: str
    hour: float
    cores: int
    network_mb_per_s: float
    nvme_gb: int
    ebs_mb_per_s: float


WITH_NVME: Final = (
    Instance("i4i.large", 0.172, 2, 97.6, 468, 78.1),
    Instance("i4i.xlarge", 0.343, 4, 234.3, 937, 156.3),
    Instance("i4i.2xlarge", 0.686, 8, 585.8, 1_875, 312.5),
)
"""For brokers whose hot tier is local: Firn."""
WITH_EBS: Final = (
    Instance("m6i.large", 0.096, 2, 97.6, 0, 81.3),
    Instance("m6i.xlarge", 0.192, 4, 195.2, 0, 156.3),
    Instance("m6i.2xlarge", 0.384, 8, 390.6, 0, 312.5),
    Instance("m6i.4xlarge", 0.768, 16, 781.2, 0, 625.0),
)
"""For brokers on EBS: Kafka."""


class StoreKind(StrEnum):
    """The kind of the store of write-ahead logs."""

    S3 = "s3"
    """A bucket of S3 Standard."""
    EXPRESS = "express"
    """A directory bucket of S3 Express One Zone."""
    FILE = "file"
    """A shared file system. Nothing is known of its price."""


@dataclass(frozen=True, slots=True)
class StorePrices:
    """Dollars of one store."""

    put_per_1000: float
    get_per_1000: float
    put_gib: float
    get_gib: float
    gib_month: float

    def of(self, puts: float, gets: float, up_gib: float = 0.0, down_gib: float = 0.0) -> float:
        """The cost of requests and their bytes."""
        requests = puts / 1000 * self.put_per_1000 + gets / 1000 * self.get_per_1000
        return requests + up_gib * self.put_gib + down_gib * self.get_gib


def store_prices(prices: Prices, kind: StoreKind = StoreKind.S3) -> StorePrices:
    """The prices of a store of that kind; those of S3 Standard for its first 50 TiB."""
    match kind:
        case StoreKind.S3:
            return StorePrices(prices.s3_put_per_1000, prices.s3_get_per_1000, 0.0, 0.0, prices.s3_gib_month_first)
        case StoreKind.EXPRESS:
            return StorePrices(
                prices.express_put_per_1000,
                prices.express_get_per_1000,
                prices.express_put_gib,
                prices.express_get_gib,
                prices.express_gib_month,
            )
        case StoreKind.FILE:
            return StorePrices(0.0, 0.0, 0.0, 0.0, 0.0)


def names() -> tuple[str, ...]:
    """The prices that can be overridden."""
    return tuple(field.name for field in fields(Prices))


def with_overrides(prices: Prices, overrides: dict[str, float]) -> Prices:
    """``prices`` with some of them replaced. Raises: KeyError for a name that is not one of ``names()``."""
    for name in overrides:
        if name not in names():
            raise KeyError(name)
    return replace(prices, **overrides)
