"""The chart of infra/kubernetes: Helm lints and renders it, kubeconform checks it, and a broker runs as its manifest says.

``make kubernetes-check`` builds Helm and kubeconform with Go. Without them, the tests of rendered manifests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app import __version__
from app.settings import load
from tests.support.ports import free_port
from tests.support.s3_server import CREDENTIALS, S3Server, s3_server
from tests.support.secured import add_certificate, certificates
from tests.support.waiting import block_until
from tools.kubernetes import KUBERNETES, program, schemas

ROOT = Path(__file__).parents[3]
CHART = ROOT / "infra" / "kubernetes" / "firn"
README = CHART.parent / "README.md"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
STORE = {"store": {"url": "s3://bucket/firn?region=eu-central-1"}}
SECURED = {
    **STORE,
    "advertise": "podDNS",
    "listeners": [
        {"name": "CLIENTS", "port": 9092, "protocol": "SASL_SSL"},
        {"name": "BROKERS", "port": 9094, "protocol": "SSL"},
    ],
    "interBrokerListener": "BROKERS",
    "http": {"port": 8443, "scheme": "https", "allowedHosts": ["firn.example"]},
    "settings": {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/etc/firn/secret/broker.pem",
        "firn.http.ssl.keystore.location": "/etc/firn/secret/broker.pem",
        "log.retention.ms": 604800000,
        "auto.create.topics.enable": False,
    },
    "filesSecret": "firn-files",
    "usersSecret": "firn-users",
    "environmentSecrets": ["firn-settings"],
}
FULL = {
    "store": {"url": "s3://b/p", "walUrl": "s3://fast--x-s3", "credentialsSecret": "keys"},
    "image": {"repository": "registry.example/firn", "digest": f"sha256:{'a' * 64}", "pullSecrets": ["pull"]},
    "serviceAccount": {"create": False, "name": "brokers"},
    "data": {"sizeLimit": "2Gi", "medium": "Memory"},
    "preStopSleepSeconds": 0,
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "topologySpread": [],
    "podAnnotations": {"prometheus.io/scrape": "true"},
    "nodeSelector": {"kubernetes.io/arch": "arm64"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
}
CASES = {"least": STORE, "secured": SECURED, "full": FULL}


def merged(values: Any, own: Any) -> Any:
    """As Helm merges them: maps by key, all else replaced."""
    if isinstance(values, dict) and isinstance(own, dict):
        return values | {name: merged(values.get(name), value) for name, value in own.items()}
    return own


# --- without Helm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_values_fit_their_schema(case: str) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(merged(VALUES, CASES[case]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicsa": 3},
        {"store": {"url": "bucket"}},
        {"listeners": []},
        {"listeners": [{"name": "C", "port": 80, "protocol": "PLAINTEXT"}]},
        {"resources": {"limits": {"cpu": 1, "memory": None}}, "settings": {"a": [1]}},
        {"advertise": "hostname"},
        {"image": {"digest": "latest"}},
    ],
)
def test_wrong_values_are_refused_by_the_schema(wrong: dict[str, Any]) -> None:
    assert not jsonschema.Draft7Validator(SCHEMA).is_valid(merged(merged(VALUES, STORE), wrong))


def test_every_value_has_a_place_in_the_schema_and_the_chart_has_the_version_of_the_program() -> None:
    assert set(VALUES) == set(SCHEMA["properties"]) - {"global"}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


# --- rendered -------------------------------------------------------------------------------------------------------------


def tool(name: str) -> Path:
    found = program(name)
    if found is None:
        pytest.skip(f"{name} is not built here: make kubernetes-check builds it with Go")
    return found


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False)


def render_text(values: Path | dict[str, Any], folder: Path, *, release: str = "firn") -> str:
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    version = KUBERNETES.removeprefix("v")
    done = helm("template", release, CHART, "--namespace", "logs", "--kube-version", version, "--values", file)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(values: dict[str, Any], folder: Path, *, release: str = "firn") -> dict[str, dict[str, Any]]:
    """The manifests by kind."""
    documents = [each for each in yaml.safe_load_all(render_text(values, folder, release=release)) if each]
    return {each["kind"]: each for each in documents}


def pod_of(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = manifests["Deployment"]["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("case", CASES)
def test_helm_lints_the_chart(case: str, tmp_path: Path) -> None:
    (tmp_path / "values.json").write_text(json.dumps(CASES[case]))
    done = helm("lint", "--strict", "--values", tmp_path / "values.json", CHART)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_kubeconform_finds_each_manifest_valid(case: str, tmp_path: Path) -> None:
    kubeconform, folder = tool("kubeconform"), schemas()
    if folder is None:
        pytest.skip("Kubernetes' schemas are not made here: make kubernetes-check makes them with Go")
    command = [kubeconform, "-strict", "-summary", "-output", "json"]
    location = ["-schema-location", f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json", "-"]

    def check(text: str) -> dict[str, int]:
        done = subprocess.run([*command, *location], input=text, capture_output=True, text=True, check=False)
        summary: dict[str, int] = json.loads(done.stdout)["summary"]
        return summary

    text = render_text(CASES[case], tmp_path)
    found = check(text)
    assert (found["invalid"], found["errors"], found["skipped"]) == (0, 0, 0)
    assert found["valid"] == text.count("\nkind: ") >= 4
    broken = check(text.replace("terminationGracePeriodSeconds:", "terminationGraceSeconds:"))
    assert broken["invalid"] == 1, "the schemas refuse an unknown field"


def test_a_chart_without_a_store_is_refused(tmp_path: Path) -> None:
    done = helm("template", "firn", CHART, "--kube-version", "1.37.0")
    assert done.returncode == 1
    assert "store" in done.stderr


def test_a_listener_of_the_brokers_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = helm(
        "template", "firn", CHART, "--kube-version", "1.37.0", "--set", "store.url=s3://b,interBrokerListener=OTHER"
    )
    assert done.returncode == 1
    assert "interBrokerListener names OTHER, and listeners has CLIENTS." in done.stderr


@pytest.mark.parametrize("case", CASES)
def test_every_container_is_locked_down_and_writes_to_emptydirs_only(case: str, tmp_path: Path) -> None:
    pod = pod_of(render(CASES[case], tmp_path))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "a service's variables would be taken for settings"
    volumes = {each["name"]: each for each in pod["volumes"]}
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        for mount in container["volumeMounts"]:
            assert mount.get("readOnly", False) is ("emptyDir" not in volumes[mount["name"]])


def test_services_budgets_and_spreading_select_the_pods_of_the_release(tmp_path: Path) -> None:
    manifests = render(STORE, tmp_path, release="blue")
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        manifests["Deployment"]["spec"]["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in pod_of(manifests)["topologySpreadConstraints"]),
    ]
    assert len(selectors) == 5
    for selector in selectors:
        assert selector["app.kubernetes.io/instance"] == "blue"
        assert selector.items() <= labels
    assert {each["metadata"]["name"] for each in manifests.values()} == {"blue-firn"}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_has_time_to_end_and_the_settings_are_ones_that_a_broker_knows(case: str, tmp_path: Path) -> None:
    manifests = render(CASES[case], tmp_path)
    pod = pod_of(manifests)
    (broker,) = pod["containers"]
    sleep = broker.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    assert pod["terminationGracePeriodSeconds"] - int(sleep[1]) >= 120, "as long as systemd waits for a broker"
    file = tmp_path / "firn.properties"
    text = manifests["ConfigMap"]["data"]["firn.properties"]
    file.write_text(re.sub(r"(?m)^.*\.ssl\.keystore.*$|^ssl\.keystore.*$", "", text))
    environment = {
        each["name"]: each["value"].replace("$(POD_IP)", "10.0.0.7")
        for each in broker["env"]
        if each["name"].startswith("FIRN_") and "PROTOCOL_MAP" not in each["name"] and each["name"] != "FIRN_CONFIG"
    }
    environment |= {"FIRN_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT"}
    environment.setdefault("FIRN_ADVERTISED_LISTENERS", "CLIENTS://a.example:9092,BROKERS://a.example:9094")
    loaded = load(config_path=file, environment=environment, flags={"--ephemeral": "true"}, assignments=()).broker
    assert loaded.firn_ephemeral
    assert loaded.store_url == CASES[case]["store"]["url"]
    assert {"firn", "firn.logs.svc", "firn.logs.svc.cluster.local"} <= set(loaded.firn_http_allowed_hosts)


def test_a_broker_with_a_name_in_dns_advertises_its_address_with_dashes(tmp_path: Path) -> None:
    (broker,) = pod_of(render(SECURED, tmp_path))["containers"]
    stand_in = tmp_path / "firn"
    stand_in.write_text('#!/bin/sh\necho "$FIRN_ADVERTISED_LISTENERS|${ADVERTISED-none}|$*"\n')
    stand_in.chmod(0o755)
    environment = {each["name"]: each.get("value", "10.0.0.7") for each in broker["env"]}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [*broker["command"], *broker["args"]], env=environment, capture_output=True, text=True, check=True
    )
    host = "10-0-0-7.logs.pod.cluster.local"
    assert done.stdout == f"CLIENTS://{host}:9092,BROKERS://{host}:9094|none|serve --ephemeral --node-id auto\n"


def test_users_of_the_secret_are_left_in_the_data_directory(tmp_path: Path) -> None:
    (users,) = pod_of(render(SECURED, tmp_path))["initContainers"]
    folder = tmp_path / "users"
    folder.mkdir()
    for name in ("admin", "reader"):
        (folder / name).write_text(f"the password of {name}\n")
    firn_program(tmp_path)
    script = users["args"][0].replace("/etc/firn/users", str(folder)).replace("/var/lib/firn", str(tmp_path / "var"))
    (tmp_path / "var").mkdir()
    subprocess.run([*users["command"], script], env=environment_of(tmp_path), capture_output=True, check=True)
    left = b"".join(path.read_bytes() for path in (tmp_path / "var" / "data").rglob("*") if path.is_file())
    assert b"admin" in left
    assert b"reader" in left
    assert b"the password" not in left


# --- run ------------------------------------------------------------------------------------------------------------------


def firn_program(folder: Path) -> None:
    (folder / "bin").mkdir()
    program_file = folder / "bin" / "firn"
    program_file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m firn_broker "$@"\n')
    program_file.chmod(0o755)


def environment_of(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server("moto", tmp_path / "s3") as server:
        yield server


class Pod:
    """The containers of a rendered pod on this machine. The test is the kubelet: it gives addresses, secrets and mounts."""

    def __init__(self, manifests: dict[str, dict[str, Any]], folder: Path) -> None:
        self.folder = folder
        self.spec = pod_of(manifests)
        (self.container,) = self.spec["containers"]
        (folder / "etc").mkdir()
        (folder / "var").mkdir()
        (folder / "etc" / "firn.properties").write_text(self.moved(manifests["ConfigMap"]["data"]["firn.properties"]))
        firn_program(folder)
        given = {each["name"]: each.get("value", "127.0.0.1") for each in self.container["env"]}
        filled = {name: self.moved(text.replace("$(POD_IP)", given["POD_IP"])) for name, text in given.items()}
        self.environment = {**environment_of(folder), **filled, **CREDENTIALS}
        self.ports = {each["name"]: each["containerPort"] for each in self.container["ports"]}

    def moved(self, text: str) -> str:
        return text.replace("/var/lib/firn", str(self.folder / "var")).replace("/etc/firn", str(self.folder / "etc"))

    def prepare(self) -> None:
        """Run the containers that come before the broker."""
        for container in self.spec.get("initContainers", ()):
            command = [*container["command"], *map(self.moved, container["args"])]
            subprocess.run(command, env=environment_of(self.folder), capture_output=True, check=True)

    @contextmanager
    def broker(self) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                ["firn", *self.container["args"]],
                env=self.environment,
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def passes(self, probe: str, process: subprocess.Popen[bytes]) -> bool:
        """Ask as the kubelet does: by the pod's address, and without a look at the certificate."""
        asked = self.container[probe]["httpGet"]
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        url = f"{asked['scheme'].lower()}://127.0.0.1:{self.ports[asked['port']]}{asked['path']}"
        try:
            with urllib.request.urlopen(url, timeout=5, context=trusting) as answer:
                return bool(answer.status == 200)
        except OSError:
            assert process.poll() is None, (self.folder / "log").read_text()
            return False

    def firn(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["firn", *arguments], env=self.environment, input=stdin, capture_output=True, text=True, check=False
        )

    def serve_and_end(self, *before: str, address: str) -> None:
        """``before`` come before the command. The broker passes its probes, serves a record, and ends with 0 at SIGTERM."""
        with self.broker() as process:
            for probe in PROBES:
                block_until(partial(self.passes, probe, process), f"{probe} passes")
            sent = self.firn(*before, "produce", "greetings", "-b", address, stdin="hello\n")
            assert sent.returncode == 0, sent.stderr
            assert self.firn(*before, "consume", "greetings", "--count", "1", "-b", address).stdout == "hello\n"
            process.terminate()
            assert process.wait() == 0


@pytest.mark.ci
def test_a_broker_serves_as_the_manifest_says_answers_the_probes_and_ends_at_sigterm(
    tmp_path: Path, s3: S3Server
) -> None:
    kafka, http = free_port(), free_port()
    values = {
        "store": {"url": s3.store, "credentialsSecret": "keys"},
        "listeners": [{"name": "CLIENTS", "port": kafka, "protocol": "PLAINTEXT"}],
        "http": {"port": http},
        "settings": {"num.partitions": 2},
    }
    pod = Pod(render(values, tmp_path), tmp_path)
    assert pod.container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    pod.serve_and_end(address=f"127.0.0.1:{kafka}")


@pytest.mark.ci
def test_the_secured_values_of_the_readme_give_a_broker_that_serves_users_of_the_secret_only(
    tmp_path: Path, s3: S3Server
) -> None:
    block = re.search(r"^```yaml\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    values = yaml.safe_load(block[1])
    ports = [free_port(), free_port()]
    for listener, port in zip(values["listeners"], ports, strict=True):
        listener["port"] = port
    values["http"]["port"] = free_port()
    values |= {"store": {"url": s3.store}, "advertise": "podIP"}  # There is no DNS of a cluster here.
    pod = Pod(render(values, tmp_path), tmp_path)
    made = certificates(tmp_path / "authority")
    (pod.folder / "etc" / "secret").mkdir()
    shutil.copy(add_certificate(made, "firn", "127.0.0.1"), pod.folder / "etc" / "secret" / "broker.pem")
    shutil.copy(made / "ca.pem", pod.folder / "etc" / "secret" / "ca.pem")
    (pod.folder / "etc" / "users").mkdir()
    (pod.folder / "etc" / "users" / "admin").write_text("a secret of the admin\n")
    client = tmp_path / "client.properties"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    client.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={made / 'ca.pem'}\n"
        f'sasl.jaas.config={login} username="admin" password="a secret of the admin";\n'
    )
    pod.prepare()
    address = f"127.0.0.1:{ports[0]}"
    pod.serve_and_end("--client-config", str(client), address=address)
    with pod.broker() as process:
        block_until(partial(pod.passes, "readinessProbe", process), "the broker is ready again")
        client.write_text(client.read_text().replace("of the admin", "of another"))
        refused = pod.firn("--client-config", str(client), "topic", "list", "-b", address)
        assert refused.returncode == 1
        assert "uthentication" in refused.stderr
