"""The first boot, step by step: what it does, and above all what it must not do."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from firn_aws import Aws, AwsError, Unreachable
from firn_bootstrap import INSTANCE_STORE_MODEL, LABEL, Boot, boot
from firn_machine import Done, write_units
from firn_settings import Refused

from app.configs.properties import parse_properties
from tests.infra.bootstrap.conftest import DIRECTORY, OTHER_DIRECTORY, REGION, SHA256, World
from tests.infra.bootstrap.refusals import formatted, refused, without_disk

WAIT_S = 60.0
"""How long one of two threads may wait for the other."""


def took_over(world: World) -> bool:
    """Whether the start was forced. The order holds for one start, so it is looked at while that goes on."""
    order = world.machine.path("/run/firn-bootstrap/take-over.env")
    seen: list[str | None] = []

    def show(command: tuple[str, ...]) -> Done:
        if "firn.service" in command:
            seen.append(order.read_text() if order.exists() else None)
        return Done(0, "ActiveState=active\n", "")

    world.machine.answers["systemctl show"] = show
    world.boot().run()
    assert not order.exists(), "the next start is not forced"
    assert set(seen) <= {None, "FIRN_TAKE_OVER=true\n"}
    return seen[0] is not None


# --- all goes well


@pytest.mark.ci
def test_a_blank_volume_is_attached_formatted_mounted_and_the_broker_started_in_this_order(world: World) -> None:
    world.boot().run()
    programs = [command[0] if command[0] != "systemctl" else " ".join(command[:2]) for command in world.machine.ran]
    order = ["blkid", "mkfs.xfs", "mount", "sysctl", "firn:firn", "systemctl start", "systemctl show"]
    positions = [programs.index(name) for name in order]
    assert positions == sorted(positions)
    assert world.attached() == world.instance_id
    assert ("mkfs.xfs", "-q", "-L", LABEL, "/dev/nvme1n1") in world.machine.ran
    assert ("mount", "-o", "noatime,nodev,nosuid", "/dev/nvme1n1", "/var/lib/firn") in world.machine.ran
    assert world.hooks.done == {("firn-0", "launch", world.instance_id): "CONTINUE"}
    assert world.machine.path("/opt/firn/current").readlink().name == SHA256


def test_the_boot_says_each_step_and_up_to_which_offset_the_broker_is_back(world: World) -> None:
    world.boot().run()
    assert world.machine.failures == []
    assert len(world.machine.lines) >= 8
    [last] = [line for line in world.machine.lines if "serves" in line]
    assert "orders-0 up to 5000" in last


def test_a_second_boot_of_the_same_machine_changes_nothing(world: World) -> None:
    world.boot().run()
    first = {path: path.read_bytes() for path in world.machine.root.rglob("*") if path.is_file()}
    world.machine.answers["blkid"] = Done(0, f"TYPE=xfs\nLABEL={LABEL}\n", "")
    world.machine.ran.clear()
    world.boot().run()
    assert {path: path.read_bytes() for path in world.machine.root.rglob("*") if path.is_file()} == first
    assert not formatted(world)
    assert not world.machine.ran_any("mount")
    assert any("Auto Scaling refuses to complete hook" in line for line in world.machine.lines), (
        "no launch is under way any more"
    )


def test_settings_reach_the_broker_as_the_launch_template_has_them(world: World) -> None:
    odd = {"log.segment.bytes": "268435456", "firn.http.allowed.hosts": "a b\\c,*.ä", "x=y:z": " \t#!"}
    world.settings["settings"] = odd
    world.boot().run()
    path = world.machine.path("/etc/firn/firn.properties")
    found = dict(parse_properties(path.read_text()))
    assert path.stat().st_mode & 0o777 == 0o640
    assert odd.items() <= found.items()
    assert found["firn.instance.id"] == world.instance_id
    assert found["advertised.listeners"] == "PLAINTEXT://broker-0.prod.internal:9094"
    assert found["listeners"] == "PLAINTEXT://0.0.0.0:9092"
    assert found["broker.rack"] == "eu-central-1a"


def test_the_broker_takes_the_settings_that_the_boot_writes(world: World) -> None:
    from app.settings import Verdict, review, sources_of

    world.boot().run()
    path = world.machine.path("/etc/firn/firn.properties")
    reviewed = review(sources_of(config_path=path, environment={}, flags={}))
    assert [entry.why for entry in reviewed.entries if entry.verdict is not Verdict.EFFECTIVE] == []
    assert reviewed.settings is not None
    assert reviewed.settings.broker.node_id == 0


def test_a_broker_without_a_disk_touches_none_and_takes_no_node_id_over(world: World) -> None:
    without_disk(world)
    assert not took_over(world)
    assert world.attached() is None
    assert not formatted(world)
    assert not world.machine.ran_any("blkid")
    assert [command for command in world.machine.ran if command[:3] == ("firn:firn", "cluster", "place")] == []
    assert ("mount", "--bind", "/var/lib/firn", "/var/lib/firn") in world.machine.ran
    assert not world.machine.path("/var/lib/firn/volume.json").exists()
    assert world.hooks.done == {("firn-0", "launch", world.instance_id): "CONTINUE"}
    assert any("it may be lost with this machine" in line for line in world.machine.lines)


def test_a_broker_without_a_disk_is_told_where_its_machine_is(world: World) -> None:
    from app.settings import Verdict, review, sources_of

    without_disk(world)
    world.metadata.instance.local_ipv4, world.metadata.instance.zone_id = "10.42.7.8", "euc1-az3"
    world.boot().run()
    path = world.machine.path("/etc/firn/firn.properties")
    found = dict(parse_properties(path.read_text()))
    assert (found["node.id"], found["firn.ephemeral"]) == ("auto", "true")
    assert found["advertised.listeners"] == "PLAINTEXT://10.42.7.8:9092"
    assert found["broker.rack"] == "euc1-az3"
    assert found["firn.spot.notice.endpoint"] == world.metadata.url
    reviewed = review(sources_of(config_path=path, environment={}, flags={}))
    assert [entry.why for entry in reviewed.entries if entry.verdict is not Verdict.EFFECTIVE] == []
    assert reviewed.settings is not None
    assert reviewed.settings.broker.firn_ephemeral


def test_one_of_several_brokers_keeps_its_volume_and_tells_the_address_of_its_machine(world: World) -> None:
    world.settings["advertised"] = None
    world.metadata.instance.local_ipv4 = "10.42.7.8"
    world.boot().run()
    found = dict(parse_properties(world.machine.path("/etc/firn/firn.properties").read_text()))
    assert found["advertised.listeners"] == "PLAINTEXT://10.42.7.8:9092"
    assert (found["node.id"], found["broker.rack"]) == ("0", "eu-central-1a")
    assert "firn.ephemeral" not in found
    assert world.attached() == world.instance_id


def test_a_second_boot_of_a_machine_without_a_disk_binds_nothing_again(world: World) -> None:
    without_disk(world)
    world.boot().run()
    world.machine.ran.clear()
    world.boot().run()
    assert not world.machine.ran_any("mount")


def test_a_broker_without_a_disk_may_use_an_instance_store_as_its_cache(world: World) -> None:
    without_disk(world, "instance-store")
    world.machine.add_disk("nvme2n1", serial="AWS1", model=INSTANCE_STORE_MODEL)
    world.boot().run()
    assert ("mkfs.xfs", "-q", "-L", LABEL, "/dev/nvme2n1") in world.machine.ran
    assert json.loads(world.machine.path("/var/lib/firn/volume.json").read_text())["node_id"] == "auto"


def test_a_machine_of_another_region_stops_before_it_touches_anything(world: World) -> None:
    without_disk(world)
    world.metadata.instance.zone = "us-east-1a"
    assert "the launch template is for eu-central-1" in refused(world)
    assert not world.machine.ran_any("mount")


def test_a_volume_that_another_machine_still_has_is_waited_for(world: World) -> None:
    old = world.another_instance()
    world.ec2.attach_volume(VolumeId=world.volume_id, InstanceId=old, Device="/dev/sdf")

    def released() -> None:
        if world.attached() == old:
            world.ec2.detach_volume(VolumeId=world.volume_id, InstanceId=old)

    world.machine.fake_clock.on_sleep = released
    world.boot().run()
    assert world.attached() == world.instance_id
    assert len([line for line in world.machine.lines if f"still with {old}" in line]) == 1


def test_a_long_wait_keeps_the_launch_hook_open(world: World) -> None:
    old = world.another_instance()
    world.ec2.attach_volume(VolumeId=world.volume_id, InstanceId=old, Device="/dev/sdf")
    world.machine.fake_clock.slept_s = 600.0
    assert f"still with {old} after 12300 s" in refused(world)
    assert set(world.hooks.heartbeats) == {("firn-0", "launch", world.instance_id)}
    assert len(world.hooks.heartbeats) == 21


def test_a_machine_that_is_not_being_launched_says_so_once_however_long_it_waits(world: World) -> None:
    world.hooks.forget()
    old = world.another_instance()
    world.ec2.attach_volume(VolumeId=world.volume_id, InstanceId=old, Device="/dev/sdf")
    world.machine.fake_clock.slept_s = 600.0
    refused(world)
    assert len([line for line in world.machine.lines if "did not take the heartbeat" in line]) == 1


def test_a_unit_whose_assertion_fails_is_not_waited_for(world: World) -> None:
    says = "ActiveState=inactive\nResult=success\nAssertResult=no\nAssertTimestampMonotonic=123\n"
    world.machine.answers["systemctl show"] = Done(0, says, "")
    with pytest.raises(Refused, match="a condition in its unit file does not hold"):
        world.boot().run()
    assert world.hooks.done == {}


def test_a_disk_that_the_kernel_shows_late_is_waited_for(world: World) -> None:
    device = world.machine.path("/sys/block/nvme1n1")
    hidden = device.with_name("hidden")
    device.rename(hidden)
    (hidden / "device/serial").rename(hidden / "serial-of-nobody")

    def shown() -> None:
        if hidden.exists():
            (hidden / "serial-of-nobody").rename(hidden / "device/serial")
            hidden.rename(device)

    world.machine.fake_clock.on_sleep = shown
    world.boot().run()
    assert world.machine.mounted == "/dev/nvme1n1"


def test_an_instance_store_is_found_by_its_model(world: World) -> None:
    world.settings["data"] = {"kind": "instance-store", "volume_id": None, "filesystem": "ext4"}
    world.settings["accept_loss_of_untiered"] = True
    world.machine.add_disk("nvme2n1", serial="AWS123", model=INSTANCE_STORE_MODEL)
    world.boot().run()
    assert world.machine.mounted == "/dev/nvme2n1"
    assert world.attached() is None
    assert world.machine.ran_any("mkfs.ext4") == [("mkfs.ext4", "-q", "-m", "0", "-L", LABEL, "/dev/nvme2n1")]


def with_two_instance_stores(world: World, first: bytes = b"", second: bytes = b"") -> None:
    """Serial numbers in the other order than the kernel's names. ``first`` and ``second`` are labels of file systems."""
    world.settings["data"] = {"kind": "instance-store", "volume_id": None, "filesystem": "xfs"}
    world.settings["accept_loss_of_untiered"] = True
    world.machine.add_disk("nvme2n1", serial="AWS2", model=INSTANCE_STORE_MODEL)
    world.machine.add_disk("nvme3n1", serial="AWS1", model=INSTANCE_STORE_MODEL)
    for device, label in (("/dev/nvme2n1", first), ("/dev/nvme3n1", second)):
        if label:
            found = Done(0, f"TYPE=xfs\nLABEL={label.decode()}\n", "")
            world.machine.answers = {f"blkid -p -o export {device}": found, **world.machine.answers}


@pytest.mark.parametrize("labelled", ["nvme2n1", "nvme3n1"])
def test_of_two_instance_stores_the_one_with_the_data_is_used_whatever_the_kernel_calls_it(
    world: World, labelled: str
) -> None:
    with_two_instance_stores(world, *((b"firn", b"") if labelled == "nvme2n1" else (b"", b"firn")))
    world.marker()
    world.boot().run()
    assert world.machine.mounted == f"/dev/{labelled}"
    assert not formatted(world)


def test_of_two_blank_instance_stores_the_one_with_the_lowest_serial_is_used(world: World) -> None:
    with_two_instance_stores(world)
    world.boot().run()
    assert world.machine.ran_any("mkfs.xfs") == [("mkfs.xfs", "-q", "-L", LABEL, "/dev/nvme3n1")]
    assert any("/dev/nvme3n1 (AWS1). 1 more are not used" in line for line in world.machine.lines)


def test_an_instance_store_with_data_that_the_kernel_shows_late_is_waited_for(world: World) -> None:
    with_two_instance_stores(world, b"firn")
    world.marker()
    late = world.machine.path("/sys/block/nvme2n1")
    late.rename(late.with_name("hidden"))
    (late.with_name("hidden") / "device/model").rename(world.machine.path("/model"))

    def shown() -> None:
        if not late.exists():
            world.machine.path("/model").rename(late.with_name("hidden") / "device/model")
            late.with_name("hidden").rename(late)

    world.machine.fake_clock.on_sleep = shown
    world.boot().run()
    assert world.machine.mounted == "/dev/nvme2n1"
    assert not formatted(world)


def test_two_instance_stores_that_both_have_data_stop_the_boot(world: World) -> None:
    with_two_instance_stores(world, b"firn", b"firn")
    assert "both have the label firn" in refused(world)


def test_a_machine_without_an_instance_store_is_told_to_be_another_type(world: World) -> None:
    world.settings["data"] = {"kind": "instance-store", "volume_id": None, "filesystem": "ext4"}
    world.settings["accept_loss_of_untiered"] = True
    assert "one that has NVMe" in refused(world)


def for_http(world: World, port: int) -> None:
    world.settings |= {"role": "http", "node_id": None, "data": None, "advertised": None, "store": None}
    world.settings["settings"] = {"bootstrap.servers": "b0:9092,b1:9092", "firn.http.allowed.hosts": "api.prod"}
    world.settings["endpoints"]["s3"] = "http://127.0.0.1:9"
    world.settings["http"]["port"] = port


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None: ...


def serve_health() -> ThreadingHTTPServer:
    return serve(Health)


def serve_pages(page: bytes) -> ThreadingHTTPServer:
    """A proxy that answers everything with its own page."""

    class Pages(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *arguments: object) -> None: ...

    return serve(Pages)


def serve(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


def test_a_machine_for_http_alone_touches_no_disk_and_no_bucket(world: World) -> None:
    healthy = serve_health()
    try:
        for_http(world, int(healthy.server_address[1]))
        world.boot().run()
    finally:
        healthy.shutdown()
        healthy.server_close()
    assert not world.machine.ran_any("mount")
    assert ("systemctl", "start", "--no-block", "firn-http.service") in world.machine.ran
    env = world.machine.path("/etc/firn/firn.env").read_text()
    assert 'FIRN_BOOTSTRAP="b0:9092,b1:9092"\n' in env
    assert 'FIRN_HTTP_FLAGS="--http-allowed-hosts api.prod"\n' in env
    assert len(world.hooks.done) == 1


def test_http_that_does_not_answer_is_not_put_into_service(world: World) -> None:
    for_http(world, 9)
    with pytest.raises(Refused, match="HTTP does not answer on port 9"):
        world.boot().run()
    assert world.hooks.done == {}


# --- what goes on beside the disk


def without_a_release(world: World, install: Callable[[], Done]) -> None:
    """The release is in the image's wheelhouse and not installed; ``install`` is what the installer does."""
    shutil.rmtree(world.machine.path(f"/opt/firn/releases/{SHA256}"))
    house = world.machine.path(f"/opt/firn/baked/{SHA256}")
    for name in ("wheels", "bootstrap", "systemd"):
        (house / name).mkdir(parents=True)
    world.machine.answers["python3 -sE"] = lambda command: install()


def test_the_release_is_installed_while_the_volume_is_made_ready(world: World) -> None:
    mounted = threading.Event()

    def mount(command: tuple[str, ...]) -> Done:
        mounted.set()
        return Done(0, "", "")

    def install() -> Done:
        return Done(0, "", "") if mounted.wait(WAIT_S) else Done(1, "", "nobody mounted the volume meanwhile")

    world.machine.answers["mount"] = mount
    without_a_release(world, install)
    world.boot().run()
    assert world.hooks.done == {("firn-0", "launch", world.instance_id): "CONTINUE"}
    programs = [command[0] for command in world.machine.ran]
    assert programs.index("python3") < programs.index("firn:commands"), "nothing of it runs before it is whole"


@pytest.mark.parametrize("responds", [True, False], ids=["back", "gone for good"])
def test_a_broker_that_serves_goes_on_while_auto_scaling_does_not_respond(
    world: World, monkeypatch: pytest.MonkeyPatch, responds: bool
) -> None:
    ask, asked = Aws.query, 0

    def answer(self: Aws, service: str, action: str, **parameters: str) -> Any:
        nonlocal asked
        if action == "CompleteLifecycleAction":
            asked += 1
            if not responds or asked <= 3:
                raise Unreachable("https://autoscaling does not answer (timed out)")
        return ask(self, service, action, **parameters)

    monkeypatch.setattr(Aws, "query", answer)
    world.boot().run()
    assert bool(world.hooks.done) is responds
    told = [line for line in world.machine.lines if "Auto Scaling does not respond" in line]
    assert len(told) == (1 if responds else 2)
    assert responds or "The time-out of the hook decides now" in told[1]


def test_an_installation_keeps_the_launch_hook_open(world: World) -> None:
    mounted = threading.Event()

    def mount(command: tuple[str, ...]) -> Done:
        mounted.set()
        return Done(0, "", "")

    def install() -> Done:
        end_s = time.monotonic() + WAIT_S
        mounted.wait(WAIT_S)  # the waits for the disk, which have heartbeats of their own, are over
        world.machine.fake_clock.s += 61
        while not world.hooks.heartbeats and time.monotonic() < end_s:
            threading.Event().wait(0.01)
        return Done(0, "", "") if world.hooks.heartbeats else Done(1, "", "no heartbeat came meanwhile")

    world.machine.answers["mount"] = mount
    without_a_release(world, install)
    world.boot().run()
    assert world.hooks.heartbeats == [("firn-0", "launch", world.instance_id)]


def test_a_release_that_cannot_be_installed_ends_the_wait_for_the_volume(world: World) -> None:
    old = world.another_instance()
    world.ec2.attach_volume(VolumeId=world.volume_id, InstanceId=old, Device="/dev/sdf")
    failed = threading.Event()

    def install() -> Done:
        failed.set()
        return Done(1, "", "Wheel a.whl has another SHA-256.")

    without_a_release(world, install)
    world.machine.fake_clock.on_sleep = lambda: assert_true(failed.wait(WAIT_S))
    world.machine.fake_clock.slept_s = 600.0
    assert "The release cannot be installed: Wheel a.whl" in refused(world)


def assert_true(value: bool) -> None:
    assert value


def test_a_boot_that_is_refused_says_so_at_once_and_leaves_no_half_of_a_release(world: World, tmp_path: Path) -> None:
    world.machine.answers["blkid"] = Done(0, "TYPE=ntfs\n", "")

    def install() -> Done:
        end_s = time.monotonic() + WAIT_S
        while not world.machine.failures and time.monotonic() < end_s:
            threading.Event().wait(0.01)
        return Done(0, "", "") if world.machine.failures else Done(1, "", "the refusal was not said")

    without_a_release(world, install)
    assert "holds ntfs" in line_of(world, tmp_path)
    assert world.machine.path(f"/opt/firn/releases/{SHA256}/.complete").exists()


def test_one_process_asks_for_the_place_and_examines_the_machine_and_begins_before_the_disk(world: World) -> None:
    world.boot().run()
    order = [command[0] for command in world.machine.ran]
    assert order.count("firn:commands") == 1
    assert order.index("firn:commands") < order.index("blkid")
    assert world.machine.open_commands == 0


def test_a_boot_that_is_refused_leaves_no_process_behind(world: World, tmp_path: Path) -> None:
    world.machine.answers["firn doctor"] = Done(1, "no", "")
    line_of(world, tmp_path)
    assert ("firn:commands",) in world.machine.ran
    assert world.machine.open_commands == 0


def test_what_aws_does_at_once_is_not_waited_for(world: World) -> None:
    begun_s = world.machine.fake_clock.s
    world.boot().run()
    assert world.machine.fake_clock.s - begun_s < 0.5


def test_an_image_with_baked_units_needs_no_reload_of_systemd(world: World) -> None:
    assert write_units(world.machine, world.machine.path(f"/opt/firn/releases/{SHA256}"))[0]
    world.boot().run()
    assert ("systemctl", "daemon-reload") not in world.machine.ran
    assert ("systemctl", "--no-reload", "enable", "firn-bootstrap.service") in world.machine.ran


def test_new_units_are_read_by_systemd_before_one_is_started(world: World) -> None:
    world.boot().run()
    ran = world.machine.ran
    assert ran.index(("systemctl", "daemon-reload")) < ran.index(("systemctl", "start", "--no-block", "firn.service"))


# --- what stops it


def test_a_store_that_cannot_be_reached_stops_the_boot_before_any_disk_is_looked_at(world: World) -> None:
    world.settings["endpoints"]["s3"] = "http://127.0.0.1:9"
    assert "cannot be reached" in refused(world)
    assert world.attached() is None


def test_a_bucket_that_is_not_there_stops_the_boot(world: World) -> None:
    world.settings["store"] = "s3://firn-nowhere/firn"
    assert "NoSuchBucket" in refused(world)
    assert world.attached() is None


def test_a_bucket_of_another_cluster_stops_the_boot_before_any_disk_is_looked_at(world: World) -> None:
    world.s3.put_object(Bucket=world.bucket, Key="firn/cluster/name", Body=b'{"version": 1, "cluster": "staging"}')
    assert "belongs to cluster staging; this machine belongs to prod" in refused(world)
    assert world.attached() is None


@pytest.mark.parametrize("body", [b"prod", b"{}", b"[]", b'{"version": 2, "cluster": "prod"}', b""])
def test_a_cluster_name_that_cannot_be_read_stops_the_boot(world: World, body: bytes) -> None:
    world.s3.put_object(Bucket=world.bucket, Key="firn/cluster/name", Body=body)
    assert "cluster/name" in refused(world)


def test_the_first_broker_of_a_bucket_writes_the_clusters_name(world: World) -> None:
    world.boot().run()
    body = world.s3.get_object(Bucket=world.bucket, Key="firn/cluster/name")["Body"].read()
    assert json.loads(body) == {"version": 1, "cluster": "prod"}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("TYPE=ext4\nLABEL=home\n", "holds ext4 with label home"),
        ("TYPE=xfs\n", "holds xfs"),
        ("TYPE=ntfs\nLABEL=firn\n", "holds ntfs"),
        ("PTTYPE=gpt\n", "holds gpt"),
        ("TYPE=LVM2_member\n", "holds LVM2_member"),
        ("USAGE=raid\n", "holds something"),
    ],
)
def test_a_disk_with_something_that_firn_did_not_make_is_never_formatted(world: World, found: str, words: str) -> None:
    world.machine.answers["blkid"] = Done(0, found, "")
    assert words in refused(world)


def test_a_disk_that_blkid_does_not_know_but_is_not_zeros_is_never_formatted(world: World) -> None:
    with world.machine.path("/dev/nvme1n1").open("r+b") as raw:
        raw.seek((1 << 20) - 1)
        raw.write(b"\1")
    assert "is not blank" in refused(world)


def test_a_disk_that_blkid_cannot_read_is_never_formatted(world: World) -> None:
    world.machine.answers["blkid"] = Done(4, "", "blkid: error: /dev/nvme1n1: Input/output error")
    assert "Input/output error" in refused(world)


def test_a_disk_with_partitions_is_never_formatted(world: World) -> None:
    partition = world.machine.path("/sys/block/nvme1n1/nvme1n1p1")
    partition.mkdir()
    (partition / "partition").write_text("1\n")
    assert "has partitions (nvme1n1p1)" in refused(world)


@pytest.mark.parametrize(
    "fields", [{"cluster": "staging"}, {"node_id": 1}, {"store": "s3://other/firn"}, {"version": 2}]
)
def test_the_volume_of_another_node_is_unmounted_again(world: World, fields: dict[str, Any]) -> None:
    world.machine.answers["blkid"] = Done(0, f"TYPE=xfs\nLABEL={LABEL}\n", "")
    world.marker(**fields)
    assert "Nothing was changed" in refused(world)
    assert world.machine.mounted is None


def test_a_volume_with_data_and_without_a_marker_is_refused(world: World) -> None:
    world.machine.answers["blkid"] = Done(0, f"TYPE=xfs\nLABEL={LABEL}\n", "")
    world.data_directory(DIRECTORY)
    assert "has no volume.json, but holds data/meta.properties" in refused(world)


@pytest.mark.parametrize("same", [True, False])
def test_data_of_an_image_that_gave_the_user_another_number_is_given_to_this_ones(world: World, same: bool) -> None:
    world.machine.answers["blkid"] = Done(0, f"TYPE=xfs\nLABEL={LABEL}\n", "")
    world.marker()
    world.data_directory(DIRECTORY)
    data = world.machine.path("/var/lib/firn/data")
    number = data.stat().st_uid + (0 if same else 1)
    world.machine.answers["id -u"] = Done(0, f"{number}\n", "")
    world.boot().run()
    given = [] if same else [("chown", "-R", "--", "firn:firn", str(data / "meta.properties"))]
    assert world.machine.ran_any("chown") == given


def test_a_boot_that_was_cut_off_after_the_format_goes_on(world: World) -> None:
    world.machine.answers["blkid"] = Done(0, f"TYPE=xfs\nLABEL={LABEL}\n", "")
    world.machine.path("/var/lib/firn/data").mkdir(parents=True)
    world.boot().run()
    assert world.machine.path("/var/lib/firn/volume.json").exists()


def test_a_data_directory_of_another_cluster_than_the_buckets_stops_the_boot(world: World) -> None:
    world.machine.answers["blkid"] = Done(0, f"TYPE=xfs\nLABEL={LABEL}\n", "")
    world.marker()
    world.data_directory(DIRECTORY, cluster_id="another")
    world.say_place(directory_id=DIRECTORY)
    assert "belongs to cluster another" in refused(world)


def test_a_machine_in_another_zone_stops_before_it_touches_anything(world: World) -> None:
    world.metadata.instance.zone = "eu-central-1b"
    assert "is in zone eu-central-1b" in refused(world)
    assert world.machine.ran == []


def test_a_volume_in_another_zone_is_named(world: World) -> None:
    world.volume_id = world.ec2.create_volume(AvailabilityZone="eu-central-1b", Size=20)["VolumeId"]
    world.settings["data"]["volume_id"] = world.volume_id
    assert "a volume cannot change its zone" in refused(world)


def test_a_volume_that_ec2_does_not_know_is_named(world: World) -> None:
    world.settings["data"]["volume_id"] = "vol-00000000000000000"
    assert "vol-00000000000000000" in refused(world)


def test_every_command_of_firn_that_the_boot_runs_has_the_flags_that_it_is_given(world: World) -> None:
    from app.cli.commands import application

    world.boot().run()
    seen = set()
    for _, *arguments in world.machine.ran_any("firn"):
        command = application(arguments)
        while hasattr(command, "commands"):
            seen.add(arguments[0])
            command = command.commands[arguments.pop(0)]
        known = {flag for parameter in command.params for flag in parameter.opts}
        assert {one for one in arguments if one.startswith("--")} <= known
    assert seen == {"cluster", "place", "doctor", "tier", "status"}


def test_a_damaged_partition_does_not_keep_a_broker_from_booting(world: World) -> None:
    world.boot().run()
    [doctor] = [command for command in world.machine.ran_any("firn") if command[1] == "doctor"]
    assert "--without-partitions" in doctor, "the broker takes such a partition offline alone"


def test_what_the_doctor_finds_stops_the_boot(world: World) -> None:
    check = {"name": "disk", "passed": False, "detail": "5 GiB free", "mend": "use a larger volume"}
    world.machine.answers["firn doctor"] = Done(1, json.dumps({"passed": False, "checks": [check]}), "")
    with pytest.raises(Refused, match=r"disk: 5 GiB free \(use a larger volume\)"):
        world.boot().run()
    assert not [command for command in world.machine.ran if command[:2] == ("systemctl", "start")]


def test_a_broker_that_fails_for_good_leaves_the_launch_hook_open(world: World) -> None:
    world.machine.answers["systemctl show"] = Done(0, "ActiveState=failed\nResult=exit-code\nExecMainStatus=2\n", "")
    with pytest.raises(Refused, match="exit code 2"):
        world.boot().run()
    assert world.hooks.done == {}


def test_a_release_that_nobody_brought_stops_the_boot(world: World) -> None:
    world.machine.path(f"/opt/firn/releases/{SHA256}/.complete").unlink()
    assert "neither installed nor baked" in refused(world)
    assert world.attached() is None, "no disk was looked at"


# --- one line, whatever it is that stops the boot


def line_of(world: World, tmp_path: Path, settings: bytes | None = None) -> str:
    """Run the whole boot as the command does. It must fail with one line."""
    path = tmp_path / "bootstrap.json"
    path.write_bytes(json.dumps(world.settings).encode() if settings is None else settings)
    assert boot(path, None, world.machine) == 1
    assert not [command for command in world.machine.ran if command[:2] == ("systemctl", "start")]
    [line] = world.machine.failures
    assert line.startswith("Firn does not start: ")
    return line


@pytest.mark.parametrize("out", ["", "Traceback", "[]", "null"])
def test_a_place_in_the_cluster_log_that_is_no_json_is_one_line(world: World, tmp_path: Path, out: str) -> None:
    world.machine.answers["firn cluster place"] = Done(0, out, "a warning")
    assert "`firn cluster place` prints no JSON object that can be read: a warning" in line_of(world, tmp_path)


def test_a_page_of_a_proxy_instead_of_ec2s_answer_is_one_line(world: World, tmp_path: Path) -> None:
    healthy = serve_pages(b"<html><p>who are you")
    try:
        world.settings["endpoints"]["ec2"] = f"http://127.0.0.1:{healthy.server_address[1]}"
        assert "answers DescribeVolumes with something that is no XML" in line_of(world, tmp_path)
    finally:
        healthy.shutdown()
        healthy.server_close()
    assert not formatted(world)


def test_settings_that_are_no_text_are_one_line(world: World, tmp_path: Path) -> None:
    assert "bootstrap.json is not UTF-8 text" in line_of(world, tmp_path, b'{"cluster": "\xff"}')


def test_a_mistake_of_the_program_is_one_line_with_its_place(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(self: Boot) -> None:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(Boot, "run", stumble)
    line = line_of(world, tmp_path)
    assert "this should not happen: KeyError: 'nobody thought of this' (test_boot.py, line" in line


# --- who may take a node id over


def with_another(world: World, instance_id: str) -> None:
    """The cluster log names another directory on that instance."""
    world.say_place(directory_id=OTHER_DIRECTORY, instance_id=instance_id)


def test_a_machine_that_ec2_calls_terminated_is_taken_over_from(world: World) -> None:
    old = world.another_instance()
    world.ec2.terminate_instances(InstanceIds=[old])
    with_another(world, old)
    assert took_over(world)
    assert any("What that machine had not uploaded is lost" in line for line in world.machine.lines)


@pytest.mark.parametrize("state", ["running", "stopped", "not found", "no id", "another id"])
def test_nothing_but_terminated_is_death(world: World, state: str) -> None:
    old = world.another_instance()
    if state == "stopped":
        world.ec2.stop_instances(InstanceIds=[old])
    with_another(world, {"not found": "i-00000000000000000", "no id": "", "another id": "my laptop"}.get(state, old))
    assert not took_over(world)


OLD = "i-0aaaaaaaaaaaaaaa0"


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (f"<instanceId>{OLD}</instanceId><instanceState><name>shutting-down</name></instanceState>", "(shutting-down)"),
        (
            "<instanceId>i-other</instanceId><instanceState><name>terminated</name></instanceState>",
            "(not found by EC2)",
        ),
        (f"<instanceId>{OLD}</instanceId>", "(without a state)"),
    ],
    ids=["shutting-down", "of another machine", "no state"],
)
def test_an_answer_of_ec2_that_does_not_say_terminated_of_this_machine_is_not_death(
    world: World, monkeypatch: pytest.MonkeyPatch, says: str, words: str
) -> None:
    ask = Aws.query
    text = f"<r><reservationSet><item><instancesSet><item>{says}</item></instancesSet></item></reservationSet></r>"

    def answer(self: Aws, service: str, action: str, **parameters: str) -> ElementTree.Element:
        return (
            ElementTree.fromstring(text) if action == "DescribeInstances" else ask(self, service, action, **parameters)
        )

    monkeypatch.setattr(Aws, "query", answer)
    with_another(world, OLD)
    assert not took_over(world)
    assert any(f"{words}: without force" in line for line in world.machine.lines)


@pytest.mark.parametrize(
    "error",
    [AwsError(403, "UnauthorizedOperation", "not allowed"), Unreachable("https://ec2 does not answer (timed out)")],
    ids=["refused", "unreachable"],
)
def test_an_error_of_ec2_is_not_death(
    world: World, monkeypatch: pytest.MonkeyPatch, error: AwsError | Unreachable
) -> None:
    ask = Aws.query

    def answer(self: Aws, service: str, action: str, **parameters: str) -> Any:
        if action == "DescribeInstances":
            raise error
        return ask(self, service, action, **parameters)

    monkeypatch.setattr(Aws, "query", answer)
    with_another(world, world.another_instance())
    assert not took_over(world)
    assert any("EC2 does not say" in line and "without force" in line for line in world.machine.lines)


def test_the_registered_directory_itself_asks_nobody(world: World) -> None:
    world.machine.answers["blkid"] = Done(0, f"TYPE=xfs\nLABEL={LABEL}\n", "")
    world.marker()
    world.data_directory(DIRECTORY)
    old = world.another_instance()
    world.ec2.terminate_instances(InstanceIds=[old])
    world.say_place(directory_id=DIRECTORY, instance_id=old)
    assert not took_over(world)
    assert any("it goes on here" in line for line in world.machine.lines)


def test_a_data_directory_whose_identity_is_damaged_stops_the_boot(world: World) -> None:
    world.machine.answers["blkid"] = Done(0, f"TYPE=xfs\nLABEL={LABEL}\n", "")
    world.marker()
    world.machine.path("/var/lib/firn/data").mkdir()
    world.machine.path("/var/lib/firn/data/meta.properties").write_text("directory.id=x\n")
    assert "is no directory id" in refused(world)


def test_a_cluster_log_that_cannot_be_read_stops_the_boot(world: World) -> None:
    world.machine.answers["firn cluster place"] = Done(1, "", "Error: entry 7 of the cluster log is damaged.")
    with pytest.raises(Refused, match="entry 7 of the cluster log is damaged"):
        world.boot().run()
    assert not [command for command in world.machine.ran if command[:2] == ("systemctl", "start")]


def test_a_forced_start_that_fails_leaves_no_force_behind(world: World) -> None:
    old = world.another_instance()
    world.ec2.terminate_instances(InstanceIds=[old])
    with_another(world, old)
    world.machine.answers["systemctl show"] = Done(0, "ActiveState=failed\nResult=exit-code\nExecMainStatus=1\n", "")
    with pytest.raises(Refused):
        world.boot().run()
    assert not world.machine.path("/run/firn-bootstrap/take-over.env").exists()


def test_a_broker_that_waits_for_the_old_one_is_waited_for(world: World) -> None:
    states = iter(["activating", "activating", "active"])
    texts = {"activating": "NRestarts=3\n", "active": ""}

    def show(command: tuple[str, ...]) -> Done:
        del command
        state = next(states, "active")
        return Done(0, f"ActiveState={state}\nResult=success\n{texts[state]}", "")

    world.machine.answers["systemctl show"] = show
    world.boot().run()
    assert len([line for line in world.machine.lines if "it was started 3 times more" in line]) == 1
    assert REGION in world.machine.path("/etc/firn/firn.env").read_text()
