"""bootstrap.json is read strictly: what is not understood is refused, with its name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from firn_machine import properties_text
from firn_settings import EFFECT_OF_BOOTSTRAP, SettingsError, parse_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from app.configs.properties import parse_properties


def change(made: dict[str, Any], path: str, value: object) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        made = made[folder]
    if value is ...:
        del made[name]
    else:
        made[name] = value


def test_a_document_of_the_launch_template_is_read(settings: dict[str, Any]) -> None:
    read = parse_settings(json.dumps(settings))
    assert (read.node_id, read.advertised_host, read.advertised_port) == (0, "broker-0.prod.internal", 9094)
    assert (read.store_url.bucket, read.store_url.prefix, read.store_url.region) == (
        "firn-prod",
        "firn/",
        "eu-central-1",
    )


@pytest.mark.parametrize("path", ["wheelhouse", "lifecycle"])
def test_what_may_be_null_is_read_as_nothing(settings: dict[str, Any], path: str) -> None:
    change(settings, path, None)
    assert getattr(parse_settings(json.dumps(settings)), path) is None


REFUSED: list[tuple[str, object]] = [
    ("version", 2),
    ("version", True),
    ("version", ...),
    ("role", "controller"),
    ("cluster", ""),
    ("cluster", "a b"),
    ("node_id", -1),
    ("node_id", "0"),
    ("node_id", None),
    ("region", "eu"),
    ("zone", "us-east-1a"),
    ("store", "file:///data"),
    ("store", "s3://UPPER/firn"),
    ("store", "s3://firn-prod/a b"),
    ("wheelhouse.sha256", "5F" * 32),
    ("wheelhouse.sha256", "5f"),
    ("wheelhouse.bucket", ...),
    ("data", None),
    ("data.kind", "tmpfs"),
    ("data.volume_id", "vol-"),
    ("data.volume_id", None),
    ("data.filesystem", "btrfs"),
    ("data.more", 1),
    ("accept_loss_of_untiered", "yes"),
    ("advertised.port", 65536),
    ("advertised.host", "a,b"),
    ("http.port", 0),
    ("http.enabled", 1),
    ("settings", []),
    ("settings", {"log.segment.bytes": 1}),
    ("settings", {"a": "b\nnode.id=7"}),
    ("settings", {"a\nb": "c"}),
    ("lifecycle.heartbeat_s", 0),
    ("lifecycle.autoscaling_group", ""),
    ("endpoints", {"sts": "http://x"}),
    ("endpoints", {"s3": "ftp://x"}),
    ("surprise", 1),
]


@pytest.mark.parametrize(
    ("path", "value"), REFUSED, ids=[f"{path}={json.dumps(value, default=str)}" for path, value in REFUSED]
)
def test_what_is_wrong_is_refused(settings: dict[str, Any], path: str, value: object) -> None:
    change(settings, path, value)
    with pytest.raises(SettingsError):
        parse_settings(json.dumps(settings))


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '{"version": 1, "version": 1}'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_settings(text)


@pytest.mark.parametrize("name", sorted(EFFECT_OF_BOOTSTRAP))
def test_a_setting_that_the_boot_decides_is_refused(settings: dict[str, Any], name: str) -> None:
    settings["settings"] = {name: "1"}
    with pytest.raises(SettingsError, match="must not have"):
        parse_settings(json.dumps(settings))


def test_every_spelling_of_a_setting_that_the_boot_decides_is_known() -> None:
    from app.settings import ALIASES

    missing = {alias for alias, name in ALIASES.items() if name in EFFECT_OF_BOOTSTRAP} - set(EFFECT_OF_BOOTSTRAP)
    assert missing == set()


def test_an_instance_store_needs_the_loss_to_be_accepted(settings: dict[str, Any]) -> None:
    settings["data"] = {"kind": "instance-store", "volume_id": None, "filesystem": "ext4"}
    with pytest.raises(SettingsError, match="accept_loss_of_untiered"):
        parse_settings(json.dumps(settings))
    settings["accept_loss_of_untiered"] = True
    data = parse_settings(json.dumps(settings)).data
    assert data is not None
    assert data.kind == "instance-store"


def auto(settings: dict[str, Any]) -> dict[str, Any]:
    """The document of a broker without a disk."""
    data = {"kind": "root", "volume_id": None, "filesystem": "xfs"}
    return settings | {"node_id": "auto", "zone": None, "data": data, "advertised": None}


def test_a_broker_without_a_disk_has_no_node_id_no_zone_and_no_address(settings: dict[str, Any]) -> None:
    assert not parse_settings(json.dumps(settings)).without_disk
    read = parse_settings(json.dumps(auto(settings)))
    assert read.without_disk
    assert (read.node_id, read.zone, read.advertised_host) == (-1, "", "")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("zone", "eu-central-1a"),
        ("advertised", {"host": "b", "port": 9092}),
        ("data", {"kind": "ebs", "volume_id": "vol-0123456789abcdef0", "filesystem": "xfs"}),
        ("data", None),
        ("node_id", "AUTO"),
        ("node_id", 0),
        ("role", "http"),
    ],
)
def test_what_a_broker_without_a_disk_has_not_is_refused(settings: dict[str, Any], path: str, value: object) -> None:
    made = auto(settings)
    change(made, path, value)
    with pytest.raises(SettingsError):
        parse_settings(json.dumps(made))


def test_a_broker_with_a_node_id_and_no_address_is_one_of_several(settings: dict[str, Any]) -> None:
    alone = parse_settings(json.dumps(settings))
    assert (alone.own_address, alone.one_of_several) == (False, False)
    read = parse_settings(json.dumps(settings | {"advertised": None}))
    assert (read.own_address, read.one_of_several, read.node_id) == (True, True, 0)
    without = parse_settings(json.dumps(auto(settings)))
    assert (without.own_address, without.one_of_several) == (True, False)


def test_a_broker_with_a_node_id_is_never_on_the_root_disk(settings: dict[str, Any]) -> None:
    settings["data"] = {"kind": "root", "volume_id": None, "filesystem": "xfs"}
    with pytest.raises(SettingsError, match="a disk of its own"):
        parse_settings(json.dumps(settings))


def test_a_machine_for_http_must_be_told_its_brokers(settings: dict[str, Any]) -> None:
    settings |= {"role": "http", "node_id": None, "data": None, "advertised": None, "settings": {}}
    with pytest.raises(SettingsError, match=r"bootstrap\.servers"):
        parse_settings(json.dumps(settings))
    settings["settings"] = {"bootstrap.servers": "b:9092", "log.segment.bytes": "1"}
    with pytest.raises(SettingsError, match=r"log\.segment\.bytes"):
        parse_settings(json.dumps(settings))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\x0b\x0c\x00"), max_size=20)


@settings(max_examples=50)
@given(st.dictionaries(TEXT.filter(lambda name: name.strip(" \t") == name and name), TEXT, max_size=4))
def test_every_text_comes_back_from_the_properties_file(values: dict[str, str]) -> None:
    assert dict(parse_properties(properties_text(values))) == values
