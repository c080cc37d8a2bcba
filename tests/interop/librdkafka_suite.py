"""librdkafka's own test suite against one broker of Firn or three, or against Apache Kafka for comparison.

    python -m tests.interop.librdkafka_suite SOURCE [--peer kafka] [--brokers 3] [--logs FOLDER] [NUMBER …]

SOURCE is a folder with librdkafka's source, built by ``./configure --disable-gssapi --disable-sasl``, ``make libs`` and
``make -C tests build``. 0098 needs rapidjson-dev before ``configure``, and ``make -C tests/java KAFKA_PATH=…`` with Kafka's jars in
``KAFKA_PATH/libs``. Every number (0011, 0172, …) runs as a process of its own; without numbers, all tests that talk to
a broker run. Tests of librdkafka alone (its mock cluster, its unit tests) are left out, and so are those in ``LEFT_OUT``.

The brokers have the settings that librdkafka's own cluster gives its brokers, with an authorizer that allows what no ACL forbids.
Some of its tests want replicas of every topic on three brokers, though nothing that they prove needs them: with one broker a
preloaded function asks for one replica instead. With three brokers each is in a rack of its own, new topics have three replicas,
brokers log in to each other as super users, so that ACLs are for the suite's clients alone, and tests of logins use SCRAM. Where
Kafka's jars are (``make kafka-libs``), tests that call its tools or a Java class find them. 0077 gives the broker 20 s to compact,
which is too little where the cleaner, a process of low priority, starts on a busy machine.

The exit code is 1 if a test failed, was not understood, or did not end in time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from loadtests.cluster_peer import USERS, firn_cluster, kafka_cluster
from loadtests.kafka_peer import PeerMissing, kafka_libs, kafka_running
from tests.interop.serving import firn_serving

KAFKA_VERSION = "4.3.1"
"""What librdkafka's tests take the broker for: it chooses what they try."""
TEST_S_MAX = 900

REAUTHENTICATION_MS = 10_000
SETTINGS = {"num.partitions": "4", "broker.rack": "RACK1", "group.share.min.record.lock.duration.ms": "1000"}
"""As librdkafka gives them to the brokers of its own cluster."""
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
THREE = {
    "connections.max.reauth.ms": str(REAUTHENTICATION_MS),
    "default.replication.factor": "3",
    "min.insync.replicas": "1",
}
RACKS = ("RACK1", "RACK2", "RACK3")
SCENARIOS = {"default": "true", "noautocreate": "false"}
"""Scenario to ``auto.create.topics.enable``."""

LEFT_OUT = {
    "0016": "reads a client's name from the JMX port of a Java broker",
    "0028": "librdkafka counts it among its known issues",
    "0047": "librdkafka counts it among its known issues",
    "0097": "needs TLS with the certificates of librdkafka's own cluster",
    "0126": "needs a server of OAUTHBEARER tokens, and libcurl",
    "0190": "needs a telemetry receiver in the broker, and the cluster that librdkafka starts",
    "8000": "idles for ever, by hand",
    "8001": "by hand",
}

NEEDS_THREE = {
    "0101": "needs three brokers in three racks",
    "0135": "needs a login, which the three brokers ask for",
    "0142": "needs a login, which the three brokers ask for",
}
"""Left out with one broker."""
LOG_IN = frozenset({"0135", "0142"})
"""They log in by SCRAM-SHA-256."""

ONE_REPLICA = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
typedef void *make_t(const char *, int, int, char *, size_t);
void *rd_kafka_NewTopic_new(const char *topic, int partitions, int replicas, char *error, size_t error_size) {
        make_t *make = (make_t *)dlsym(RTLD_NEXT, "rd_kafka_NewTopic_new");
        return make(topic, partitions, replicas > 1 ? 1 : replicas, error, error_size);
}
"""

SCENARIO = re.compile(r'\.scenario = "([^"]*)"')
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RESULT = re.compile(r"^\| (\d{4}_\w+) +\| +(\w[\w ]*?) \| +([\d.]+)s \|(.*)$", re.MULTILINE)
FAILED = re.compile(r'^### Test "(\d{4}_\w+)[^"]*" failed at (\S+) .*\n(.*)$', re.MULTILINE)
"""What a test says that fails; the runner may abort then, before it has told any result."""
SUBTEST = re.compile(r"\[ .*: PASS \(")
SUBTEST_SKIPPED = re.compile(r"\[ .*: SKIP: ")


class Listed(NamedTuple):
    """A line of librdkafka's table of tests."""

    number: str
    scenarios: tuple[str, ...]


class Result(NamedTuple):
    """What became of one test."""

    name: str
    state: str
    """As librdkafka says it, or TOOK TOO LONG, or NO RESULT."""
    seconds: float
    says: str
    subtests: int
    subtests_skipped: int


def listed(source: Path) -> list[Listed]:
    """The tests of the suite that talk to a broker, in the suite's order."""
    found = []
    table = (source / "tests" / "test.c").read_text().split("struct test tests[] = {", 1)[1].split("{NULL}", 1)[0]
    for entry in re.split(r"\n +_TEST\(", table)[1:]:
        number, flags = entry[:4], entry.split(",", 2)[1]
        scenario = SCENARIO.search(entry)
        if "TEST_F_LOCAL" not in flags and not re.match(r"\w+_mock,", entry):
            found.append(Listed(number, tuple((scenario.group(1) if scenario else "default").split(","))))
    return found


class Addresses(NamedTuple):
    """Where brokers listen."""

    plain: str
    login: str
    """Where clients log in; empty if they cannot."""


@contextmanager
def brokers(count: int, peer: str, scenario: str, path: Path, logs: Path) -> Iterator[Addresses]:
    """One broker or three of the kind asked for; their addresses. What Firn's say is left in ``logs``. Raises: PeerMissing."""
    settings = SETTINGS | AUTHORIZER | {"auto.create.topics.enable": SCENARIOS[scenario]}
    if count > 1:
        make = kafka_cluster if peer == "kafka" else firn_cluster
        with make(path, settings=settings | THREE, racks=RACKS, guarded=True) as cluster:
            try:
                yield Addresses(cluster.bootstrap, cluster.login_bootstrap)
            finally:
                for node_id, one in cluster.brokers.items():
                    shutil.copy(one.output, logs / f"broker-{scenario}-{node_id}.log")
        return
    if peer == "kafka":
        with kafka_running(path, settings=settings) as kafka:
            yield Addresses(kafka.bootstrap, "")
        return
    path.mkdir()
    week = {"log_retention_ms": 7 * 86_400_000, "remote_log_manager_task_interval_ms": 30_000}
    with firn_serving(path, **week, **{name.replace(".", "_"): value for name, value in settings.items()}) as firn:
        try:
            yield Addresses(firn.bootstrap, "")
        finally:
            (logs / f"broker-{scenario}.log").write_text("\n".join([*firn.lines, ""]))


def environment(source: Path, path: Path, bootstrap: str, *, login: bool = False) -> dict[str, str]:
    """Environment of ``test-runner``: its configuration, the one-replica function, and Kafka's tools if they are here. ``login``:
    whether its clients log in."""
    path.mkdir()
    lines = [f"bootstrap.servers={bootstrap}", "test.timeout.multiplier=3"]
    if login:
        lines += ["security.protocol=SASL_PLAINTEXT", "sasl.mechanisms=SCRAM-SHA-256"]
        lines += ["sasl.username=client", f"sasl.password={USERS['client']}"]
    (path / "test.conf").write_text("".join(f"{line}\n" for line in lines))
    preloaded = {}
    if "," not in bootstrap:
        (path / "one_replica.c").write_text(ONE_REPLICA)
        shim = path / "one_replica.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shim), str(path / "one_replica.c"), "-ldl"], check=True)
        preloaded["LD_PRELOAD"] = str(shim)
    found = {
        **os.environ,
        **preloaded,
        "LD_LIBRARY_PATH": f"{source}/src:{source}/src-cpp",
        "RDKAFKA_TEST_CONF": str(path / "test.conf"),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "BROKERS": bootstrap,
    }
    found.pop("CI", None)  # it changes what the tests do
    try:
        libs = kafka_libs()
    except PeerMissing as missing:
        print(f"no kafka-topics.sh for the tests that call it: {missing}")
        return found
    home = path / "kafka"
    (home / "bin").mkdir(parents=True)
    (home / "libs").symlink_to(libs)
    for name, main_class in (
        ("kafka-topics.sh", " org.apache.kafka.tools.TopicCommand"),
        ("kafka-acls.sh", " org.apache.kafka.tools.AclCommand"),
        ("kafka-run-class.sh", ""),
    ):
        tool = home / "bin" / name
        tool.write_text(f'#!/bin/sh\nexec env -u LD_PRELOAD java -cp "$CLASSPATH:{libs}/*"{main_class} "$@"\n')
        tool.chmod(0o755)
    return found | {"KAFKA_PATH": str(home)}


def run(source: Path, number: str, scenario: str, environ: dict[str, str], log: Path) -> list[Result]:
    """Run the tests of one number; what became of each."""
    command = ["./test-runner", "-p1", "-L", "-s", scenario]
    late = False
    started = time.monotonic()
    with log.open("wb") as out:
        environ = environ | {"TESTS": number}
        runner = subprocess.Popen(command, cwd=source / "tests", env=environ, stdout=out, stderr=out)
        try:
            runner.wait(TEST_S_MAX)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            runner.kill()
            runner.wait()
    text = COLOUR.sub("", log.read_text(errors="replace"))
    subtests, skipped = len(SUBTEST.findall(text)), len(SUBTEST_SKIPPED.findall(text))
    results = [
        Result(name, state, float(seconds), says.strip(), subtests, skipped)
        for name, state, seconds, says in RESULT.findall(text)
        if name.startswith(number) and not (state == "SKIPPED" and (not says.strip() or "negative test flags" in says))
    ]
    if not late and results:
        return results
    failed = FAILED.findall(text)
    if failed:
        name, place, why = failed[0]
        return [Result(name, "FAILED", time.monotonic() - started, f"{place}: {why}", subtests, skipped)]
    state = "TOOK TOO LONG" if late else "NO RESULT"
    return [Result(number, state, time.monotonic() - started, f"see {log}", subtests, skipped)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run librdkafka's own test suite against one broker or three.")
    parser.add_argument("source", type=Path, help="librdkafka's source, built")
    parser.add_argument("numbers", nargs="*", help="tests to run, as 0011; all that talk to a broker if none is given")
    parser.add_argument("--peer", choices=["firn", "kafka"], default="firn", help="the broker")
    parser.add_argument("--brokers", type=int, choices=[1, len(RACKS)], default=1, help="how many")
    parser.add_argument("--logs", type=Path, help="folder for what each test prints; a temporary one if not given")
    options = parser.parse_intermixed_args(arguments)
    source = options.source.resolve()
    if not (source / "tests" / "test-runner").exists():
        parser.error(f"{source}/tests/test-runner does not exist: build it with make libs and make -C tests build")
    logs = options.logs or Path(tempfile.mkdtemp(prefix="librdkafka-suite-"))
    logs.mkdir(parents=True, exist_ok=True)
    asked = [test for test in listed(source) if not options.numbers or test.number in options.numbers]
    left_out = LEFT_OUT if options.brokers > 1 else LEFT_OUT | NEEDS_THREE
    results: list[Result] = []
    for scenario in SCENARIOS:
        numbers = dict.fromkeys(test.number for test in asked if scenario in test.scenarios)
        chosen = [number for number in numbers if options.numbers or number not in left_out]
        if not chosen:
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            brokers(options.brokers, options.peer, scenario, Path(folder) / "broker", logs) as addresses,
        ):
            plain = environment(source, Path(folder) / "plain", addresses.plain)
            login = (
                environment(source, Path(folder) / "login", addresses.login, login=True) if addresses.login else plain
            )
            for number in chosen:
                environ = login if number in LOG_IN else plain
                for result in run(source, number, scenario, environ, logs / f"{number}-{scenario}.log"):
                    results.append(result)
                    print(f"{result.name:<55} {result.state:<14} {result.seconds:7.1f} s  ", end="")
                    print(f"{result.subtests} subtests, {result.subtests_skipped} skipped  {result.says}", flush=True)
    if not options.numbers:
        for number, reason in sorted(left_out.items()):
            print(f"{number:<45} left out: {reason}")
    states = [result.state for result in results]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) + f"; logs in {logs}")
    return 0 if all(state in ("PASSED", "SKIPPED") for state in states) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
