"""Settings: which source wins, how each spells a name, and what is said when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app import settings
from app.configs import Durability
from app.configs.broker import NODE_ID_AUTO
from app.configs.environment import environment_name
from app.core.errors import ConfigError
from app.settings import Address, catalogue, from_environment, load, parse_address


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "firn.toml"
        path.write_text(text)
        return path

    return write


def complaint(**sources: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load(**sources)
    return str(error.value)


def test_without_any_source_everything_has_a_default() -> None:
    broker = load().broker
    assert (broker.listen_host, broker.listen_port, broker.http_address) == ("127.0.0.1", 9092, "127.0.0.1:8080")
    assert broker.data_dir == "./firn-data"
    assert broker.store_url == (Path.cwd() / "firn-data-store").as_uri()


def test_each_source_is_over_the_one_before(toml: Any) -> None:
    sources: dict[str, Any] = {}
    seen = [load().broker.node_id]
    sources["config_path"] = toml("node.id = 2")
    seen.append(load(**sources).broker.node_id)
    sources["environment"] = {"FIRN_NODE_ID": "3"}
    seen.append(load(**sources).broker.node_id)
    sources["flags"] = {"--node-id": "4", "--listen": None}
    seen.append(load(**sources).broker.node_id)
    sources["assignments"] = ["node.id=5"]
    seen.append(load(**sources).broker.node_id)
    assert seen == [1, 2, 3, 4, 5]
    assert load(**sources).origins["node.id"] == "--set node.id"


def test_a_file_may_nest_quote_or_list(toml: Any) -> None:
    text = '"log.segment.bytes" = 2000000\nlog.cleanup.policy = ["delete", "compact"]\nremote.storage.enable = false\n'
    path = toml(text + "[firn]\ndurability = 'disk'\n[log.retention]\nms = -1\n")
    topics = load(config_path=path).broker.topic_defaults
    assert (topics.segment_bytes, topics.retention_ms, topics.firn_durability) == (2_000_000, -1, Durability.DISK)
    assert topics.cleanup_policy == {"delete", "compact"}


def test_every_setting_has_its_own_environment_variable() -> None:
    assert environment_name("log.segment.bytes") == "FIRN_LOG_SEGMENT_BYTES"
    assert environment_name("firn.durability") == "FIRN_DURABILITY"
    names = {environment_name(name) for name in (*catalogue(), *settings.ALIASES)}
    assert len(names) == len(catalogue()) + len(settings.ALIASES)


def test_what_kubernetes_puts_into_the_environment_is_no_setting() -> None:
    foreign = ("PORT", "PORT_9092_TCP", "PORT_9092_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_KAFKA")
    assert not load(environment={f"FIRN_{name}": "tcp://10.0.0.1:9092" for name in foreign}).origins


def test_flags_are_spellings_of_settings() -> None:
    flags = {
        "--data-dir": "/d",
        "--store": "s3://bucket/prefix?region=eu-west-1",
        "--listen": "PLAINTEXT://[::1]:7",
        "--advertise": "firn.example:9",
        "--http": "OFF",
        "--redis": "redis://h:1/0",
        "--take-over": "true",
        "--rack": "a",
    }
    broker = load(flags=flags).broker
    assert (broker.data_dir, broker.store_url) == ("/d", "s3://bucket/prefix?region=eu-west-1")
    assert (broker.listen_host, broker.listen_port) == ("::1", 7)
    assert (broker.advertised_host, broker.advertised_port) == ("firn.example", 9)
    assert (broker.http_address, broker.redis_url) == ("off", "redis://h:1/0")
    assert (broker.take_over, broker.broker_rack) == (True, "a")


def test_the_finer_of_two_units_in_one_source_counts_and_a_later_source_wins_in_any_unit() -> None:
    both = ["log.retention.ms=5", "log.retention.hours=2"]
    assert load(assignments=both).broker.topic_defaults.retention_ms == 5
    assert load(assignments=both[1:]).broker.topic_defaults.retention_ms == 7_200_000
    later = load(environment={"FIRN_LOG_RETENTION_MS": "5"}, assignments=["log.retention.hours=-1"])
    assert later.broker.topic_defaults.retention_ms == -1


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("log.segment.byte=1", "There is no setting 'log.segment.byte'. Did you mean log.segment.bytes?"),
        ("segment.bytes=1", "segment.bytes is set per topic; the broker's default for it is log.segment.bytes."),
        ("durability=disk", "There is no setting 'durability'. Did you mean firn.durability?"),
        ("zzz=1", "There is no setting 'zzz'. `firn serve --list-settings` lists all of them."),
        ("log.segment.bytes=1", "--set log.segment.bytes '1' is not allowed: value must be at least 1048576."),
        ("num.partitions=many", "--set num.partitions 'many' is not allowed: not a number of type INT."),
        (
            "firn.durability=dusk",
            "--set firn.durability 'dusk' is not allowed: string must be one of: memory, disk, object.",
        ),
        ("log.dirs=a,b", "--set log.dirs 'a,b' is not allowed: there can be only one directory."),
        ("firn.take.over=1", "--set firn.take.over '1' is not allowed: it must be true or false."),
        ("node.id", "--set 'node.id' is not of the form name=value, for example log.segment.bytes=67108864."),
    ],
)
def test_a_wrong_assignment_is_answered_with_the_mend(assignment: str, words: str) -> None:
    assert complaint(assignments=[assignment]) == words


def test_a_node_id_may_be_left_to_the_cluster() -> None:
    assert load(flags={"--node-id": "auto"}).broker.node_id == NODE_ID_AUTO
    assert load(flags={"--node-id": "0"}).broker.node_id == 0


def test_a_broker_without_a_disk_leaves_its_node_id_to_the_cluster_unless_it_is_given_one() -> None:
    flags = {"--ephemeral": "true", "--store": "s3://bucket/prefix"}
    assert load(flags=flags).broker.node_id == NODE_ID_AUTO
    assert load(flags={**flags, "--node-id": "7"}).broker.node_id == 7
    assert load(flags=flags, environment={"FIRN_NODE_ID": "8"}).broker.node_id == 8
    assert load(flags=flags, assignments=["broker.id=9"]).broker.node_id == 9


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"--listen": "here"}, "names no port; write HOST:PORT, for example here:9092"),
        ({"--listen": "h:99999"}, "port 99999 is above 65535"),
        ({"--listen": "SSL://h:1"}, "ssl.keystore.type=JKS cannot be read"),
        ({"--listen": "a b:1"}, "is not an address"),
        ({"--listen": "0.0.0.0:9092"}, "needs --advertise HOST:PORT"),
        ({"--advertise": "0.0.0.0:1"}, "clients cannot connect to a wildcard address"),
        ({"--store": "/data"}, "must be file:///path or s3://bucket/prefix"),
        ({"--store": "file://data"}, "a file URL has an absolute path, as in file:///"),
        ({"--store": "s3:///x"}, "it names no bucket"),
        ({"--redis": "localhost"}, "redis://HOST:PORT/DB"),
        ({"--node-id": "-1"}, "--node-id '-1' (node.id) is not allowed: it must be a whole number from 0 on, or auto"),
    ],
)
def test_a_wrong_flag_is_answered_with_the_mend(flags: dict[str, str | None], words: str) -> None:
    assert words in complaint(flags=flags)


def test_redis_is_refused_with_the_mend_where_its_client_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    assert f"not installed: run pip install '{Path(__file__).parents[2]}[redis]'" in complaint(
        flags={"--redis": "redis://h:1/0"}
    )


def test_a_wrong_variable_or_file_is_named(toml: Any, tmp_path: Path) -> None:
    unknown = complaint(environment={"FIRN_LOG_SEGMENT_BYTE": "1"})
    assert unknown == (
        "The environment variable FIRN_LOG_SEGMENT_BYTE is no setting of Firn. Did you mean FIRN_LOG_SEGMENT_BYTES?"
    )
    assert from_environment(dict.fromkeys(("FIRN_DEBUG", "FIRN_CONFIG", "FIRN_KAFKA_LIBS"), "x")).values == {}
    assert "FIRN_NODE_ID 'x' (node.id) is not allowed" in complaint(environment={"FIRN_NODE_ID": "x"})
    path = toml("node.id = 'x'")
    assert complaint(config_path=path).startswith(f"node.id in {path} 'x' is not allowed")
    assert "is not valid TOML" in complaint(config_path=toml("= 3"))
    assert "must be a string, a number" in complaint(config_path=toml("node.id = [1]"))
    assert "cannot be read: No such file" in complaint(config_path=tmp_path / "none.toml")


def test_settings_that_do_not_go_together_are_refused() -> None:
    lags = ["log.cleaner.min.compaction.lag.ms=10", "log.cleaner.max.compaction.lag.ms=9"]
    assert "cannot be used" in complaint(assignments=lags)
    assert "at least twice wal.bytes" in complaint(assignments=["wal.buffer.bytes=1048576"])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h:1", Address("h", 1)),
        (":1", Address("0.0.0.0", 1)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
        ("plaintext://h:1", Address("h", 1)),
        ("h", Address("h", 9092)),
    ],
)
def test_addresses_are_read_in_every_usual_form(text: str, address: Address) -> None:
    assert parse_address(text, what="--x", port_default=9092) == address


def test_importing_settings_brings_in_nothing_heavy() -> None:
    heavy = ("typer", "rich", "fastapi", "asyncio", "msgspec")
    code = f"import sys, app.settings; print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_hosts_and_origins_of_http_are_read_from_every_source_and_refused_in_one_sentence() -> None:
    flags = {
        "--http-allowed-hosts": "firn.example, *.internal.example:8080",
        "--http-allowed-origins": "https://ui.example",
    }
    config = load(flags=flags).broker
    assert config.firn_http_allowed_hosts == {"firn.example", "*.internal.example:8080"}
    assert config.firn_http_allowed_origins == {"https://ui.example"}
    assert load(environment={"FIRN_HTTP_ALLOWED_HOSTS": "*"}).broker.firn_http_allowed_hosts == {"*"}
    with pytest.raises(
        ConfigError, match=r"--http-allowed-hosts 'http://a' .*is not allowed: 'http://a' is not a host; write"
    ):
        load(flags={"--http-allowed-hosts": "http://a"})
    with pytest.raises(ConfigError, match=r"'ui.example' is not an origin; write http://NAME"):
        load(assignments=["firn.http.allowed.origins=ui.example"])
