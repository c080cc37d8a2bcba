"""A broker process with SASL_SSL, from its first user on: Firn's commands, Kafka's own tools, and OpenSSL."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.client.connection import open_connection
from app.client.security import SecureDialer, client_security
from app.security.scram import Alphabet, SaltShape, ScramClient, ScramMechanism
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from tests.interop.java_programs import JavaProgram, Tools
from tests.interop.serving import READY
from tests.support.logins import SALT, seen_shape
from tests.support.ports import free_port
from tests.support.secured import certificates

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
FIRN = [sys.executable, "-m", "app.cli"]
READY_S_MAX = 90


class Secured:
    """The broker, and files for its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls = certificates(folder / "tls")
        self.port = free_port()
        self.bootstrap = f"localhost:{self.port}"
        self.config = folder / "server.properties"
        self.config.write_text(
            f"listeners=CLIENTS://127.0.0.1:{self.port}\nadvertised.listeners=CLIENTS://localhost:{self.port}\n"
            "listener.security.protocol.map=CLIENTS:SASL_SSL\ninter.broker.listener.name=CLIENTS\n"
            "listener.name.clients.sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={self.tls / 'broker.pem'}\n"
            f"log.dirs={folder / 'data'}\nfirn.http.listen=off\n"
        )

    def client(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> Path:
        """A file of settings for Kafka's tools and Firn's."""
        path = self.folder / f"{user}.properties"
        path.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="{password}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.tls / 'ca.pem'}\n"
        )
        return path

    def firn(self, *arguments: object, user: Path | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command."""
        config = [] if user is None else ["--client-config", str(user)]
        return subprocess.run(
            [*FIRN, *config, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=READY_S_MAX,
            input=given,
            check=False,
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    password = made.folder / "password"
    password.write_text("admin-secret\n")
    added = made.firn(
        "user", "add", "admin", "--offline", "--data-dir", made.folder / "data", "--password-file", password
    )
    assert added.returncode == 0, added.stderr
    with subprocess.Popen(
        [*FIRN, "serve", "--config", str(made.config)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        with closing(process.stderr):
            lines = []
            for line in process.stderr:
                lines.append(line)
                if READY.search(line):
                    break
            assert process.poll() is None, "".join(lines)
            try:
                yield made
            finally:
                process.terminate()
                process.stderr.read()
                process.wait()


def shape_told(secured: Secured, user: str) -> SaltShape:
    """What a stranger who names a user sees of the salt."""
    settings = {"security.protocol": "SSL", "ssl.truststore.location": str(secured.tls / "ca.pem")}

    async def ask() -> SaltShape:
        dial = SecureDialer(client_security(settings))
        connection = await open_connection("localhost", secured.port, dial=dial)
        await connection.request(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest("SCRAM-SHA-256"))
        first = ScramClient(ScramMechanism.SCRAM_SHA_256, user, "", nonce="n" * 24).first
        answer = await connection.request(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(first))
        await connection.close()
        found = SALT.search(bytes(answer.auth_bytes))
        assert found is not None
        return seen_shape(*found.groups())

    return asyncio.run(ask())


def test_the_first_user_logs_in_and_adds_others(secured: Secured) -> None:
    admin = secured.client("admin", "admin-secret")
    listed = secured.firn("user", "list", "--bootstrap", secured.bootstrap, user=admin)
    assert listed.returncode == 0, listed.stderr
    assert "admin" in listed.stdout
    assert secured.firn("topic", "create", "t", "--bootstrap", secured.bootstrap, user=admin).returncode == 0
    wrong = secured.firn("topic", "list", "--bootstrap", secured.bootstrap, user=secured.client("mallory", "x"))
    assert wrong.returncode != 0
    assert "Authentication failed" in wrong.stderr
    plain = secured.firn("topic", "list", "--bootstrap", secured.bootstrap)
    assert plain.returncode != 0


def test_kafkas_tools_add_a_user_who_logs_in(secured: Secured, jvm: JavaProgram) -> None:
    admin = secured.client("admin", "admin-secret")
    tools = Tools(jvm, None)  # type: ignore[arg-type]
    common = ("--bootstrap-server", secured.bootstrap, "--command-config", admin)
    user = ("--entity-type", "users", "--entity-name", "java")
    added = tools.run(
        CONFIGS, *common, *user, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=java-secret]"
    )
    assert added.code == 0, added
    # `--describe` also asks for quotas, which are not served yet.
    listed = secured.firn("user", "list", "--json", "--bootstrap", secured.bootstrap, user=admin)
    assert {"user": "java", "mechanism": "SCRAM-SHA-256", "iterations": 8192} in json.loads(listed.stdout)
    assert {shape_told(secured, name) for name in ("java", *(f"stranger-{one}" for one in range(10)))} == {
        SaltShape(Alphabet.JAVA, 0, 8192)
    }, "salts do not tell whether a user exists"
    java = secured.client("java", "java-secret", "SCRAM-SHA-256")
    seen = tools.run(TOPICS, "--bootstrap-server", secured.bootstrap, "--command-config", java, "--list")
    assert seen.code == 0, seen
    removed = tools.run(CONFIGS, *common, *user, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert removed.code == 0, removed
    refused = tools.run(TOPICS, "--bootstrap-server", secured.bootstrap, "--command-config", java, "--list")
    assert refused.code != 0
    assert "invalid credentials with SASL mechanism SCRAM-SHA-256" in refused.out + refused.error


@pytest.mark.parametrize(("version", "serves"), [("-tls1_3", True), ("-tls1_2", True), ("-tls1_1", False)])
def test_openssl_connects_by_the_versions_that_are_served(secured: Secured, version: str, serves: bool) -> None:
    done = subprocess.run(
        ["openssl", "s_client", "-connect", secured.bootstrap, "-CAfile", str(secured.tls / "ca.pem"),
         "-verify_return_error", "-verify_hostname", "localhost", version],
        input="", capture_output=True, text=True, timeout=READY_S_MAX, check=False,
    )  # fmt: skip
    assert ("Verify return code: 0 (ok)" in done.stdout and "Cipher is (NONE)" not in done.stdout) is serves, (
        done.stdout
    )
