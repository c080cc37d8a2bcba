"""Pack everything that a machine needs to become a broker, without a package index: ``firn-wheelhouse-VERSION-ARCH.tar.gz``.

    python tools/wheelhouse.py [--arch x86_64|aarch64] [--out dist] [--uncommitted] [--spark]

It holds ``wheels/`` (Firn and all that a broker imports, for CPython 3.11 on manylinux), ``requirements.txt`` with the SHA-256 of
each, ``bootstrap/`` and ``systemd/`` (from ``infra/``) and ``VERSION``. A machine installs it with

    pip install --no-index --find-links wheels --require-hashes -r requirements.txt

The same commit gives the same bytes on every machine, as long as the index has the same files. Versions are those of
``constraints.txt``, and a file is taken only with a hash of ``hashes.txt``. Markers are evaluated for the target, files are sorted
and have no time, owner or group. Firn's own wheel and the archive are not compressed: compressors differ from version to version,
and other wheels are compressed already.

With ``--spark`` it is ``firn-spark-VERSION-ARCH.tar.gz``: Firn and all that its Spark jobs import, without Spark itself,
which workers have, and without ``bootstrap/`` and ``systemd/``. Install it with ``--no-deps`` too, because pip would miss Spark.

pip asks the index that it is configured for. The last line of the output is as sha256sum writes it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import platform
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.utils import NormalizedName

ROOT: Final = Path(__file__).resolve().parents[1]
ARCHITECTURES: Final = {"x86_64": ("manylinux1", "manylinux2010", "manylinux2014"), "aarch64": ("manylinux2014",)}
"""To the old names of manylinux."""
PYTHON: Final = "3.11"
PYTHON_FULL: Final = "3.11.2"
"""Debian 12's: some packages want others before 3.11.3."""
LEFT_OUT: Final = ("__pycache__", "*.pyc", ".*")
STORED_BLOCK_BYTES: Final = 65_535


@dataclass(frozen=True, slots=True)
class Contents:
    """The platform and the packages of an archive."""

    name: str
    extras: frozenset[str]
    """Of Firn's own."""
    glibc_minor: int
    there: frozenset[str] = frozenset()
    """Packages that the target has, and dependencies of these alone."""
    copied: tuple[str, ...] = ()
    """Folders of infra/."""


BROKER: Final = Contents(
    "firn-wheelhouse", frozenset({"console", "redis", "registry", "security"}), 36, copied=("bootstrap", "systemd")
)
"""For Debian 12, whose glibc is 2.36, with the optional packages that a broker's settings can ask for."""
SPARK: Final = Contents("firn-spark", frozenset({"spark"}), 34, there=frozenset({"pyspark"}))
"""For Amazon Linux 2023, whose glibc is 2.34, and all that is newer."""


class Refused(Exception):
    """The user's error: the event, the object and the repair."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wheelhouse.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), default=platform.machine(), help="[this machine's]")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="[dist]")
    parser.add_argument("--uncommitted", action="store_true", help="pack a tree with local changes, or without git")
    parser.add_argument(
        "--spark", action="store_true", help="pack what Spark jobs need, in place of what a broker needs"
    )
    options = parser.parse_args(arguments)
    try:
        if options.arch not in ARCHITECTURES:
            raise Refused(f"This machine is a {options.arch}. Say --arch x86_64 or --arch aarch64.")
        contents = SPARK if options.spark else BROKER
        path, digest = build(contents, options.arch, options.out, uncommitted=options.uncommitted)
    except Refused as error:
        sys.stderr.write(f"wheelhouse: {error}\n")
        return 1
    sys.stdout.write(f"{digest}  {path}\n")
    return 0


def build(contents: Contents, arch: str, out: Path, *, uncommitted: bool = False) -> tuple[Path, str]:
    """The archive and its SHA-256. Raises: Refused; then nothing was written to ``out``."""
    missing = [name for name in ("hatchling", "packaging", "pip") if find_spec(name) is None]
    if missing:
        raise Refused(
            f"{sys.executable} has no {', '.join(missing)}. Run `make wheelhouse`, or `pip install -c constraints.txt "
            f"hatchling packaging` in its environment."
        )
    from packaging.utils import canonicalize_name

    pins = read_pins(ROOT / "constraints.txt")
    hashes = read_hashes(ROOT / "hashes.txt")
    if (builder := metadata.version("hatchling")) != (pinned := pins.get(canonicalize_name("hatchling"))):
        raise Refused(
            f"{sys.executable} has hatchling {builder}, which writes its version into the wheel, and constraints.txt pins "
            f"{pinned}. Run `make wheelhouse`, or install that one."
        )
    copied = {name: ROOT / "infra" / name for name in contents.copied}
    for folder in copied.values():
        if not folder.is_dir():
            raise Refused(f"{folder} does not exist, and a machine cannot start without it. Pack a whole checkout.")
    files = {f"{name}/{inner}": path for name, folder in copied.items() for inner, path in walk(folder)}
    with tempfile.TemporaryDirectory(prefix="firn-wheelhouse-") as scratch:
        wheels = Path(scratch) / "wheels"
        wheels.mkdir()
        own = build_own_wheel(wheels)
        version = own.name.split("-")[1]
        commit = commit_of(own)
        if (commit is None or " " in commit) and not uncommitted:
            state = "Its commit is not known" if commit is None else "It has local changes"
            raise Refused(
                f"{ROOT} would not be found again by its commit. {state}. Commit first, or say --uncommitted."
            )
        collect(own, wheels, arch, pins, hashes, contents)
        texts = {
            "requirements.txt": requirements(wheels.iterdir(), contents.extras),
            "VERSION": f"{version} (commit {commit or 'unknown'})\n",
        }
        files |= {f"wheels/{wheel.name}": wheel for wheel in wheels.iterdir()}
        data = gzip_stored(tar(files, texts))
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{contents.name}-{version}-{arch}.tar.gz"
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_bytes(data)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    return path, hashlib.sha256(data).hexdigest()


# --- the wheels -----------------------------------------------------------------------------------------------------------


def build_own_wheel(folder: Path) -> Path:
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Refused(f"Firn's own wheel cannot be built:\n{done.stderr}")
    wheel = next(folder.glob("*.whl"))
    store(wheel)
    return wheel


def store(wheel: Path) -> None:
    """Write a wheel anew without compression."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(entry, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for entry, data in members:
            archive.writestr(entry, data, compress_type=zipfile.ZIP_STORED)


def commit_of(wheel: Path) -> str | None:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read("app/COMMIT").decode().strip() if "app/COMMIT" in archive.namelist() else None


def collect(
    own: Path,
    folder: Path,
    arch: str,
    pins: Mapping[NormalizedName, str],
    hashes: Mapping[tuple[NormalizedName, str], Sequence[str]],
    contents: Contents,
) -> None:
    """Download the wheels that ``own`` with extras needs on ``arch``, and those that these need, into ``folder``.

    Packages are fetched by name and pinned version, never resolved: pip would evaluate markers for the Python that runs it.
    """
    from packaging.utils import canonicalize_name, parse_wheel_filename

    root = parse_wheel_filename(own.name)[0]
    have = {root: own}
    seen: dict[NormalizedName, frozenset[str]] = {}
    wanted = [(root, contents.extras)]
    while wanted:
        needed = sorted({name for name, _ in wanted} - have.keys())
        if needed:
            sys.stderr.write(f"wheelhouse: {', '.join(needed)}\n")
            unknown = [f"{name}=={pins[name]}" for name in needed if not hashes.get((name, pins[name]))]
            if unknown:
                raise Refused(
                    f"hashes.txt has no hash of {', '.join(unknown)}, so nobody can tell whether a file is the right one. Run "
                    "`make hashes`, and commit it with constraints.txt."
                )
            lines = [
                " ".join([f"{name}=={pins[name]}", *(f"--hash={one}" for one in hashes[name, pins[name]])])
                for name in needed
            ]
            fetch(lines, folder, arch, contents.glibc_minor)
            found = {parse_wheel_filename(path.name)[0]: path for path in folder.glob("*.whl")}
            have.update(found)
        following: dict[NormalizedName, set[str]] = {}
        for name, extras in wanted:
            known = seen.get(name)
            if known is not None and extras <= known:
                continue
            seen[name] = extras | (known or frozenset())
            for requirement in requirements_of(have[name], seen[name], arch):
                child = canonicalize_name(requirement.name)
                if child in contents.there:
                    continue
                if child not in pins:
                    raise Refused(f"constraints.txt pins no version of {child}, which {name} needs. Add it.")
                if not requirement.specifier.contains(pins[child], prereleases=True):
                    raise Refused(
                        f"constraints.txt pins {child} {pins[child]}, and {name} needs {requirement}. Pin another one."
                    )
                following.setdefault(child, set()).update(requirement.extras)
        wanted = [(name, frozenset(extras)) for name, extras in following.items()]


def read_pins(constraints: Path) -> Mapping[NormalizedName, str]:
    """Normalised name to version."""
    from packaging.utils import canonicalize_name

    lines = (line.split("#")[0].strip() for line in constraints.read_text().splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {canonicalize_name(name.strip()): version.strip() for name, version in pairs}


def read_hashes(path: Path) -> Mapping[tuple[NormalizedName, str], Sequence[str]]:
    """The hashes of each normalised name and version (``tools/hashes.py``). Empty if there is no file."""
    from packaging.utils import canonicalize_name

    found: dict[tuple[NormalizedName, str], Sequence[str]] = {}
    for line in (path.read_text() if path.exists() else "").replace("\\\n", " ").splitlines():
        words = line.split("#")[0].split()
        if words:
            name, _, version = words[0].partition("==")
            found[canonicalize_name(name), version] = [word.removeprefix("--hash=") for word in words[1:]]
    return found


def requirements_of(wheel: Path, extras: Iterable[str], arch: str) -> Iterator[Requirement]:
    """The requirements of a wheel on the target machine."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        place = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(place).decode())
    for line in headers.get_all("Requires-Dist") or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**target(arch), "extra": extra}) for extra in ("", *extras)):
            yield requirement


def target(arch: str) -> dict[str, str]:
    """The environment of markers (PEP 508) where the wheels will be installed."""
    return {
        "implementation_name": "cpython",
        "implementation_version": PYTHON_FULL,
        "os_name": "posix",
        "platform_machine": arch,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": PYTHON_FULL,
        "python_version": PYTHON,
        "sys_platform": "linux",
    }


def platforms(arch: str, glibc_minor: int) -> list[str]:
    """Tags of wheels that run on the target, the newest glibc first, as pip itself prefers them."""
    minors = range(glibc_minor, 4 if arch == "x86_64" else 16, -1)
    return [
        *(f"manylinux_2_{minor}_{arch}" for minor in minors),
        *(f"{old}_{arch}" for old in reversed(ARCHITECTURES[arch])),
    ]


def fetch(pinned: Sequence[str], folder: Path, arch: str, glibc_minor: int) -> None:
    """Download the wheels of lines ``name==version --hash=… …`` for ``arch``, if they have one of these hashes.

    Raises: Refused, which names those that have none.
    """
    tags = platforms(arch, glibc_minor)
    failed = _download(pinned, folder, tags)
    if failed is None:
        return
    lost = [(one, said) for one in pinned if (said := _download([one], folder, tags)) is not None]
    names = ", ".join(one.split()[0] for one, _ in lost) or ", ".join(one.split()[0] for one in pinned)
    said = lost[0][1] if lost else failed
    raise Refused(
        f"pip gets no wheel of {names} for CPython {PYTHON} on {arch} manylinux from the index that it is configured for "
        f"(`pip config list`). It says:\n{said}"
    )


def _download(pinned: Sequence[str], folder: Path, tags: Sequence[str]) -> str | None:
    """None, or the error of pip."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write("\n".join(pinned))
        wanted.flush()
        done = _run_pip(wanted.name, folder, tags)
    return done.stderr.strip() if done.returncode else None


def _run_pip(wanted: str, folder: Path, tags: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
            *("--require-hashes", "--requirement", wanted),
            *("--only-binary", ":all:", "--implementation", "cp", "--python-version", PYTHON),
            *("--abi", f"cp{PYTHON.replace('.', '')}", "--dest", str(folder)),
            *(f"--platform={tag}" for tag in tags),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def requirements(wheels: Iterable[Path], own_extras: Iterable[str]) -> str:
    """A requirements file that pins each wheel by version and SHA-256."""
    from packaging.utils import parse_wheel_filename

    lines = []
    for wheel in wheels:
        name, version, _, _ = parse_wheel_filename(wheel.name)
        extras = f"[{','.join(sorted(own_extras))}]" if name == "firn-broker" else ""
        lines.append(f"{name}{extras}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return "".join(sorted(lines))


# --- the archive ----------------------------------------------------------------------------------------------------------


def walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files below ``folder`` with their path inside it. Raises: Refused for an entry that is neither file nor folder."""
    for path in folder.rglob("*"):
        inner = path.relative_to(folder)
        if any(Path(part).match(pattern) for part in inner.parts for pattern in LEFT_OUT):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Refused(f"{path} is neither a file nor a folder, and is not packed. Put a file in its place.")
        if path.is_file():
            yield inner.as_posix(), path


def tar(files: Mapping[str, Path], texts: Mapping[str, str]) -> bytes:
    """A tar of regular files whose bytes depend on names, contents and the right to execute only."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted({**files, **texts}):
            entry = tarfile.TarInfo(name)
            if name in texts:
                data, executable = texts[name].encode(), False
            else:
                data = files[name].read_bytes()
                executable = bool(files[name].stat().st_mode & 0o100) and not name.startswith("wheels/")
            entry.size = len(data)
            entry.mode = 0o755 if executable else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def gzip_stored(data: bytes) -> bytes:
    """``data`` as a gzip file (RFC 1952) of stored blocks (RFC 1951, 3.2.4): no compressor has a say in its bytes."""
    out = [b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"]
    for start in range(0, len(data), STORED_BLOCK_BYTES):
        block = data[start : start + STORED_BLOCK_BYTES]
        is_last = start + STORED_BLOCK_BYTES >= len(data)
        out += [struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF), block]
    return b"".join([*out, struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFF_FFFF)])


if __name__ == "__main__":
    sys.exit(main())
