"""The wheelhouse installs a broker without an index, and is the same bytes whoever packs it."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from app import __version__
from tests.support.checkouts import commit_all, make_checkout, make_wheel

pytest.importorskip("hatchling", reason="hatchling is not installed: pip install -e '.[test]' brings it")
PINS = (
    "plain",
    "native",
    "inner",
    "arm_only",
    "before_3_11_3",
    "windows_only",
    "optional",
    "valkey",
    "signer",
    "validator",
    "frames",
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    make_wheel(folder, "plain", needs=("inner[more]>=1", "before-3-11-3; python_full_version < '3.11.3'"))
    make_wheel(folder, "inner", needs=("optional; extra == 'more'", "windows-only; sys_platform == 'win32'"))
    for arch in ("x86_64", "aarch64"):
        make_wheel(
            folder, "native", f"cp311-cp311-manylinux_2_28_{arch}", needs=("arm-only; platform_machine == 'aarch64'",)
        )
    make_wheel(folder, "native", "cp311-cp311-manylinux_2_39_x86_64")  # for a newer glibc
    make_wheel(folder, "frames", needs=("pyspark>=4", "inner"))
    make_wheel(folder, "native", "cp312-cp312-manylinux_2_17_x86_64")
    for name in ("arm_only", "before_3_11_3", "optional", "valkey", "signer", "validator"):
        make_wheel(folder, name)
    return folder


def hashes(packages: Path) -> dict[str, list[str]]:
    """By name; one that fits nothing for packages without a file."""
    found = {name: ["0" * 64] for name in PINS}
    for wheel in packages.iterdir():
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        found.setdefault(wheel.name.split("-")[0], []).append(digest)
    return found


def checkout(root: Path, packages: Path, *, dependencies: str = '"plain", "native>=1"') -> Path:
    make_checkout(root)
    project = (root / "pyproject.toml").read_text()
    project = re.sub(r"^dependencies = \[.*?^\]", f"dependencies = [{dependencies}]", project, flags=re.M | re.S)
    project = re.sub(r"^console = .*$", 'console = ["inner"]', project, flags=re.M)
    project = re.sub(r"^redis = .*$", 'redis = ["valkey"]', project, flags=re.M)
    project = re.sub(r"^security = .*$", 'security = ["signer"]', project, flags=re.M)
    project = re.sub(r"^registry = .*$", 'registry = ["validator"]', project, flags=re.M)
    project = re.sub(r"^spark = \[.*?^\]", 'spark = ["frames", "pyspark>=4.2"]', project, flags=re.M | re.S)
    (root / "pyproject.toml").write_text(project)
    pins = [f"{name}==1.0\n" for name in PINS]
    (root / "constraints.txt").write_text("".join(["# pins\n", *pins, f"hatchling=={metadata.version('hatchling')}\n"]))
    lines = [
        " ".join([f"{name}==1.0", *(f"--hash=sha256:{one}" for one in digests)]) + "\n"
        for name, digests in hashes(packages).items()
    ]
    (root / "hashes.txt").write_text("".join(["# hashes\n", *lines]))
    for name, text in {
        "bootstrap/firn_bootstrap.py": "print('first boot')\n",
        "bootstrap/inner/more.json": "{}",
        "bootstrap/__pycache__/firn_bootstrap.cpython-311.pyc": "not packed",
        "systemd/firn.service": "[Service]\n",
    }.items():
        (root / "infra" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "infra" / name).write_text(text)
    (root / "infra/bootstrap/firn_bootstrap.py").chmod(0o755)
    (root / ".gitignore").write_text("__pycache__\n/dist\n")
    commit_all(root)
    return root


def pack(root: Path, packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages), "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        [sys.executable, "tools/wheelhouse.py", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def wheels(archive: Path) -> set[str]:
    with tarfile.open(archive) as packed:
        return {name.removeprefix("wheels/") for name in packed.getnames() if name.startswith("wheels/")}


@pytest.mark.ci
def test_a_wheelhouse_holds_what_the_target_needs_and_pip_installs_it_by_hash(tmp_path: Path, packages: Path) -> None:
    root = checkout(tmp_path / "checkout", packages)
    head = commit_all_again(root)
    done = pack(root, packages, "--arch", "x86_64")
    assert done.returncode == 0, done.stderr
    archive = root / "dist" / f"firn-wheelhouse-{__version__}-x86_64.tar.gz"
    assert done.stdout == f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive}\n"
    assert wheels(archive) == {
        f"firn_broker-{__version__}-py3-none-any.whl",
        "native-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        *(
            f"{name}-1.0-py3-none-any.whl"
            for name in ("plain", "inner", "before_3_11_3", "optional", "valkey", "signer", "validator")
        ),
    }
    with tarfile.open(archive) as packed:
        entries = packed.getmembers()
        packed.extractall(tmp_path / "unpacked", filter="data")
    assert [entry.name for entry in entries if not entry.name.startswith("wheels/")] == [
        "VERSION",
        "bootstrap/firn_bootstrap.py",
        "bootstrap/inner/more.json",
        "requirements.txt",
        "systemd/firn.service",
    ]
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {(0, 0, 0, "", "")}
    assert [entry.name for entry in entries if entry.mode != 0o644] == ["bootstrap/firn_bootstrap.py"]
    with zipfile.ZipFile(tmp_path / f"unpacked/wheels/firn_broker-{__version__}-py3-none-any.whl") as own:
        assert {entry.compress_type for entry in own.infolist()} == {zipfile.ZIP_STORED}, (
            "zlib would have a say in its bytes"
        )
    assert (tmp_path / "unpacked/VERSION").read_text() == f"{__version__} (commit {head})\n"
    installed = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-index",
                "--find-links",
                "wheels",
                "--require-hashes",
            ),
            *("--target", str(tmp_path / "installed"), "--no-deps", "--platform", "manylinux_2_28_x86_64"),
            *("--only-binary", ":all:", "--python-version", "3.11", "-r", "requirements.txt"),
        ],
        cwd=tmp_path / "unpacked",
        capture_output=True,
        text=True,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "installed/app/COMMIT").read_text() == f"{head}\n"


@pytest.mark.ci
def test_packages_of_spark_jobs_are_without_spark_which_workers_have(tmp_path: Path, packages: Path) -> None:
    root = checkout(tmp_path / "checkout", packages)
    done = pack(root, packages, "--arch", "x86_64", "--spark")
    assert done.returncode == 0, done.stderr
    archive = root / "dist" / f"firn-spark-{__version__}-x86_64.tar.gz"
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        pinned = packed.extractfile("requirements.txt")
        assert pinned is not None
        lines = pinned.read().decode().splitlines()
    assert [name for name in names if not name.startswith("wheels/")] == ["VERSION", "requirements.txt"]
    assert {name.partition("-")[0] for name in wheels(archive)} == {
        *("firn_broker", "native", "plain", "inner", "before_3_11_3", "optional", "frames")
    }
    assert [line.split(" ")[0] for line in lines if line.startswith("firn")] == [f"firn-broker[spark]=={__version__}"]
    assert all("--hash=sha256:" in line for line in lines)


def commit_all_again(root: Path) -> str:
    (root / "infra/systemd/firn.service").write_text("[Service]\nType=notify\n")
    return commit_all(root)


@pytest.mark.slow
def test_another_clone_another_time_and_another_machine_give_the_same_bytes(tmp_path: Path, packages: Path) -> None:
    first = checkout(tmp_path / "first", packages)
    second = checkout(tmp_path / "elsewhere" / "second", packages)
    for path in second.rglob("*"):
        if ".git" not in path.parts:
            os.utime(path, (1_000_000_000, 1_000_000_000))
    (second / "infra/bootstrap/inner/more.json").chmod(0o600)
    archives = []
    for root, more in ((first, ()), (second, ("--uncommitted",)), (first, ())):
        done = pack(root, packages, "--arch", "aarch64", *more)
        assert done.returncode == 0, done.stderr
        archives.append((root / "dist" / f"firn-wheelhouse-{__version__}-aarch64.tar.gz").read_bytes())
    assert archives[0] == archives[1] == archives[2]
    assert "arm_only-1.0-py3-none-any.whl" in wheels(first / "dist" / f"firn-wheelhouse-{__version__}-aarch64.tar.gz")
    assert gzip.decompress(archives[0])[:7] == b"VERSION"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("breaking", "words"),
    [
        ("changed", "It has local changes. Commit first, or say --uncommitted."),
        ("no git", "Its commit is not known. Commit first, or say --uncommitted."),
        ("other builder", "which writes its version into the wheel, and constraints.txt pins 0.1."),
        ("no units", "infra/systemd does not exist"),
        ("link", "is neither a file nor a folder"),
        ("no pin", "constraints.txt pins no version of unpinned, which firn-broker needs. Add it."),
        ("wrong pin", "constraints.txt pins plain 1.0, and firn-broker needs plain>=2. Pin another one."),
        ("no wheel", "no wheel of windows-only==1.0 for CPython 3.11 on aarch64 manylinux"),
        ("no hash", "hashes.txt has no hash of inner==1.0"),
        ("no hashes", "hashes.txt has no hash of inner==1.0"),
        ("other bytes", "no wheel of inner==1.0 for CPython 3.11 on aarch64 manylinux"),
    ],
)
def test_what_would_not_install_is_refused_with_the_mend_and_nothing_is_written(
    tmp_path: Path, packages: Path, breaking: str, words: str
) -> None:
    dependencies = {"no pin": '"unpinned"', "wrong pin": '"plain>=2"', "no wheel": '"windows-only", "plain"'}
    root = checkout(tmp_path / "checkout", packages, dependencies=dependencies.get(breaking, '"inner"'))
    match breaking:
        case "changed":
            (root / "app" / "more.py").touch()
        case "no git":
            (root / ".git").rename(tmp_path / "away")
        case "no units":
            (root / "infra/systemd").rename(tmp_path / "away")
        case "other builder":
            (root / "constraints.txt").write_text("hatchling==0.1\n")
        case "no hash" | "other bytes":
            known = (root / "hashes.txt").read_text()
            one = "inner==1.0\n" if breaking == "no hash" else f"inner==1.0 --hash=sha256:{'1' * 64}\n"
            (root / "hashes.txt").write_text(re.sub("^inner==.*\n", one, known, flags=re.M))
            commit_all(root)
        case "no hashes":
            (root / "hashes.txt").unlink()
            commit_all(root)
        case "link":
            (root / "infra/bootstrap/link.py").symlink_to("/etc/hostname")
            commit_all(root)
        case _:
            pass
    done = pack(root, packages, "--arch", "aarch64")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (root / "dist").exists()
