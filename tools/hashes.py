"""Write ``hashes.txt``: the SHA-256 of every file that the index has of the versions in ``constraints.txt``.

    python tools/hashes.py [--check]

The file says which bytes a build takes, on every platform that the index has wheels for, and on machines that have another index
of the same packages. It names no index. pip asks the one that it is configured for, as for an installation. ``--check`` writes
nothing, and fails if the file does not fit ``constraints.txt``; it uses no network.

``tools/wheelhouse.py`` takes a file only if its hash is there. An editable installation (`make run`, `make test`) cannot be checked
by pip, so development environments hold the versions of ``constraints.txt``, and the wheelhouse and the image hold these bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
HEAD: Final = (
    "# What `make hashes` found at the index: every file of the versions in constraints.txt. See tools/hashes.py.\n"
)
_OTHER_PYTHONS: Final = re.compile(r"-(cp2\d*|cp3[0-9]|cp310|pp\d+|graalpy\d+)-(?!abi3)")
"""Tags of interpreters that Firn does not run on. Wheels of the stable ABI fit newer ones too."""


class Refused(Exception):
    """The user's error: the event, the object and the repair."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hashes.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not up to date")
    options = parser.parse_args(arguments)
    path = ROOT / "hashes.txt"
    try:
        pins = read_pins((ROOT / "constraints.txt").read_text())
        if options.check:
            check(pins, read_hashes(path.read_text() if path.exists() else ""))
        else:
            path.write_text(HEAD + formatted(found_by_pip(pins)))
    except Refused as error:
        sys.stderr.write(f"hashes: {error}\n")
        return 1
    return 0


def read_pins(text: str) -> Mapping[str, str]:
    """Version by name, as the file writes it."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return dict(line.split("==", 1) for line in lines if line)


def read_hashes(text: str) -> Mapping[tuple[str, str], Sequence[str]]:
    """The hashes of each name and version of a ``hashes.txt``."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split("#")[0].split()
        if words:
            name, _, version = words[0].partition("==")
            found[name, version] = [word.removeprefix("--hash=") for word in words[1:]]
    return found


def check(pins: Mapping[str, str], hashes: Mapping[tuple[str, str], Sequence[str]]) -> None:
    """Raises: Refused."""
    missing = [f"{name}=={version}" for name, version in pins.items() if not hashes.get((name, version))]
    strange = [f"{name}=={version}" for name, version in hashes if pins.get(name) != version]
    if missing or strange:
        names = ", ".join([*missing, *strange][:5])
        raise Refused(f"hashes.txt does not fit constraints.txt ({names}). Run `make hashes`, and commit both.")


def formatted(files: Mapping[tuple[str, str], Iterable[str]]) -> str:
    blocks = []
    for (name, version), hashes in sorted(files.items(), key=lambda one: (one[0][0].lower(), one[0][1])):
        lines = [f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in sorted(set(hashes)))]
        blocks.append(" \\\n".join(lines) + "\n")
    return "".join(blocks)


def wanted(file_name: str, name: str, version: str) -> bool:
    """Whether a file of the index is of this version, and for an interpreter that Firn runs on."""
    from packaging.utils import (
        InvalidSdistFilename,
        InvalidWheelFilename,
        canonicalize_name,
        parse_sdist_filename,
        parse_wheel_filename,
    )
    from packaging.version import InvalidVersion, Version

    try:
        if file_name.endswith(".whl"):
            project, found = parse_wheel_filename(file_name)[:2]
        else:
            project, found = parse_sdist_filename(file_name)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return False
    if (project, found) != (canonicalize_name(name), Version(version)):
        return False
    return not file_name.endswith(".whl") or _OTHER_PYTHONS.search(file_name) is None


def found_by_pip(pins: Mapping[str, str]) -> Mapping[tuple[str, str], Sequence[str]]:
    """Ask pip's index. Raises: Refused."""
    # pip has no command that lists all files of a version, so its parts are used as its own commands use them.
    from pip._internal.commands.download import DownloadCommand
    from pip._internal.index.collector import parse_links

    command: Any = DownloadCommand("download", "")
    options, _ = command.parse_args([])
    files: dict[tuple[str, str], Sequence[str]] = {}
    with command.main_context():
        session = command.get_default_session(options)
        finder: Any = command._build_package_finder(options=options, session=session)
        for name, version in pins.items():
            digests = []
            for place in finder.search_scope.get_index_urls_locations(name):
                page = finder._link_collector.fetch_response(_link(place))
                for link in parse_links(page) if page is not None else ():
                    if link.hash_name == "sha256" and wanted(link.filename, name, version):
                        digests.append(link.hash)
            if not digests:
                raise Refused(
                    f"pip's index (`pip config list`) has no hash of {name}=={version}. Pin a version that it has, or ask another "
                    "index."
                )
            files[name, version] = digests
    return files


def _link(place: str) -> Any:
    from pip._internal.models.link import Link

    return Link(place)


if __name__ == "__main__":
    sys.exit(main())
