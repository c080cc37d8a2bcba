"""Boots that are refused."""

from __future__ import annotations

import pytest
from firn_aws import AwsError, Unreachable
from firn_settings import Refused

from tests.infra.bootstrap.conftest import World


def formatted(world: World) -> bool:
    return bool(world.machine.ran_any("mkfs.xfs") or world.machine.ran_any("mkfs.ext4"))


def refused(world: World) -> str:
    """Why the boot stops. Whatever the reason: nothing was formatted, and no broker started."""
    with pytest.raises((Refused, Unreachable, AwsError)) as caught:
        world.boot().run()
    assert not formatted(world)
    assert not [command for command in world.machine.ran if command[:2] == ("systemctl", "start")]
    assert world.hooks.done == {}, "the launch hook stays open: the machine is not in service"
    return str(caught.value)


def without_disk(world: World, kind: str = "root") -> None:
    """The machine is one of many: its broker has no disk that matters."""
    data = {"kind": kind, "volume_id": None, "filesystem": "xfs"}
    world.settings |= {"node_id": "auto", "zone": None, "data": data, "advertised": None}
