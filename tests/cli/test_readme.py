"""What README and documents show: the quick start, the tutorial and some how-to pages are run as they stand, and every other
command is one that there is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

from app.cli import main
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SET_UP = re.compile(r"^make quickstart-packages && source \.venv/bin/activate .*$", re.MULTILINE)
"""The quick start's first line. Tests have an environment already; in place of it ``firn`` is put on the path."""
NOT_RUN = {
    "make run": "is what the demo's tests run",
    "docker run": "tests/packaging/test_container.py runs its entry point with its environment",
}
"""Blocks by how they begin, and why they are not run here."""
RUN_PAGES = ("tutorial/README.md", "how-to/groups.md", "how-to/tls-and-users.md", "how-to/disaster-recovery.md")
"""Pages whose blocks are one script."""
ENDS = {
    "tutorial/README.md": ["100000", "100,000 records, ", "Every checksum is right"],
    "how-to/groups.md": ["0 records behind.", "4 records behind."],
    "how-to/tls-and-users.md": ["alice may write, and not read", "an order"],
    "how-to/disaster-recovery.md": ["everything came back as it went in", "336776", "336,776 records, "],
}
"""Parts of lines that the script of a page prints, in this order. Bytes depend on the batches that a client makes."""
OWN_LISTENERS = {"how-to/tls-and-users.md"}
"""Pages whose settings file names the listener; ``FIRN_LISTEN`` would take its place."""


def blocks() -> list[str]:
    return BLOCK.findall((ROOT / "README.md").read_text())


def quick_start() -> str:
    [block] = [block for block in blocks() if SET_UP.match(block)]
    return block


def test_every_block_is_run_or_it_is_said_why_not() -> None:
    for block in blocks():
        assert SET_UP.match(block) or any(block.startswith(begin) for begin in NOT_RUN), block


@pytest.mark.skipif(not (shutil.which("kcat") and shutil.which("curl")), reason="kcat or curl is not installed")
def test_the_quick_start_works_as_one_block(tmp_path: Path) -> None:
    """Ports 9092 and 8080 may be taken on this machine, so others stand in their place; nothing else is changed."""
    place = Place.at(tmp_path)
    script = SET_UP.sub("", quick_start()).replace("127.0.0.1:9092", place.kafka).replace("127.0.0.1:8080", place.http)
    assert script.count(place.kafka) > 2
    assert script.count(place.http) > 2
    done = place.run(script)
    assert f"Kafka     {place.kafka}\n" in done.stdout
    lines = done.stdout.splitlines()
    assert lines.count("hello firn") == 2  # kcat's, and in the end that of `firn consume`
    assert '{"hello":"curl"}' in lines
    assert '"error_code":200' in done.stdout
    assert f"Stopped the broker of {tmp_path}/firn-data" in done.stderr


@pytest.mark.ci
@pytest.mark.skipif(not (shutil.which("kcat") and shutil.which("curl")), reason="kcat or curl is not installed")
@pytest.mark.parametrize("page", RUN_PAGES)
def test_the_blocks_of_a_page_are_one_script(page: str, tmp_path: Path) -> None:
    script = "\n".join(BLOCK.findall((ROOT / "docs" / page).read_text()))
    rest = Place.at(tmp_path).run(script, own_listeners=page in OWN_LISTENERS).stdout
    for part in ENDS[page]:
        assert part in rest
        rest = rest.partition(part)[2]


class Place(NamedTuple):
    """A folder and two free ports, on which ``firn`` of the shell listens without being told."""

    folder: Path
    kafka: str
    http: str

    @classmethod
    def at(cls, folder: Path) -> Place:
        return cls(folder, f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")

    def run(self, script: str, *, own_listeners: bool = False) -> subprocess.CompletedProcess[str]:
        """Paste the script into a shell, as into a terminal: it reads the next line when a command has ended.

        ``own_listeners``: the script tells the broker where to listen, by ``FIRN_BOOTSTRAP``.
        """
        (self.folder / "bin").mkdir()
        command = self.folder / "bin" / "firn"
        command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -P -m firn_broker "$@"\n')
        command.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FIRN_")}
        path = f"{command.parent}:{kept.get('PATH', '')}"
        environment = {**kept, "PATH": path, "FIRN_BOOTSTRAP": self.kafka}
        if not own_listeners:
            environment |= {"FIRN_LISTEN": self.kafka, "FIRN_HTTP": self.http}
        try:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-s"],
                input=script,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            assert done.returncode == 0, (done.stdout, done.stderr)
            return done
        finally:
            for data in (self.folder / "firn-data", self.folder / "rehearsal" / "new-disk"):
                stop = [str(command), "stop", "--data-dir", str(data)]
                subprocess.run(stop, cwd=self.folder, env=environment, capture_output=True, check=False)


def shown_commands() -> list[tuple[str, str]]:
    """Lines of shell blocks that begin with ``firn``, with the file's name."""
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))):
        for block in re.findall(r"^```(?:sh|bash|shell)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
            joined = block.replace("\\\n", " ")
            found += [(path.name, line) for line in joined.splitlines() if line.startswith("firn ")]
    return found


@pytest.mark.parametrize(("document", "line"), shown_commands())
def test_every_command_that_documents_show_has_the_options_it_is_shown_with(
    document: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = list(takewhile(lambda word: word not in ("|", "||"), shlex.split(line, comments=True)[1:]))
    # Options are read before help is given in place of work.
    assert main([*words, "--help"]) == 0, capsys.readouterr().err
