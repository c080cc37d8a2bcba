"""What the price list says of instances, against AWS's own description of them."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from typing import Any

import pytest

pytest.importorskip("moto", reason="moto has the answer of DescribeInstanceTypes")

from app.cost.prices import WITH_EBS, WITH_NVME, Instance


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """DescribeInstanceTypes of us-east-1, as moto ships it."""
    packed = (files("moto") / "ec2" / "resources" / "instance_types.json.gz").read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(packed))
    return found


@pytest.mark.parametrize("instance", WITH_NVME + WITH_EBS, ids=lambda one: one.name)
def test_an_instance_has_the_cores_disks_and_baselines_that_aws_describes(
    instance: Instance, described: dict[str, Any]
) -> None:
    told = described[instance.name]
    assert instance.cores == told["VCpuInfo"]["DefaultVCpus"]
    assert instance.nvme_gb == told.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0)
    baseline_gbps = told["NetworkInfo"]["NetworkCards"][0]["BaselineBandwidthInGbps"]
    assert instance.network_mb_per_s == pytest.approx(baseline_gbps * 1000 / 8, abs=0.1)
    baseline_mb_per_s = told["EbsInfo"]["EbsOptimizedInfo"]["BaselineThroughputInMBps"]
    assert instance.ebs_mb_per_s == pytest.approx(baseline_mb_per_s, abs=0.1)


def test_larger_instances_of_a_family_cost_in_proportion() -> None:
    for family in (WITH_NVME, WITH_EBS):
        for one in family[1:]:
            assert one.hour / one.cores == pytest.approx(family[0].hour / family[0].cores, rel=0.01)
