"""Settings of listeners: each wrong one is one sentence with the mend, and secrets are shown nowhere."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.broker.security.listener_doors import Doors, inter_broker_dial
from app.broker.security.log_keys import is_open_to_others, with_log_keys
from app.broker.start.process import http_client, http_environment, http_options
from app.cli.doctor import settings_checks, settings_text
from app.client.connection import dial_tcp
from app.client.security import NAMES, SHOWS_USER, NoWay, SecureDialer, client_security, read_settings
from app.configs import BrokerConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.describing import describe_broker
from app.configs.environment import environment_name
from app.configs.listeners import ClientAuth
from app.configs.without_effect import BROKER_WITHOUT_EFFECT, set_aside
from app.core.errors import ConfigError
from app.metadata.image.image import ClusterImage
from app.settings import load, review, sources_of
from tests.support.secured import USERS, certificates, revocations, store_of

SASL = ["listeners=SASL_PLAINTEXT://h:1", "firn.http.listen=off", "sasl.enabled.mechanisms=PLAIN"]
SCRAM = ["listeners=SASL_PLAINTEXT://h:1", "sasl.enabled.mechanisms=SCRAM-SHA-512"]
TLS = ["listeners=SSL://h:1", "firn.http.listen=off", "ssl.keystore.type=PEM"]


@pytest.fixture
def properties(tmp_path: Path) -> Any:
    def write(*lines: str) -> Path:
        path = tmp_path / "server.properties"
        path.write_text("\n".join([f"log.dirs={tmp_path / 'data'}", *lines]) + "\n")
        return path

    return write


def complaint(path: Path, *assignments: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(config_path=path, assignments=assignments)
    return str(refused.value)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (SASL, "has no users for PLAIN; write them into listener.name.sasl_plaintext.plain.sasl.jaas.config"),
        (["listeners=SASL_SSL://h:1", "sasl.enabled.mechanisms=KERBEROS"], "cannot serve KERBEROS"),
        ([*SASL[:2], "sasl.enabled.mechanisms=OAUTHBEARER"], "has no keys for OAUTHBEARER"),
        (
            [*SASL[:2], "sasl.enabled.mechanisms=OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url=file:///k"],
            "would take tokens that were made for anybody",
        ),
        ([*SASL, f"sasl.jaas.config={USERS}", "sasl.server.callback.handler.class=X"], "X is Java and cannot run"),
        (TLS, "has no certificate; write ssl.keystore.location"),
        ([*TLS, "ssl.keystore.location=/k", "ssl.client.auth=required"], "trusts nobody's"),
        ([*TLS, "ssl.keystore.location=/k", "ssl.client.auth=maybe"], "must be one of"),
        ([*TLS, "ssl.keystore.location=/k", "ssl.enabled.protocols=TLSv1.1"], "must be one of"),
        (["listeners=SSL://h:1", "firn.http.listen=off", "ssl.keystore.location=/k"], "write ssl.keystore.type=PEM"),
        (["listeners=A://h:1,A://h:2", "listener.security.protocol.map=A:PLAINTEXT"], "have a different name"),
        (["listeners=A://h:1,B://h:1", "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"], "a different port"),
        (["listener.name.x.ssl.client.auth=none"], "there is no listener X"),
        (["listener.name.plaintext.no.such=1"], "There is no setting"),
        (["inter.broker.listener.name=X"], "is not one of listeners"),
        (["security.inter.broker.protocol=SSL"], "is the protocol of no listener"),
        (["inter.broker.listener.name=PLAINTEXT", "security.inter.broker.protocol=PLAINTEXT"], "say the same"),
        ([*SASL[:1], SASL[2], f"sasl.jaas.config={USERS}"], "No caller of HTTP could log in"),
        ([*SCRAM, "firn.http.listen=0.0.0.0:8080"], "would take passwords and tokens without encryption"),
        ([*SCRAM, "firn.http.allowed.origins=*"], "a browser would send the password that it remembers"),
        ([*SCRAM, "firn.http.anonymous.enable=true"], "needs the user whose rights requests get"),
        ([*SCRAM, "firn.http.ssl.client.auth=required"], "cannot pass a caller's certificate on"),
        ([*SCRAM, "firn.http.ssl.keystore.type=JKS", "firn.http.ssl.keystore.location=/k"], "convert the file to PEM"),
        (
            [
                *("listeners=PLAINTEXT://127.0.0.1:1,SSL://h:2", "ssl.keystore.type=PEM", "ssl.keystore.location=/k"),
                *("ssl.truststore.type=PEM", "ssl.truststore.location=/t", "ssl.client.auth=required"),
            ],
            "HTTP cannot ask its callers who they are",
        ),
        (["firn.trusted.proxies=0.0.0.0/0"], "everybody would be in it"),
        (["firn.http.trusted.proxies=proxy.example"], "is not an address or a network"),
        (["firn.http.forwarded.header=x-real-ip"], "must be one of"),
        (
            ["listeners=SASL_PLAINTEXT://127.0.0.1:1", SCRAM[1], "firn.trusted.proxies=10.9.0.0/16"],
            "from where the HTTP process of this broker connects",
        ),
        (["principal.builder.class=com.example.Builder"], "Firn runs no Java classes"),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_the_mend(properties: Any, lines: list[str], words: str) -> None:
    assert words in complaint(properties(*lines))


def test_what_kafka_allows_is_allowed(properties: Any) -> None:
    config = load(
        config_path=properties(
            "listeners=IN://127.0.0.1:1,OUT://0.0.0.0:2",
            "advertised.listeners=OUT://out.example:22,IN://in.example:11",
            "listener.security.protocol.map=IN:PLAINTEXT,OUT:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name=IN",
            "ssl.keystore.type=PEM",
            "ssl.keystore.location=/broker.pem",
            "ssl.truststore.location=/ca.pem",
            "ssl.truststore.type=PEM",
            "ssl.client.auth=required",
            "listener.name.out.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN",
            f"listener.name.out.plain.sasl.jaas.config={USERS}",
            "listener.name.out.plain.connections.max.reauth.ms=1000",
        )
    ).broker
    between, outside = config.served
    assert (between.name, between.advertised_host, outside.name, outside.advertised_port) == (
        "IN",
        "in.example",
        "OUT",
        22,
    )
    assert (config.listen_host, config.listen_port, config.inter_broker_listener) == ("127.0.0.1", 1, "IN")
    assert outside.client_auth is ClientAuth.NONE, (
        "with SASL only a setting of the listener alone asks for certificates"
    )
    assert (outside.reauthenticate_ms("PLAIN"), outside.reauthenticate_ms("SCRAM-SHA-512")) == (1000, 0)
    assert inter_broker_dial(config) is dial_tcp


def test_http_uses_a_listener_whose_clients_log_in_even_beside_a_plain_one(properties: Any) -> None:
    lines = (
        "listeners=PLAINTEXT://127.0.0.1:1,BROKERS://h:2,CLIENTS://h:3",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT,CLIENTS:SASL_SSL",
        "inter.broker.listener.name=BROKERS",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        "ssl.keystore.type=PEM",
        "ssl.keystore.location=/broker.pem",
        "ssl.truststore.type=PEM",
        "ssl.truststore.location=/ca.pem",
    )
    config = load(config_path=properties(*lines)).broker
    assert (config.http_listener.name, config.local.name) == ("CLIENTS", "PLAINTEXT")
    assert http_client(config) == {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }
    alone = load(
        config_path=properties(*SCRAM, "firn.http.listen=0.0.0.0:1", "firn.http.plain.credentials.enable=true")
    )
    assert alone.broker.http_listener.name == "SASL_PLAINTEXT"
    plain = load(config_path=properties("listeners=PLAINTEXT://127.0.0.1:1")).broker
    assert plain.http_listener.name == "PLAINTEXT"
    assert not http_client(plain)
    assert not any(flag.startswith(("--client", "--anonymous", "--plain")) for flag in http_options(plain))


def test_a_console_that_only_shows_is_told_to_the_http_process(properties: Any) -> None:
    assert "--console-read-only" not in http_options(load(config_path=properties()).broker)
    assert "--console-read-only" in http_options(load(config_path=properties("firn.console.read.only=true")).broker)


def test_masks_of_the_console_are_told_to_the_http_process_and_a_wrong_one_ends_the_start(properties: Any) -> None:
    config = load(config_path=properties("firn.console.mask=orders-*:customer.email, t:@key")).broker
    assert "--console-mask=orders-*:customer.email,t:@key" in http_options(config)
    with pytest.raises(ConfigError, match="'orders' is not a mask"):
        load(config_path=properties("firn.console.mask=orders"))


def test_http_names_its_callers_where_brokers_trust_it(properties: Any) -> None:
    listening = ("listeners=SASL_PLAINTEXT://127.0.0.1:1", SCRAM[1])
    plain = load(config_path=properties(*listening)).broker
    assert not any(flag.startswith("--name") for flag in http_options(plain))
    config = load(
        config_path=properties(
            *listening,
            "firn.trusted.proxies=127.0.0.1, 10.1.0.0/28",
            "firn.http.trusted.proxies=::ffff:10.9.0.4,2001:DB8::/64",
            "firn.http.forwarded.header=Forwarded",
        )
    ).broker
    assert config.firn_trusted_proxies == {"127.0.0.1", "10.1.0.0/28"}
    assert {"--name-callers", "--trusted-proxies=10.9.0.4,2001:db8::/64", "--forwarded-header=forwarded"} <= {
        *http_options(config)
    }


def test_what_http_needs_is_looked_at_before_anything_is_started(properties: Any, tmp_path: Path) -> None:
    folder = certificates(tmp_path / "web")

    def refused(*lines: str) -> str:
        with pytest.raises(ConfigError) as error:
            http_environment(load(config_path=properties(*lines)).broker)
        return str(error.value)

    location = "firn.http.ssl.keystore.location="
    assert "cannot be read: No such file" in refused(f"{location}/no/such/file")
    assert "It needs a private key and its certificate" in refused(f"{location}{folder / 'ca.pem'}")
    client = tmp_path / "client.properties"
    client.write_text("security.protocol=SSL\n")
    assert "take the line out" in refused(*SCRAM, f"firn.http.client.config={client}")
    client.write_text("sasl.mechanism=SCRAM-SHA-512\n")
    assert "needs a user" in refused(*SCRAM, f"firn.http.client.config={client}", "firn.http.anonymous.enable=true")
    client.write_text("security.protocol=SASL_PLAINTEXT\n")
    assert "take the line out" in refused(f"firn.http.client.config={client}")
    client.write_text(f"ssl.keystore.location={folder / 'client.pem'}\n")
    shown = (*TLS[2:], "listeners=SSL://h:1", f"ssl.keystore.location={folder / 'broker.pem'}")
    assert "the rights of its own certificate" in refused(*shown, f"firn.http.client.config={client}")
    given = properties(f"{location}{folder / 'broker.pem'}", "firn.http.ssl.key.password=hunter2")
    config = load(config_path=given).broker
    found = http_environment(config)
    assert found["FIRN_HTTP_SSL_KEYSTORE_LOCATION"] == str(folder / "broker.pem")
    assert found["FIRN_HTTP_SSL_KEY_PASSWORD"] == "hunter2"
    assert "hunter2" not in repr((config, http_options(config), describe_broker(config)))
    assert not any(http_environment(load(config_path=properties()).broker).values()), "nothing is inherited"
    assert "a command line can be read" in complaint(given, "firn.http.ssl.key.password=hunter2")


@pytest.mark.parametrize(
    "trust",
    [
        ["ssl.truststore.type=PKCS12", "ssl.truststore.password=hunter2"],
        ["ssl.truststore.certificates={pem}", "firn.ssl.crl.location={crl}"],
    ],
    ids=["store", "by value"],
)
def test_http_trusts_whom_its_listener_trusts(properties: Any, tmp_path: Path, trust: list[str]) -> None:
    folder = certificates(tmp_path / "c")
    pem = (folder / "ca.pem").read_text()
    store = [f"ssl.truststore.location={store_of(folder, 'client', 'hunter2')}"] if "PKCS12" in trust[0] else []
    given = [line.format(pem=pem.replace("\n", "\\n"), crl=folder / "crl.pem") for line in trust] + store
    (folder / "crl.pem").write_bytes(revocations(folder))
    lines = ("listeners=SASL_SSL://h:1", *SCRAM[1:], *TLS[2:], f"ssl.keystore.location={folder / 'broker.pem'}")
    config = load(config_path=properties(*lines, *given)).broker
    wanted = {name: text.strip() for name, _, text in (line.partition("=") for line in given)}
    wanted.pop("firn.ssl.crl.location", None)  # perhaps of the clients' authority alone
    if "ssl.truststore.certificates" in wanted:
        wanted["ssl.truststore.certificates"] = pem.strip()
    wanted["security.protocol"] = "SASL_SSL"
    assert http_client(config) == wanted
    assert read_settings(http_environment(config)) == wanted
    assert "hunter2" not in repr(http_options(config))
    client = tmp_path / "client.properties"
    client.write_text("ssl.truststore.location=/other.pem\n")
    named = load(config_path=properties(*lines, *given, f"firn.http.client.config={client}")).broker
    assert http_client(named) == {"security.protocol": "SASL_SSL"}, "the file says whom to trust"


def test_more_certificates_by_value_than_a_process_can_be_handed_are_refused(properties: Any, tmp_path: Path) -> None:
    folder = certificates(tmp_path / "c")
    trusted = (folder / "ca.pem").read_text() * 300
    lines = ("listeners=SASL_SSL://h:1", *SCRAM[1:], *TLS[2:], f"ssl.keystore.location={folder / 'broker.pem'}")
    given = f"ssl.truststore.certificates={trusted}".replace("\n", "\\n")
    with pytest.raises(ConfigError, match="write the certificates into a file"):
        http_environment(load(config_path=properties(*lines, given)).broker)


def test_what_shows_who_a_client_is_has_every_secret_of_its_user() -> None:
    secret = re.compile(r"keystore|password|jaas|username|token|\bkey\b")
    shows = {name for name in NAMES if secret.search(name) and not name.startswith("ssl.truststore.")}
    assert shows == SHOWS_USER


def test_secrets_are_shown_nowhere_and_not_taken_from_a_command_line(properties: Any) -> None:
    path = properties(*SASL, "listener.name.sasl_plaintext.plain.sasl.jaas.config=" + USERS, "ssl.key.password=hunter2")
    config = load(config_path=path).broker
    described = {one.name: one for one in describe_broker(config)}
    for name in ("listener.name.sasl_plaintext.plain.sasl.jaas.config", "ssl.key.password"):
        assert described[name].value is None
        assert described[name].definition.sensitive
    for shown in (repr(config), repr(list(described.values()))):
        assert "alice-secret" not in shown
        assert "hunter2" not in shown
    for name in ("sasl.jaas.config", "ssl.key.password", "listener.name.sasl_plaintext.plain.sasl.jaas.config"):
        words = complaint(path, f"{name}={USERS}")
        assert "a command line can be read by every user of this machine" in words
        assert "alice-secret" not in words


def test_secrets_of_brokers_are_shown_nowhere_and_not_taken_from_a_command_line(properties: Any) -> None:
    key = base64.b64encode(b"x" * 32).decode()
    path = properties(f"firn.cluster.log.key={key}", "delegation.token.secret.key=hunter2")
    config = load(config_path=path).broker
    described = {one.name: one for one in describe_broker(config)}
    for name in ("firn.cluster.log.key", "delegation.token.secret.key"):
        assert described[name].value is None
        assert described[name].definition.sensitive
    for shown in (repr(config), repr(list(described.values()))):
        assert key not in shown
        assert "hunter2" not in shown
    for name in ("firn.cluster.log.key", "delegation.token.secret.key"):
        words = complaint(path, f"{name}={key}")
        assert "a command line can be read by every user of this machine" in words
        assert key not in words
    for wrong, why in (("hunter2", "key 1 is not base64"), ("c2hvcnQ=", "key 1 has 5 bytes, and 32 are the least")):
        words = complaint(properties(f"firn.cluster.log.key={wrong}"))
        assert why in words
        assert wrong not in words


def test_keys_of_the_cluster_log_come_from_a_file_of_the_brokers_user_alone(tmp_path: Path) -> None:
    key = base64.b64encode(b"x" * 32).decode()
    path = tmp_path / "keys"
    path.write_text(f"{key}\n")
    path.chmod(0o600)
    config = BrokerConfig(firn_cluster_log_key_location=str(path))
    assert with_log_keys(config).firn_cluster_log_key == f"{key}\n"
    for mode in (0o644, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"others than its owner can read or change it: run `chmod 600 {path}`"):
            with_log_keys(config)
    path.chmod(0o600)
    for wrong, words in (
        (replace(config, firn_cluster_log_key=key), "take one of them out"),
        (replace(config, firn_cluster_log_key_location=str(tmp_path / "no")), "cannot be read: No such file"),
        (BrokerConfig(firn_cluster_log_key_introducing=True), "no key to introduce"),
    ):
        with pytest.raises(ConfigError, match=words):
            with_log_keys(wrong)
    for text, words in (("", "is empty"), ("hunter2", "not base64"), ("\xe4", "no file of keys")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words) as refused:
            with_log_keys(config)
        assert "hunter2" not in str(refused.value)


def test_a_group_may_read_secrets_that_root_owns() -> None:
    assert [is_open_to_others(mode, 0) for mode in (0o600, 0o440, 0o640, 0o660, 0o644)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert [is_open_to_others(mode, 1000) for mode in (0o600, 0o400, 0o640, 0o604)] == [False, False, True, True]


CANARY = "hunter2-canary"
SENSITIVE = sorted(
    name
    for name, definition in (
        *BROKER_DEFINITIONS.items(),
        *((name, entry.definition) for name, entry in BROKER_WITHOUT_EFFECT.items()),
    )
    if definition.sensitive
)
"""Every setting of a broker that is secret, those without effect too."""


def test_there_are_secret_settings_with_and_without_effect() -> None:
    assert {"ssl.keystore.key", "sasl.jaas.config", "firn.redis.url", "delegation.token.secret.key"} <= {*SENSITIVE}
    assert {name for name in BROKER_DEFINITIONS if "password" in name or "secret" in name} <= {*SENSITIVE}
    assert {name for name in BROKER_WITHOUT_EFFECT if "password" in name or name.endswith("secret.key")} <= {*SENSITIVE}


@pytest.mark.parametrize("name", SENSITIVE)
def test_a_secret_is_taken_from_a_file_shown_nowhere_and_not_taken_from_a_command_line(
    properties: Any, name: str
) -> None:
    text = f"redis://:{CANARY}@h:1/0" if name == "firn.redis.url" else CANARY
    reviewed = review(sources_of(config_path=properties(f"{name}={text}")))
    shown = [settings_text(reviewed), repr(reviewed), repr(list(settings_checks(reviewed)))]
    if reviewed.settings is not None:
        config = reviewed.settings.broker
        shown += [repr(config), repr(describe_broker(config)), repr(set_aside(config)), repr(reviewed.settings)]
        described = {one.name: one for one in describe_broker(config)}
        if name in described:
            assert described[name].value is None
            assert all(one.value is None for one in described[name].synonyms)
    assert CANARY not in "".join(shown)
    words = complaint(properties(), f"{name}={text}")
    assert words.startswith(
        f"--set {name} is not allowed: a command line can be read by every user of this machine; write it"
    )
    assert environment_name(name) in words
    assert CANARY not in words


def test_a_secret_of_one_listener_is_mended_by_a_file_alone(properties: Any) -> None:
    words = complaint(properties(), f"listener.name.plaintext.ssl.keystore.key={CANARY}")
    assert words.endswith("write it into a file (--config).")
    assert CANARY not in words


def test_redis_without_a_password_may_be_on_a_command_line(properties: Any) -> None:
    assert load(config_path=properties(), flags={"--redis": "redis://h:1/0"}).broker.redis_url == "redis://h:1/0"
    with pytest.raises(ConfigError, match="--redis is not allowed: a command line") as refused:
        load(config_path=properties(), flags={"--redis": f"redis://user:{CANARY}@h:1/0"})
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("name", ["sasl.jass.config", "plain.sasl.jaas.config", "ssl.key.pasword", "ssl.keystore.keyy"])
def test_a_misspelt_secret_is_not_shown_either(properties: Any, name: str) -> None:
    reviewed = review(sources_of(config_path=properties(f"{name}={CANARY}")))
    assert reviewed.settings is None
    assert CANARY not in settings_text(reviewed) + repr(reviewed)


def test_files_are_looked_at_before_anything_is_started(properties: Any, tmp_path: Path) -> None:
    folder = certificates(tmp_path / "c")

    def refused(*lines: str) -> str:
        with pytest.raises(ConfigError) as error:
            Doors(load(config_path=properties(*TLS, *lines)).broker, ClusterImage)
        return str(error.value)

    assert "cannot be read: No such file" in refused("ssl.keystore.location=/no/such/file")
    assert "It needs a private key and its certificate" in refused(f"ssl.keystore.location={folder / 'ca.pem'}")
    good = f"ssl.keystore.location={folder / 'broker.pem'}"
    assert "is not a rule" in refused(good, "ssl.principal.mapping.rules=RULE:x")
    assert "OpenSSL knows none" in refused(good, "ssl.cipher.suites=NO-SUCH")
    assert "for TLS 1.2 write OpenSSL's names" in refused(good, "ssl.cipher.suites=TLS_RSA_WITH_AES_128_CBC_SHA")
    with pytest.raises(ConfigError, match="names no user of PLAIN"):
        Doors(load(config_path=properties(*SASL, "sasl.jaas.config=x required a=b;")).broker, ClusterImage)


@pytest.mark.parametrize(
    ("lines", "way"),
    [
        (["sasl.enabled.mechanisms=PLAIN", "sasl.mechanism.inter.broker.protocol=PLAIN"], NoWay),
        (["sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN"], NoWay),
        (
            [
                "sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN",
                'listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=x required username="b" password="p";',
            ],
            SecureDialer,
        ),
    ],
)
def test_brokers_reach_each_other_by_scram_and_never_by_plain(properties: Any, lines: list[str], way: type) -> None:
    users = f"listener.name.sasl_plaintext.plain.sasl.jaas.config={USERS}"
    assert type(inter_broker_dial(load(config_path=properties(*SASL[:2], users, *lines)).broker)) is way


def test_settings_of_a_client_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nunknown=1\n")
    found = client_security(read_settings({"FIRN_CLIENT_SASL_PASSWORD": "p"}, str(path)))
    assert (found.mechanism, found.user, found.password) == ("PLAIN", "a", "p")
    assert "password" not in repr(found)
    for settings, words in (
        ({"security.protocol": "TLS"}, "is not one of"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism=GSSAPI is not served"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs a user"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "needs a token"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "x", "ssl.keystore.type": "JKS"}, "convert the file"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "no"}, "must be https"),
    ):
        with pytest.raises(ConfigError, match=words):
            client_security(settings)
