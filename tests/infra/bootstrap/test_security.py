"""A machine with TLS, logins and rules: what the boot makes of the secret, and that a broker serves with it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from firn_machine import Done, properties_text
from firn_security import (
    APPLIED,
    AUTHORITY,
    HTTP_CLIENT,
    KEYSTORE,
    METRICS_PASSWORD,
    NEXT_KEYSTORE,
    OWN_CLIENT,
    parse_secret,
)
from firn_settings import Refused, SettingsError, parse_settings

from app.cli.tls import certificate_of, issue
from app.configs.properties import parse_properties
from app.http.callers import check_reach
from app.http.gateway import HttpSettings
from tests.infra.bootstrap.conftest import REGION, World
from tests.infra.bootstrap.refusals import refused, without_disk
from tests.support.ports import free_port
from tests.support.secured import add_certificate

ADVERTISED, OWN = "broker-0.prod.internal", "ip-10-42-0-5.eu-central-1.compute.internal"
PASSWORDS = {"admin": "admin-of-the-tests", "metrics": "metrics-of-the-tests"}


def certificates(folder: Path, *hosts: str) -> Path:
    from datetime import UTC, datetime

    issue(folder, hosts=list(hosts), clients=["client"], now=datetime.now(UTC))
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return certificates(tmp_path / "made", ADVERTISED, "*.eu-central-1.compute.internal")


@pytest.fixture
def secret(made: Path) -> dict[str, Any]:
    """The secret, to be changed by the test."""
    return {"version": 1, "keystore": (made / "broker.pem").read_text(), "users": dict(PASSWORDS), "settings": {}}


class Secrets:
    """A secret of moto's Secrets Manager."""

    def __init__(self, endpoint: str, name: str) -> None:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": REGION}
        self._client = boto3.client("secretsmanager", endpoint_url=endpoint, **keys)
        self.arn = str(self._client.create_secret(Name=name)["ARN"])

    def put(self, value: object) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        self._client.put_secret_value(SecretId=self.arn, SecretString=text)


@pytest.fixture
def secrets(moto_endpoint: str, tmp_path: Path) -> Secrets:
    return Secrets(moto_endpoint, f"firn/{tmp_path.name}")


@pytest.fixture
def secured(world: World, secrets: Secrets, secret: dict[str, Any], made: Path) -> World:
    """The same node with TLS, logins and rules. Certificates are read as the program reads them."""
    secrets.put(secret)
    world.settings["security"] = {"secret": secrets.arn, "ca_pem": (made / "ca.pem").read_text()}
    world.machine.answers["firn tls show"] = lambda command: Done(0, json.dumps(certificate_of(Path(command[-2]))), "")
    world.machine.answers["systemctl is-active"] = Done(3, "", "")
    return world


def passwords_given(world: World) -> dict[str, tuple[str, str]]:
    """By user: how, and which."""
    given = {}
    for command, environment in zip(world.machine.ran, world.machine.environments, strict=True):
        if command[1:3] == ("user", "add"):
            given[command[3]] = (command[4], environment["FIRN_CLIENT_NEW_PASSWORD"])
    return given


def properties(world: World, place: str = "/etc/firn/firn.properties") -> dict[str, str]:
    return dict(parse_properties(world.machine.path(place).read_text()))


# --- the files


def test_clients_log_in_and_brokers_show_their_certificate(secured: World) -> None:
    secured.boot().run()
    found = properties(secured)
    assert found["listeners"] == "SASL_SSL://0.0.0.0:9092,BROKERS://0.0.0.0:9094"
    assert found["advertised.listeners"] == f"SASL_SSL://{ADVERTISED}:9094,BROKERS://{OWN}:9094"
    assert found["listener.name.brokers.ssl.client.auth"] == "required"
    assert found["super.users"] == "User:admin;User:CN=broker"
    assert found["sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
    assert found["log.segment.bytes"] == "268435456"
    assert secured.hooks.done == {("firn-0", "launch", secured.instance_id): "CONTINUE"}


def test_the_broker_takes_the_settings_of_a_secured_machine(secured: World) -> None:
    from app.settings import Verdict, review, sources_of

    secured.boot().run()
    path = secured.machine.path("/etc/firn/firn.properties")
    path.write_text(path.read_text().replace("/etc/firn/tls", str(secured.machine.path("/etc/firn/tls"))))
    reviewed = review(sources_of(config_path=path, environment={}, flags={}))
    assert [entry.why for entry in reviewed.entries if entry.verdict is not Verdict.EFFECTIVE] == []


def test_users_are_left_before_the_start_and_metrics_may_be_read_after_it(secured: World) -> None:
    secured.boot().run()
    assert passwords_given(secured) == {name: ("--offline", text) for name, text in PASSWORDS.items()}
    begun = [" ".join(command) for command in secured.machine.ran]
    users, start = (
        begun.index("firn:firn user add metrics --offline --data-dir /var/lib/firn/data"),
        begun.index("systemctl start --no-block firn.service"),
    )
    rights = begun.index(
        f"firn:firn acl add --allow User:metrics --operation describe --cluster --bootstrap {OWN}:9094"
    )
    assert users < start < rights
    assert secured.machine.environments[rights]["FIRN_CLIENT_CONFIG"] == OWN_CLIENT
    assert "systemctl start --no-block firn-secret.timer" in begun


def test_nobody_but_root_and_the_broker_can_read_what_is_secret(secured: World) -> None:
    secured.boot().run()
    modes = {
        place: secured.machine.path(place).stat().st_mode & 0o777 for place in (KEYSTORE, APPLIED, METRICS_PASSWORD)
    }
    assert modes == {KEYSTORE: 0o640, APPLIED: 0o600, METRICS_PASSWORD: 0o600}
    assert secured.machine.path(METRICS_PASSWORD).read_text() == PASSWORDS["metrics"]
    said = json.dumps([secured.machine.ran, secured.machine.lines, secured.machine.failures])
    key = secured.machine.path(KEYSTORE).read_text().splitlines()[1]
    assert not [one for one in (*PASSWORDS.values(), key) if one in said]


def test_a_second_boot_of_a_secured_machine_changes_nothing(secured: World) -> None:
    secured.boot().run()
    first = {path: path.read_bytes() for path in secured.machine.root.rglob("*") if path.is_file()}
    secured.machine.answers["blkid"] = Done(0, "TYPE=xfs\nLABEL=firn\n", "")
    secured.machine.ran.clear()
    secured.machine.environments.clear()
    secured.boot().run()
    assert {path: path.read_bytes() for path in secured.machine.root.rglob("*") if path.is_file()} == first
    assert passwords_given(secured) == {}


def test_a_broker_without_a_disk_is_known_by_the_name_of_its_machine(secured: World) -> None:
    without_disk(secured)
    secured.boot().run()
    assert properties(secured)["advertised.listeners"] == f"SASL_SSL://{OWN}:9092,BROKERS://{OWN}:9094"


def test_one_of_several_brokers_is_known_by_the_name_of_its_machine_alone(secured: World) -> None:
    secured.settings["advertised"] = None
    secured.boot().run()
    assert properties(secured)["advertised.listeners"] == f"SASL_SSL://{OWN}:9092,BROKERS://{OWN}:9094"


def test_settings_of_secret_and_template_join_those_of_the_boot(
    secured: World, secrets: Secrets, secret: dict[str, Any]
) -> None:
    secret["settings"] = {"delegation.token.secret.key": "key of tokens"}
    secrets.put(secret)
    secured.settings["settings"] = {
        "super.users": "User:ops;",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
    }
    secured.boot().run()
    found = properties(secured)
    assert found["super.users"] == "User:admin;User:CN=broker;User:ops"
    assert found["sasl.enabled.mechanisms"] == "SCRAM-SHA-512,OAUTHBEARER"
    assert found["delegation.token.secret.key"] == "key of tokens"
    assert found["listener.name.brokers.ssl.principal.mapping.rules"] == "DEFAULT", "brokers stay who super.users says"


def test_a_machine_for_http_needs_no_secret(secured: World) -> None:
    secured.settings |= {
        "role": "http",
        "node_id": None,
        "store": None,
        "data": None,
        "advertised": None,
        "settings": {"bootstrap.servers": "kafka.prod:9092"},
    }
    secured.settings["security"]["secret"] = None
    secured.settings["lifecycle"] = None

    class Healthy:
        def exchange(self, *_: object) -> Any:
            return type("Answer", (), {"status": 200})

    boot = secured.boot()
    boot._http = Healthy()
    boot.run()
    environment = secured.machine.path("/etc/firn/firn.env").read_text()
    assert f'FIRN_CLIENT_CONFIG="{HTTP_CLIENT}"' in environment
    assert "--plain-credentials" in environment
    told = properties(secured, HTTP_CLIENT)
    assert told == {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": AUTHORITY,
    }
    check_reach(HttpSettings(bootstrap=(("kafka.prod", 9092),), client=told))
    assert not secured.machine.path(KEYSTORE).exists()


# --- what is refused


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("{", "is not JSON"),
        ([1], "is not a JSON object with version 1"),
        ({"version": 2}, "is not a JSON object with version 1"),
        ({"more": 1}, 'has the field "more"'),
        ({"keystore": "-----BEGIN CERTIFICATE-----"}, "has no keystore with a private key"),
        ({"users": {"admin": "long enough a password"}}, "has no user metrics"),
        ({"users": {**PASSWORDS, "a b": "long enough a password"}}, 'has the user "a b"'),
        ({"users": {**PASSWORDS, "app": "short"}}, "has a password of app that is shorter than 12"),
        ({"users": {**PASSWORDS, "app": "two\nlines of it, at least"}}, "not one printable line"),
        ({"users": [1]}, "has no field users that is an object of texts"),
        ({"settings": {"log.dirs": "/tmp"}}, "The secret: settings must not have log.dirs"),
        ({"settings": {"ssl.keystore.key": "k"}}, "The secret: settings must not have ssl.keystore.key"),
        ({"settings": {"listener.name.brokers.ssl.client.auth": "none"}}, "must not have listener.name.brokers"),
        ({"settings": {"A": "b"}}, 'has the setting "A"'),
    ],
)
def test_a_secret_that_is_not_right_stops_the_boot_before_a_disk_is_touched(
    secured: World, secrets: Secrets, secret: dict[str, Any], change: Any, why: str
) -> None:
    secrets.put({**secret, **change} if isinstance(change, dict) else change)
    told = refused(secured)
    assert why in told
    assert not [one for one in ("long enough", "of-the-tests", "PRIVATE", "two\nlines") if one in told]
    assert secured.attached() is None


def test_a_secret_without_a_value_stops_the_boot(secured: World, moto_endpoint: str, tmp_path: Path) -> None:
    empty = Secrets(moto_endpoint, f"firn/empty/{tmp_path.name}")
    secured.settings["security"]["secret"] = empty.arn
    told = refused(secured)
    assert "ResourceNotFoundException" in told
    assert "that the secret has a value" in told


@pytest.mark.parametrize("hosts", [("kafka.example.com",), (ADVERTISED,), ("*.compute.internal", ADVERTISED)])
def test_a_certificate_without_the_names_that_clients_ask_for_stops_the_boot(
    secured: World, secrets: Secrets, secret: dict[str, Any], made: Path, hosts: tuple[str, ...]
) -> None:
    secrets.put({**secret, "keystore": add_certificate(made, "other", *hosts, subject="broker").read_text()})
    with pytest.raises(Refused, match=f"has no name for .*{OWN}"):
        secured.boot().run()
    assert not secured.machine.path(KEYSTORE).exists(), "nothing serves with it"


@pytest.mark.parametrize(
    ("days", "by_another", "why"),
    [(1, True, "unable to get|self-signed"), (-1, False, "has expired"), (1, False, "unsuitable certificate purpose")],
)
def test_a_certificate_that_clients_and_brokers_would_not_trust_stops_the_boot(
    secured: World,
    secrets: Secrets,
    secret: dict[str, Any],
    tmp_path: Path,
    made: Path,
    days: int,
    by_another: bool,
    why: str,
) -> None:
    folder = certificates(tmp_path / "other", ADVERTISED) if by_another else made
    for_both = "unsuitable" not in why
    other = add_certificate(folder, "other", ADVERTISED, OWN, subject="broker", days=days, for_both=for_both)
    secrets.put({**secret, "keystore": other.read_text()})
    with pytest.raises(Refused, match=f"none that security.ca_pem of the launch template vouches for .*({why})"):
        secured.boot().run()
    assert not secured.machine.path(KEYSTORE).exists(), "nothing serves with it"
    assert not secured.machine.path(NEXT_KEYSTORE).exists()


@pytest.mark.parametrize(
    "field", [{"secret": "firn/prod"}, {"ca_pem": "/etc/ca.pem"}, {"secret": None}, {"password": "x"}]
)
def test_a_launch_template_with_a_wrong_field_of_security_is_refused(secured: World, field: dict[str, Any]) -> None:
    secured.settings["security"] |= field
    with pytest.raises(SettingsError, match=r"security\."):
        parse_settings(json.dumps(secured.settings))


def test_settings_that_security_decides_are_refused_only_with_it(secured: World) -> None:
    secured.settings["settings"] = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    with pytest.raises(SettingsError, match="it comes from security"):
        parse_settings(json.dumps(secured.settings))
    secured.settings["security"] = None
    assert parse_settings(json.dumps(secured.settings)).security is None


# --- a secret that changes


def refresh(world: World) -> None:
    one = world.boot()
    try:
        one.refresh()
    finally:
        one.close()


def test_a_changed_secret_is_in_force_while_the_broker_serves(
    secured: World, secrets: Secrets, secret: dict[str, Any], made: Path
) -> None:
    secured.boot().run()
    secured.machine.answers["systemctl is-active"] = Done(0, "", "")
    secured.machine.ran.clear()
    secured.machine.environments.clear()
    refresh(secured)
    assert secured.machine.ran == [], "nothing has changed"
    renewed = add_certificate(made, "renewed", ADVERTISED, OWN, subject="broker")
    secret |= {
        "keystore": renewed.read_text(),
        "users": {**PASSWORDS, "metrics": "another of metrics", "app": "new of the app"},
    }
    secrets.put(secret)
    refresh(secured)
    assert secured.machine.path(KEYSTORE).read_text() == renewed.read_text()
    assert secured.machine.path(METRICS_PASSWORD).read_text() == "another of metrics"
    assert passwords_given(secured) == {
        "metrics": ("--bootstrap", "another of metrics"),
        "app": ("--bootstrap", "new of the app"),
    }
    secured.machine.ran.clear()
    refresh(secured)
    assert secured.machine.ran == []


@pytest.mark.parametrize(
    ("hosts", "subject", "why"),
    [
        (["elsewhere.example"], "broker", "has no name for"),
        ([ADVERTISED, OWN], "another", "is User:CN=another, and the brokers are User:CN=broker"),
    ],
)
def test_a_changed_secret_that_is_not_right_changes_nothing(
    secured: World, secrets: Secrets, secret: dict[str, Any], made: Path, hosts: list[str], subject: str, why: str
) -> None:
    secured.boot().run()
    before = secured.machine.path(KEYSTORE).read_text()
    wrong = add_certificate(made, "wrong", *hosts, subject=subject)
    secrets.put({**secret, "keystore": wrong.read_text(), "users": {**PASSWORDS, "admin": "new of the admin"}})
    with pytest.raises(Refused, match=why):
        refresh(secured)
    assert secured.machine.path(KEYSTORE).read_text() == before
    assert json.loads(secured.machine.path(APPLIED).read_text())["users"] == PASSWORDS


def test_users_whose_password_was_not_taken_are_given_it_by_the_next_look(
    secured: World, secrets: Secrets, secret: dict[str, Any]
) -> None:
    secured.boot().run()
    secrets.put({**secret, "users": {**PASSWORDS, "admin": "new of the admin"}})
    secured.machine.answers["firn user add"] = Done(1, "", "no broker")
    with pytest.raises(Refused, match="no broker"):
        refresh(secured)
    del secured.machine.answers["firn user add"]
    secured.machine.ran.clear()
    secured.machine.environments.clear()
    refresh(secured)
    assert passwords_given(secured) == {"admin": ("--bootstrap", "new of the admin")}


# --- the real program


@contextmanager
def serving(secured: World) -> Iterator[tuple[int, int, int]]:
    """The broker with the files that the boot has written, on loopback. Returns: ports for clients, for brokers, of HTTP."""
    root, (kafka, between, web) = secured.machine.root, (free_port(), free_port(), free_port())
    told = properties(secured) | {
        "listeners": f"SASL_SSL://127.0.0.1:{kafka},BROKERS://127.0.0.1:{between}",
        "advertised.listeners": f"SASL_SSL://localhost:{kafka},BROKERS://localhost:{between}",
        "firn.http.listen": f"127.0.0.1:{web}",
        "log.dirs": str(root / "var/lib/firn/data"),
        "firn.store.url": (root / "store").as_uri(),
    }
    config = root / "served.properties"
    config.write_text(properties_text(told).replace("/etc/firn/tls", str(root / "etc/firn/tls")))
    environment = {name: text for name, text in os.environ.items() if not name.startswith("FIRN_")}
    with (
        (root / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "app.cli", "serve", "--config", str(config)], env=environment, stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield kafka, between, web
        finally:
            process.terminate()
            process.wait()


def real_firn(secured: World, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command as the boot runs it, with the client settings that it has written."""
    root = secured.machine.root
    own = root / "own.properties"
    own.write_text(secured.machine.path(OWN_CLIENT).read_text().replace("/etc/firn/tls", str(root / "etc/firn/tls")))
    clean = {name: text for name, text in os.environ.items() if not name.startswith("FIRN_")}
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        env=clean | {"FIRN_CLIENT_CONFIG": str(own)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.ci
async def test_a_broker_serves_with_the_files_of_the_boot(
    secured: World, secrets: Secrets, secret: dict[str, Any], tmp_path: Path
) -> None:
    mine = certificates(tmp_path / "here", "localhost", ADVERTISED, OWN)
    secrets.put({**secret, "keystore": (mine / "broker.pem").read_text()})
    secured.settings["security"]["ca_pem"] = (mine / "ca.pem").read_text()
    secured.boot().run()
    data = str(secured.machine.path("/var/lib/firn/data"))
    for name, password in PASSWORDS.items():
        left = real_firn(
            secured, "user", "add", name, "--offline", "--data-dir", data, FIRN_CLIENT_NEW_PASSWORD=password
        )
        assert left.returncode == 0, left.stderr
    with serving(secured) as (kafka, between, web):
        own = f"localhost:{between}"
        waited = await asyncio.to_thread(
            real_firn, secured, "wait", "--bootstrap", own, "--http", f"https://localhost:{web}", "--timeout", "90"
        )
        assert waited.returncode == 0, waited.stderr
        rule = ("--allow", "User:metrics", "--operation", "describe", "--cluster")
        given = await asyncio.to_thread(real_firn, secured, "acl", "add", *rule, "--bootstrap", own)
        assert given.returncode == 0, given.stderr
        status = await asyncio.to_thread(real_firn, secured, "tier", "status", "--json", "--bootstrap", own)
        assert (status.returncode, json.loads(status.stdout)) == (0, [])
        trusted = ssl.create_default_context(cafile=str(mine / "ca.pem"))
        async with httpx.AsyncClient(base_url=f"https://localhost:{web}", verify=trusted, timeout=60) as client:
            assert (await client.get("/metrics")).status_code == 401
            password = secured.machine.path(METRICS_PASSWORD).read_text()
            login = {"Authorization": "Basic " + base64.b64encode(f"metrics:{password}".encode()).decode()}
            told = await client.get("/metrics", headers=login)
            assert told.status_code == 200, told.text
            assert "firn_broker_up" in told.text
            assert (await client.get("/v3/clusters", headers=login)).status_code == 200
        plain = await asyncio.to_thread(
            real_firn, secured, "topic", "list", "--bootstrap", f"localhost:{kafka}", FIRN_CLIENT_CONFIG=""
        )
        assert plain.returncode != 0, "nobody gets in without a login"
        drained = await asyncio.to_thread(real_firn, secured, "drain", "--bootstrap", own, "--timeout", "60")
        assert drained.returncode == 0, drained.stderr + drained.stdout
    log = (secured.machine.root / "log").read_text()
    assert "Traceback" not in log
    assert not [one for one in PASSWORDS.values() if one in log]


def test_a_secret_survives_its_own_text(secret: dict[str, Any]) -> None:
    read = parse_secret(json.dumps(secret))
    assert parse_secret(read.text) == read
    assert "of-the-tests" not in repr(read)
