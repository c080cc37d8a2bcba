"""A machine of the tests: a folder as its root, commands that answer from a table, a clock that nobody waits for.

S3 and EC2 are moto over a real socket, the instance metadata and Auto Scaling's hooks are ``tests.infra.imds``.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import boto3
import pytest
from firn_aws import Aws, Metadata, UrllibHttp
from firn_bootstrap import Boot
from firn_machine import Commands, Done, Machine
from firn_settings import parse_settings

from app.core.units import BrokerId
from app.hot.checkpoints import MetaProperties, encode_meta_properties
from tests.infra.imds import Instance, LifecycleServer, MetadataServer

REGION = "eu-central-1"
ZONE = "eu-central-1a"
SHA256 = "5f" * 32
CLUSTER_ID = "m2nzC-hbjdI30IBEVY3zBg"
DIRECTORY = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
OTHER_DIRECTORY = "6ba7b811-9dad-41d1-80b4-00c04fd430c8"

MOTO = Path(__file__).parents[2] / "objectstore" / "moto_server.py"


class FakeClock:
    """Time that passes only while somebody waits. ``on_sleep`` is called at each wait: the world goes on meanwhile."""

    def __init__(self) -> None:
        self.s = 1_800_000_000.0
        self.on_sleep: Callable[[], None] = lambda: None
        self.slept_s: float | None = None
        """How long every wait takes, if not as long as was asked for."""

    def now_s(self) -> float:
        return self.s

    def monotonic_s(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds if self.slept_s is None else self.slept_s
        self.on_sleep()


class FakeMachine(Machine):
    """Commands are answered by the first entry of ``answers`` that begins as they do; all are kept in ``ran``."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, FakeClock())
        self.ran: list[tuple[str, ...]] = []
        self.environments: list[Mapping[str, str]] = []
        """Of each of them."""
        self.lines: list[str] = []
        self.failures: list[str] = []
        self.mounted: str | None = None
        self.open_commands = 0
        self.answers: dict[str, Done | Callable[[tuple[str, ...]], Done]] = {}

    @property
    def fake_clock(self) -> FakeClock:
        assert isinstance(self.clock, FakeClock)
        return self.clock

    def run(self, *command: str, user: str | None = None, environment: Mapping[str, str] | None = None) -> Done:
        self.environments.append(dict(environment or {}))
        short = (Path(command[0]).name, *command[1:])
        self.ran.append((f"{user}:{short[0]}" if user else short[0], *short[1:]))
        if short[0] == "mount":
            self.mounted = command[-2]
        elif short[0] == "umount":
            self.mounted = None
        text = " ".join(short)
        for start, answer in self.answers.items():
            if text.startswith(start):
                return answer(command) if callable(answer) else answer
        return Done(0, "", "")

    def commands(self, release: Path, user: str, environment: Mapping[str, str]) -> Commands:
        machine = self

        class Fake:
            def run(self, *arguments: str) -> Done:
                assert machine.open_commands == 1
                return machine.run(str(release / "bin" / "firn"), *arguments, user=user, environment=environment)

            def close(self) -> None:
                machine.open_commands -= 1

        self.open_commands += 1
        self.ran.append((f"{user}:commands",))
        self.environments.append(environment)
        return Fake()

    def say(self, text: str, *, failed: bool = False) -> None:
        (self.failures if failed else self.lines).append(" ".join(text.split()))

    def own(self, path: Path, user: str, group: str) -> None:
        assert path.exists(), f"{user}:{group} are to own {path}"

    def mounted_from(self, place: str) -> str | None:
        assert place == "/var/lib/firn"
        return self.mounted

    def ran_any(self, program: str) -> list[tuple[str, ...]]:
        return [command for command in self.ran if command[0] in (program, f"firn:{program}")]

    def add_disk(
        self, name: str, *, serial: str = "", model: str = "", content: bytes = b"", partitions: int = 0
    ) -> Path:
        """A disk in sysfs and in /dev, with ``content`` and zeros after it."""
        device = self.path(f"/sys/block/{name}/device")
        device.mkdir(parents=True)
        (device / "serial").write_text(f"{serial}\n")
        (device / "model").write_text(f"{model:<40}\n")
        for number in range(1, partitions + 1):
            partition = device.parent / f"{name}p{number}"
            partition.mkdir()
            (partition / "partition").write_text(f"{number}\n")
        path = self.path(f"/dev/{name}")
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as out:
            out.write(content)
            out.truncate(4 << 20)
        return path


@dataclass
class World:
    """Everything around one boot. ``settings`` is bootstrap.json, to be changed by the test."""

    machine: FakeMachine
    settings: dict[str, Any]
    metadata: MetadataServer
    hooks: LifecycleServer
    s3: Any
    ec2: Any
    bucket: str
    volume_id: str
    instance_id: str
    place: dict[str, Any] = field(default_factory=dict)

    def boot(self) -> Boot:
        settings = parse_settings(json.dumps(self.settings))
        http = UrllibHttp()
        clock = self.machine.clock
        metadata = Metadata(http, clock, settings.endpoints["imds"])
        aws = Aws(http, clock, metadata, settings.region, settings.endpoints)
        return Boot(settings, self.machine, http, metadata, aws, None)

    def attached(self) -> str | None:
        attachments = self.ec2.describe_volumes(VolumeIds=[self.volume_id])["Volumes"][0]["Attachments"]
        return attachments[0]["InstanceId"] if attachments else None

    def another_instance(self) -> str:
        answer = self.ec2.run_instances(
            ImageId="ami-12c6146b", MinCount=1, MaxCount=1, Placement={"AvailabilityZone": ZONE}
        )
        return str(answer["Instances"][0]["InstanceId"])

    def say_place(self, **fields: object) -> None:
        """What ``firn cluster place`` prints."""
        found = {"cluster_id": CLUSTER_ID, "node_id": 0, "directory_id": None, "instance_id": "", **fields}
        code = 4 if found["directory_id"] is None else 0
        self.machine.answers["firn cluster place"] = Done(code, json.dumps(found), "")

    def data_directory(self, directory_id: str, cluster_id: str = CLUSTER_ID) -> None:
        data = self.machine.path("/var/lib/firn/data")
        data.mkdir(parents=True, exist_ok=True)
        meta = MetaProperties(cluster_id, BrokerId(0), UUID(directory_id))
        (data / "meta.properties").write_bytes(encode_meta_properties(meta))

    def marker(self, **fields: object) -> None:
        """What an earlier boot left on the volume."""
        folder = self.machine.path("/var/lib/firn")
        folder.mkdir(parents=True, exist_ok=True)
        says = {"version": 1, "cluster": "prod", "node_id": 0, "store": f"s3://{self.bucket}/firn", **fields}
        (folder / "volume.json").write_text(json.dumps(says))


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """S3 and EC2 on loopback, in a process of its own that ends with its standard input."""
    environment = {**os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"}  # a second of start-up
    with subprocess.Popen(
        [sys.executable, str(MOTO)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "moto did not start"
        yield f"http://127.0.0.1:{port}"
        process.stdin.close()
        process.wait()


@pytest.fixture(scope="session")
def clients(moto_endpoint: str) -> tuple[Any, Any]:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": REGION}
    return boto3.client("s3", endpoint_url=moto_endpoint, **keys), boto3.client(
        "ec2", endpoint_url=moto_endpoint, **keys
    )


@pytest.fixture(scope="session")
def hooks_server() -> Iterator[LifecycleServer]:
    server = LifecycleServer()
    yield server
    server.close()


@pytest.fixture
def hooks(hooks_server: LifecycleServer) -> LifecycleServer:
    hooks_server.forget()
    return hooks_server


@pytest.fixture(scope="session")
def metadata_server() -> Iterator[MetadataServer]:
    server = MetadataServer(Instance())
    yield server
    server.close()


@pytest.fixture
def metadata(metadata_server: MetadataServer) -> MetadataServer:
    metadata_server.become(Instance())
    return metadata_server


_SETTINGS: dict[str, Any] = {
    "version": 1,
    "role": "broker",
    "cluster": "prod",
    "node_id": 0,
    "region": REGION,
    "zone": ZONE,
    "store": "",
    "wheelhouse": {"bucket": "artifacts", "key": "firn/wheelhouse.tar.gz", "sha256": SHA256},
    "data": {"kind": "ebs", "volume_id": "", "filesystem": "xfs"},
    "accept_loss_of_untiered": False,
    "advertised": {"host": "broker-0.prod.internal", "port": 9094},
    "http": {"enabled": True, "port": 8082},
    "settings": {"log.segment.bytes": "268435456"},
    "lifecycle": {"autoscaling_group": "firn-0", "launch_hook": "launch", "terminate_hook": "drain", "heartbeat_s": 60},
    "endpoints": {},
}


@pytest.fixture
def settings() -> dict[str, Any]:
    """A bootstrap.json as Terraform writes it."""
    made = copy.deepcopy(_SETTINGS)
    made["store"] = f"s3://firn-prod/firn?region={REGION}"
    made["data"]["volume_id"] = "vol-0123456789abcdef0"
    return made


@pytest.fixture
def world(
    tmp_path: Path,
    settings: dict[str, Any],
    moto_endpoint: str,
    clients: tuple[Any, Any],
    metadata: MetadataServer,
    hooks: LifecycleServer,
) -> World:
    """A node with a blank volume that nobody has, an installed release, and an empty bucket: everything goes well."""
    s3, ec2 = clients
    bucket = f"firn-{tmp_path.name[-40:].strip('_').replace('_', '-').lower()}"
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    volume_id = ec2.create_volume(AvailabilityZone=ZONE, Size=20)["VolumeId"]
    settings["store"] = f"s3://{bucket}/firn?region={REGION}"
    settings["data"]["volume_id"] = volume_id
    settings["endpoints"] = {
        "imds": metadata.url,
        **dict.fromkeys(("s3", "ec2", "secretsmanager"), moto_endpoint),
        "autoscaling": hooks.url,
    }
    machine = FakeMachine(tmp_path / "root")
    release = machine.path(f"/opt/firn/releases/{SHA256}")
    (release / "systemd").mkdir(parents=True)
    (release / "systemd/firn.service").write_text("[Service]\n")
    (release / "systemd/60-firn.conf").write_text("vm.swappiness = 1\n")
    (release / ".complete").write_text("firn 0.1.0 (commit 0123456789ab)\n")
    made = World(machine, settings, metadata, hooks, s3, ec2, bucket, volume_id, "")
    made.instance_id = made.another_instance()
    metadata.instance.instance_id = made.instance_id
    hooks.begin("firn-0", "launch", made.instance_id)
    machine.add_disk("nvme0n1", serial="vol0root", model="Amazon Elastic Block Store", partitions=2)
    machine.add_disk("nvme1n1", serial=volume_id.replace("-", ""), model="Amazon Elastic Block Store")
    machine.answers |= {
        "blkid": Done(2, "", ""),
        "firn doctor": Done(0, json.dumps({"passed": True, "checks": [], "settings": []}), ""),
        "firn tier status": Done(0, json.dumps([{"topic": "orders", "partition": 0, "log_end_offset": 5000}]), ""),
        "systemctl show": Done(0, "ActiveState=active\nSubState=running\nResult=success\n", ""),
    }
    made.say_place()
    return made
