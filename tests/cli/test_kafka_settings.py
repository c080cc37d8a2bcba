"""Files of Apache Kafka as settings: what takes effect, what means nothing here, what is refused; and what is told of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.configs.properties import parse_properties
from app.configs.validation import validate_broker_configs
from app.configs.without_effect import NOT_KEPT, set_aside
from app.core.errors import ConfigError
from app.settings import Settings, Verdict, from_environment, load, read_config_file, review

STOCK = Path(__file__).parent / "stock_server.properties"


@pytest.fixture
def properties(tmp_path: Path) -> Any:
    def write(*lines: str) -> Path:
        path = tmp_path / "server.properties"
        path.write_text("\n".join(lines) + "\n", encoding="latin-1")
        return path

    return write


def complaint(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        load(config_path=path)
    return str(error.value)


def told(settings: Settings) -> str:
    return set_aside(settings.broker) or ""


def test_the_stock_file_of_kafka_makes_a_broker() -> None:
    settings = load(config_path=STOCK)
    broker = settings.broker
    assert (broker.node_id, broker.data_dir) == (1, "/tmp/kraft-combined-logs")
    assert (broker.listen_host, broker.listen_port) == ("0.0.0.0", 9092)
    assert (broker.advertised_host, broker.advertised_port) == ("localhost", 9092)
    assert broker.topic_defaults.retention_ms == 168 * 3_600_000
    assert broker.topic_defaults.segment_bytes == 1 << 30
    assert settings.origins["listeners"] == f"listeners in {STOCK}"


def test_what_means_nothing_is_named_once_with_its_reason() -> None:
    line = told(load(config_path=STOCK))
    assert "\n" not in line
    assert "num.io.threads, num.network.threads, num.recovery.threads.per.data.dir (a broker is one event loop" in line
    for name in ("process.roles", "controller.quorum.bootstrap.servers"):
        assert line.count(name) == 1
    assert "listeners" not in line.replace("inter.broker.listener.name", "")
    assert told(load()) == ""


def test_described_settings_without_effect_are_named_too(properties: Any) -> None:
    path = properties("log.preallocate=true", "unclean.leader.election.enable=true", "num.partitions=2")
    config = load(config_path=path).broker
    assert config.topic_defaults.preallocate, "it is described as it was given"
    said = set_aside(config)
    assert said is not None
    assert "log.preallocate (a segment's file grows with what is written to it)" in said
    assert "unclean.leader.election.enable" not in said
    assert "num.partitions" not in said
    found = {entry.name: (entry.verdict, entry.why) for entry in review([read_config_file(path)]).entries}
    assert found["log.preallocate"] == (Verdict.NO_MEANING, "A segment's file grows with what is written to it.")


def test_the_order_of_assignors_counts_and_one_is_needed(properties: Any) -> None:
    assert load(config_path=properties("group.consumer.assignors=range,uniform")).broker.group_consumer_assignors == (
        "range",
        "uniform",
    )
    assert "must not be empty" in complaint(properties("group.consumer.assignors="))


def test_choices_are_read_in_any_case_where_kafka_does(properties: Any) -> None:
    broker = load(config_path=properties("group.consumer.migration.policy=Disabled")).broker
    assert broker.group_consumer_migration_policy == "disabled"
    assert "must be one of" in complaint(properties("log.message.timestamp.type=createtime"))


def test_a_setting_without_effect_still_has_a_type(properties: Any) -> None:
    assert "num.io.threads" in complaint(properties("num.io.threads=many"))
    assert "value must be at least 1" in complaint(properties("num.io.threads=0"))


def test_what_protects_is_refused_rather_than_left_aside(properties: Any) -> None:
    words = complaint(properties("authorizer.class.name=com.example.Authorizer"))
    assert "string must be one of: , org.apache.kafka.metadata.authorizer.StandardAuthorizer" in words
    assert "--config" not in words
    load(config_path=properties("authorizer.class.name="))
    load(config_path=properties("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"))
    for name in ("create.topic.policy.class.name", "client.quota.callback.class"):
        assert "Firn runs no Java classes" in complaint(properties(f"{name}=com.example.Policy"))
    assert "needs no controllers" in complaint(properties("process.roles=controller"))
    assert "values are not fetched" in complaint(properties("config.providers=file"))


def test_all_that_is_refused_is_counted_and_listed(properties: Any) -> None:
    path = properties("num.partitions=none", "no.such.setting=1", "process.roles=controller", "node.id=3")
    assert "2 other settings are refused too; `firn doctor --config FILE` lists all." in complaint(path)
    found = {entry.name: entry.verdict for entry in review([read_config_file(path)]).entries}
    assert found["node.id"] is Verdict.EFFECTIVE
    assert sorted(name for name, verdict in found.items() if verdict is Verdict.REFUSED) == [
        "no.such.setting",
        "num.partitions",
        "process.roles",
    ]


@pytest.mark.parametrize(
    ("lines", "listens", "advertises"),
    [
        (["listeners=INTERNAL://:19092", "listener.security.protocol.map=INTERNAL:PLAINTEXT"], 19092, None),
        (["listeners=PLAINTEXT://:1,CTRL://:2", "controller.listener.names=CTRL"], 1, None),
        (["listeners=PLAINTEXT://h:1", "advertised.listeners=plaintext://b:7,CONTROLLER://c:8"], 1, ("b", 7)),
        (
            ["listeners=OUT://h:1", "listener.security.protocol.map=OUT:PLAINTEXT", "advertised.listeners=b:7"],
            1,
            ("b", 7),
        ),
        # The map may stand after what it is needed for, and in another place.
        (["listener.security.protocol.map=A:PLAINTEXT", "listeners=A://h:5"], 5, None),
    ],
)
def test_the_listener_of_clients_is_found_by_name_and_protocol(
    properties: Any, lines: list[str], listens: int, advertises: tuple[str, int] | None
) -> None:
    if advertises is None:
        lines = [*lines, "advertised.listeners=somewhere:7"]
    broker = load(config_path=properties(*lines)).broker
    assert broker.listen_port == listens
    assert (broker.advertised_host, broker.advertised_port) == (advertises or ("somewhere", 7))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["listeners=SASL_SSL://:9092"], "Listener SASL_SSL cannot serve GSSAPI"),
        (["listeners=A://:1", "listener.security.protocol.map=A:SSL"], "ssl.keystore.type=JKS cannot be read"),
        (["listeners=A://:1"], "nothing says what A:// is"),
        (["listeners=CONTROLLER://:9093"], "it has no listener for clients"),
        (
            ["listeners=IN://:1,OUT://h:2", "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT"],
            "It is missing for IN",
        ),
        (["listener.security.protocol.map=A"], "it must be of the form NAME:PROTOCOL"),
        (["advertised.listeners=PLAINTEXT://0.0.0.0:1"], "clients cannot connect to a wildcard address"),
    ],
)
def test_listeners_that_cannot_be_served_are_refused(properties: Any, lines: list[str], words: str) -> None:
    assert words in complaint(properties(*lines))


def test_older_names_give_way_to_newer_ones_in_one_file(properties: Any) -> None:
    for lines in (["log.dir=/old", "log.dirs=/new"], ["log.dirs=/new", "log.dir=/old"]):
        assert load(config_path=properties(*lines)).broker.data_dir == "/new"
    assert load(config_path=properties("broker.id=5")).broker.node_id == 5


def test_files_of_kafka_3_are_read_too(properties: Any) -> None:
    settings = load(
        config_path=properties("broker.id=0", "zookeeper.connect=localhost:2181", "inter.broker.protocol.version=3.9")
    )
    assert settings.broker.node_id == 0
    assert "inter.broker.protocol.version, zookeeper.connect (Kafka 4.0 removed it)" in told(settings)


def test_factors_above_one_broker_are_lowered_and_told(properties: Any) -> None:
    names = ("default", "offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    path = properties(*(f"{name}.replication.factor=3" for name in names), "min.insync.replicas=2")
    settings = load(config_path=path)
    line = told(settings)
    assert "lowered to the number of brokers: default.replication.factor=3" in line
    assert "min.insync.replicas=2" in line
    assert {entry.verdict for entry in review([read_config_file(path)]).entries} == {Verdict.LOWERED}


@pytest.mark.parametrize(
    "name", ["num.partitions", "offsets.topic.num.partitions", "transaction.state.log.num.partitions"]
)
def test_more_partitions_than_a_topic_can_have_are_refused_at_once(properties: Any, name: str) -> None:
    assert "value must be no more than 10000" in complaint(properties(f"{name}=10001"))


def test_secrets_that_nothing_needs_are_not_kept(properties: Any) -> None:
    path = properties(
        "sasl.oauthbearer.client.credentials.client.secret=hunter2",
        "listener.name.x.sasl.jaas.config=hunter2",
        "super.x=1",
    )
    outcome = review([read_config_file(path)])
    assert "hunter2" not in repr(outcome)
    secrets = ("sasl.oauthbearer.client.credentials.client.secret=hunter2", "zookeeper.ssl.keystore.password=hunter2")
    settings = load(config_path=properties(*secrets))
    assert {text for _, text in settings.broker.without_effect} == {NOT_KEPT}


def test_kafkas_names_work_in_the_environment_too() -> None:
    source = from_environment({"FIRN_NUM_IO_THREADS": "4", "FIRN_PROCESS_ROLES": "broker"})
    settings = review([source]).settings
    assert settings is not None
    assert dict(settings.broker.without_effect) == {"num.io.threads": "4", "process.roles": "broker"}


def test_a_file_that_is_no_properties_is_named(properties: Any, tmp_path: Path) -> None:
    assert "is not a file of properties: \\u00g1 is not" in complaint(properties("a=\\u00g1"))
    assert "cannot be read" in complaint(tmp_path / "none.properties")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", {"a": "b"}),
        ("a : b c ", {"a": "b c "}),
        ("a b=c", {"a": "b=c"}),
        ("# a=b\n!c=d\n\n e=f", {"e": "f"}),
        ("a=b,\\\n   c", {"a": "b,c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=\\u0041\\t", {"a": "A\t"}),
        ("a=1\na=2", {"a": "2"}),
        ("a", {"a": ""}),
        ("a=x#y", {"a": "x#y"}),
        ("", {}),
    ],
)
def test_properties_follow_javas_rules(text: str, found: dict[str, str]) -> None:
    assert dict(parse_properties(text)) == found


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ["group.consumer.session.timeout.ms=44000"],
            "must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            ["group.consumer.session.timeout.ms=61000"],
            "must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (["group.share.min.heartbeat.interval.ms=16000"], "group.share.max.heartbeat.interval.ms must be greater than"),
        (["group.max.session.timeout.ms=5000"], "must be greater than or equal to group.min.session.timeout.ms"),
        (["group.share.record.lock.duration.ms=14000"], "must be greater than or equal to group.share.min.record.lock"),
        (
            ["group.consumer.min.session.timeout.ms=5000", "group.consumer.session.timeout.ms=5000"],
            "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms",
        ),
    ],
)
def test_a_brokers_own_group_settings_keep_to_their_bounds(properties: Any, lines: list[str], words: str) -> None:
    assert words in complaint(properties(*lines))


def test_every_dynamic_setting_without_effect_can_be_altered() -> None:
    validate_broker_configs({"sasl.kerberos.min.time.before.relogin": "60001", "num.io.threads": "9"})


def test_doctor_lists_what_becomes_of_every_setting(
    properties: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = properties(
        f"log.dirs={tmp_path}/data",
        "num.io.threads=8",
        "offsets.topic.replication.factor=3",
        "sasl.oauthbearer.client.credentials.client.secret=hunter2",
    )
    code = main(["doctor", "--config", str(path), "--json"])
    report = json.loads(capsys.readouterr().out)
    found = {entry["name"]: entry["verdict"] for entry in report["settings"]}
    assert found == {
        "log.dirs": "effective",
        "num.io.threads": "no meaning",
        "offsets.topic.replication.factor": "lowered",
        "sasl.oauthbearer.client.credentials.client.secret": "no meaning",
    }
    assert code in (0, 1)
    assert main(["doctor", "--config", str(path)]) == code
    shown = capsys.readouterr().out
    assert "num.io.threads=8" in shown
    assert "hunter2" not in shown


def test_doctor_fails_on_every_setting_that_is_refused(properties: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = properties("num.partitions=none", "process.roles=controller", "segment.bytes=1")
    assert main(["doctor", "--config", str(path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert len([check for check in report["checks"] if check["name"] == "settings" and not check["passed"]]) == 3
