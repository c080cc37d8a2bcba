"""What users install works where they install it: in an environment of its own, outside the repository, each extra alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from app import __version__
from app.machine.commit import commit_of_checkout
from tests.support.checkouts import ROOT
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("index")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEVELOPERS = sorted(set(PROJECT["optional-dependencies"]) - {"demo", "redis", "registry", "spark"})


@dataclass
class Installed:
    """An environment with Firn, and a folder that is not the repository."""

    environment: Path
    folder: Path
    sizes: dict[str, float]

    def run(self, program: str, *arguments: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FIRN_", "VIRTUAL_ENV"))
        }
        return subprocess.run(
            [self.environment / "bin" / program, *arguments],
            cwd=self.folder,
            env={**kept, "COLUMNS": "120", **more},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def firn(self, *arguments: str, stdin: str = "", **more: str) -> str:
        done = self.run("firn", *arguments, stdin=stdin, **more)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    @contextmanager
    def broker(self) -> Iterator[str]:
        """Its address while it runs in the background."""
        kafka, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.firn("serve", "--background", "--listen", kafka, "--http", http)
        try:
            yield kafka
        finally:
            self.firn("stop")


def install(tmp_path: Path, *extras: str, target: str = "wheel") -> Installed:
    environment, folder = tmp_path / "environment", tmp_path / "elsewhere"
    folder.mkdir()
    commit = commit_of_checkout(ROOT) or "unknown"
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "tools/install_size.py", "--from", target, "--into", environment),
            *(f"--extra={extra}" for extra in extras),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    installed = Installed(environment, folder, json.loads(done.stdout.splitlines()[-1]))
    assert installed.firn("--version") == f"firn {__version__} (commit {commit})\n"
    checked = installed.run("pip", "check")
    assert checked.returncode == 0, checked.stdout
    assert installed.run("python", "-c", "import app; print(app.__file__)").stdout.startswith(str(environment))
    return installed


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_the_least_installation_serves_and_names_the_extra_of_what_it_lacks(tmp_path: Path, target: str) -> None:
    installed = install(tmp_path, target=target)
    with installed.broker() as kafka:
        installed.firn("produce", "greetings", "-b", kafka, stdin="hello\n")
        assert installed.firn("consume", "greetings", "-b", kafka, "--count", "1") == "hello\n"
    for arguments, extra in (
        (("demo",), "demo"),
        (("job", "verify", "--store", f"file://{installed.folder}/none"), "spark"),
        (("serve", "--redis", "redis://127.0.0.1:1/0"), "redis"),
        (("serve", "--set", "firn.tracing.endpoint=http://127.0.0.1:1/v1/traces"), "tracing"),
    ):
        done = installed.run("firn", *arguments)
        assert done.returncode != 0
        assert f"pip install 'firn-broker[{extra}]'" in done.stderr
        assert "Traceback" not in done.stderr
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    assert f"**{installed.sizes['packages']} packages, {installed.sizes['megabytes']} MB**" in page


def test_the_demo_runs_with_its_extra_alone(tmp_path: Path) -> None:
    assert "everything came back as it went in" in install(tmp_path, "demo").firn("demo")


def test_jobs_run_with_the_extra_of_spark_alone(tmp_path: Path) -> None:
    installed = install(tmp_path, "spark")
    store = (installed.folder / "firn-data-store").as_uri()
    with installed.broker() as kafka:
        installed.firn("topic", "create", "t", "-p", "1", "-c", "firn.tier.max.lag.ms=1000", "-b", kafka)
        installed.firn("produce", "t", "-b", kafka, stdin="".join(f"record {n}\n" for n in range(100)))
        while not is_tiered(installed, kafka):
            pass  # each look takes as long as a process
    installed.firn("job", "verify", "--store", store, "--records")
    installed.firn("job", "archive", "t", "--store", store, "--to", (installed.folder / "archive").as_uri())
    count = "import pyarrow.dataset as d; print(d.dataset('archive', exclude_invalid_files=True).count_rows())"
    assert installed.run("python", "-c", count).stdout == "100\n"
    spark = installed.run("python", "-c", "import pyspark_firn.source; print(pyspark_firn.source.__file__)")
    assert spark.stdout.startswith(str(installed.environment)), spark.stderr


def is_tiered(installed: Installed, kafka: str) -> bool:
    """Whether the object store has every record."""
    (partition,) = json.loads(installed.firn("tier", "status", "-b", kafka, "--json"))
    return bool(partition["tiered_end_offset"] == partition["log_end_offset"])


def test_redis_is_accepted_with_its_extra_alone(tmp_path: Path) -> None:
    installed = install(tmp_path, "redis")
    assert "not installed" not in installed.run("firn", "doctor", FIRN_REDIS="redis://127.0.0.1:1/0").stdout
    assert installed.run("python", "-c", "import app.metadata.peers.redis_liveness").returncode == 0


@pytest.mark.parametrize("extra", DEVELOPERS)
def test_the_extras_of_developers_install_alone(tmp_path: Path, extra: str) -> None:
    install(tmp_path, extra)
