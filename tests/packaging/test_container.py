"""The container without an engine: its Dockerfile is read, and its entry point runs with the documented environments."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app import __version__
from tests.support.ports import free_port
from tests.support.waiting import block_until

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/container.md", "Dockerfile")
VALUE = re.compile(r'([\w.]+)=(?:"((?:[^"\\]|\\.)*)"|(\S+))')


@dataclass
class Image:
    """The last stage of the Dockerfile."""

    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    ports: set[int] = field(default_factory=set)
    volumes: set[str] = field(default_factory=set)
    others: dict[str, str] = field(default_factory=dict)


def pairs(text: str) -> dict[str, str]:
    return {name: plain or quoted for name, quoted, plain in VALUE.findall(text)}


def image() -> Image:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    found = Image()
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.partition(" ")
        match instruction:
            case "FROM":
                found = Image()
            case "ENV":
                found.environment |= pairs(rest)
            case "LABEL":
                found.labels |= pairs(rest)
            case "EXPOSE":
                found.ports |= {int(port) for port in rest.split()}
            case "VOLUME":
                found.volumes.add(rest)
            case "":
                pass
            case _:
                found.others[instruction] = rest
    return found


@dataclass(frozen=True)
class DockerRun:
    """A documented ``docker run``."""

    environment: dict[str, str]
    published: tuple[tuple[int, int], ...]
    """Ports of the host, and of the container."""
    volumes: tuple[str, ...]
    arguments: tuple[str, ...]


def commands(page: str) -> Iterator[DockerRun]:
    """The commands of a page that run the image."""
    text = re.sub(r"^#", "", (ROOT / page).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    for line in text.splitlines():
        words = shlex.split(line.strip(), comments=True) if line.strip().startswith("docker run ") else []
        if "firn" not in words or "python:3.11-bookworm" in words:
            continue
        environment: dict[str, str] = {}
        published, volumes, arguments = [], [], iter(words[2:])
        for word in arguments:
            match word:
                case "-e":
                    name, _, value = next(arguments).partition("=")
                    environment[name] = value
                case "-p":
                    *_, host, inside = next(arguments).split(":")
                    published.append((int(host), int(inside)))
                case "-v":
                    volumes.append(next(arguments).partition(":")[2])
                case "--network" | "--name":
                    next(arguments)
                case "firn":
                    break
                case _:
                    assert word in ("--rm", "--read-only"), word
        yield DockerRun(environment, tuple(published), tuple(volumes), tuple(arguments))


def all_commands() -> list[DockerRun]:
    return [command for page in PAGES for command in commands(page)]


def test_the_image_says_who_it_is_and_runs_as_a_user_that_is_not_root() -> None:
    found = image()
    assert found.labels["org.opencontainers.image.version"] == __version__
    assert found.labels["org.opencontainers.image.title"] == "Firn"
    assert (found.others["USER"], found.others["STOPSIGNAL"]) == ("10001:10001", "SIGTERM")
    assert json.loads(found.others["ENTRYPOINT"]) == ["firn"]
    assert json.loads(found.others["CMD"]) == ["serve"]


def test_every_documented_command_publishes_equal_ports_that_the_image_has_and_keeps_the_data_in_its_volume() -> None:
    found = image()
    seen = all_commands()
    assert len(seen) >= 5, "README, Dockerfile, and three of docs/container.md"
    for command in seen:
        assert command.volumes == tuple(found.volumes)
        assert Path(found.environment["FIRN_DATA_DIR"]).parent == Path(command.volumes[0])
        assert {inside for _, inside in command.published} <= found.ports
        assert all(host == inside for host, inside in command.published)
        advertised = command.environment.get("FIRN_ADVERTISE") or command.environment["FIRN_ADVERTISED_LISTENERS"]
        assert int(found.environment["FIRN_LISTEN"].rpartition(":")[2]) in map(int, re.findall(r":(\d+)", advertised))


def test_the_line_of_the_readme_is_that_of_the_page_and_of_the_dockerfile() -> None:
    first = [next(commands(page)) for page in PAGES]
    assert first[0] == first[1] == first[2]


# --- run ------------------------------------------------------------------------------------------------------------------


class Container:
    """The entry point with the environment of the image and of one command; folders and ports are of the test's own."""

    def __init__(self, folder: Path, command: DockerRun) -> None:
        found = image()
        ports = {str(port): str(free_port()) for port in (*found.ports, 9093)}

        def moved(text: str) -> str:
            text = text.replace("/var/lib/firn", str(folder)).replace("//firn:", "//127.0.0.1:")
            return re.sub(r":(\d+)\b", lambda port: f":{ports[port[1]]}", text)

        given = {**found.environment, **command.environment}
        self.environment = {name: moved(text) for name, text in given.items()}
        self.environment["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
        self.environment["PYTHONPATH"] = str(ROOT)
        self.folder = folder
        self.http = f"http://127.0.0.1:{ports['8080']}"
        (folder / "bin").mkdir()
        program = folder / "bin" / "firn"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m firn_broker "$@"\n')
        program.chmod(0o755)
        arguments = [*json.loads(found.others["ENTRYPOINT"]), *(command.arguments or json.loads(found.others["CMD"]))]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                arguments, env=self.environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=log
            )

    def check_health(self) -> int:
        """The exit code of the image's health check."""
        command = json.loads(image().others["HEALTHCHECK"].partition("CMD ")[2])
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, check=False, stderr=subprocess.DEVNULL
        ).returncode

    def firn(self, *arguments: str, stdin: str = "") -> str:
        return subprocess.run(
            ["firn", *arguments], env=self.environment, input=stdin, capture_output=True, text=True, check=True
        ).stdout

    def readiness(self) -> bytes:
        with urllib.request.urlopen(f"{self.http}/readyz", timeout=30) as answer:
            body: bytes = answer.read()
            return body


@pytest.fixture
def container(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Container]:
    made = Container(tmp_path, request.param)
    yield made
    if made.process.poll() is None:
        made.process.kill()
    made.process.wait()


README_LINE = next(commands("README.md"))
TWO_LISTENERS = next(one for one in commands("docs/container.md") if "FIRN_LISTENERS" in one.environment)


def health_is_good(container: Container) -> bool:
    assert container.process.poll() is None, (container.folder / "log").read_text()
    return container.check_health() == 0


@pytest.mark.ci
@pytest.mark.parametrize("container", [README_LINE, TWO_LISTENERS], indirect=True, ids=["one", "two-listeners"])
def test_the_entry_point_serves_with_the_documented_environment_and_ends_with_0_at_sigterm(
    container: Container,
) -> None:
    block_until(lambda: health_is_good(container), "the health check passes")
    assert b'"status":"ready"' in container.readiness()
    container.firn("produce", "greetings", stdin="hello\n")
    assert container.firn("consume", "greetings", "--count", "1") == "hello\n"
    written = {path.name for path in container.folder.iterdir()}
    assert written == {"bin", "log", "data", "data-store"}, "one volume keeps the logs and the object store"
    container.process.send_signal(signal.SIGTERM)
    assert container.process.wait() == 0
    assert container.check_health() == 1
