"""What README and documents show: the quick start is run as it stands, and every other command is one that there is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import main
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SET_UP = re.compile(r"^make quickstart-packages && source \.venv/bin/activate .*$", re.MULTILINE)
"""The quick start's first line. Tests have an environment already; in place of it ``firn`` is put on the path."""
NOT_RUN = {
    "make run": "is what the demo's tests run",
    "firn doctor --store 's3": "needs a bucket of one's own",
    "firn serve --http 0.0.0.0": "opens a port to the network",
    "docker run": "tests/packaging/test_container.py runs its entry point with its environment",
    "records=http": "needs the cluster's id; a test of the routes reads records",
}
"""Blocks by how they begin, and why they are not run here."""


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
    kafka, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "firn"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -P -m firn_broker "$@"\n')
    command.chmod(0o755)
    script = SET_UP.sub(f'export PATH="{command.parent}:$PATH"', quick_start())
    script = script.replace("127.0.0.1:9092", kafka).replace("127.0.0.1:8080", http)
    assert script.count(kafka) > 2
    assert script.count(http) > 2
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FIRN_")}
    environment = {**kept, "FIRN_LISTEN": kafka, "FIRN_HTTP": http, "FIRN_BOOTSTRAP": kafka}
    # Pasted, as into a terminal: the shell reads the next line when a command has ended.
    command_line = ["bash", "-e", "-o", "pipefail", "-s"]
    try:
        done = subprocess.run(
            command_line,
            input=script,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert f"Kafka     {kafka}\n" in done.stdout
        lines = done.stdout.splitlines()
        assert lines.count("hello firn") == 2  # kcat's, and in the end that of `firn consume`
        assert '{"hello":"curl"}' in lines
        assert '"error_code":200' in done.stdout
        assert f"Stopped the broker of {tmp_path}/firn-data" in done.stderr
    finally:
        subprocess.run([str(command), "stop"], cwd=tmp_path, env=environment, capture_output=True, check=False)


def shown_commands() -> list[tuple[str, str]]:
    """Lines of shell blocks that begin with ``firn``, with the file's name."""
    found = []
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for block in re.findall(r"^```(?:sh|bash|shell)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
            joined = block.replace("\\\n", " ")
            found += [(path.name, line) for line in joined.splitlines() if line.startswith("firn ")]
    return found


@pytest.mark.parametrize(("document", "line"), shown_commands())
def test_every_command_that_documents_show_has_the_options_it_is_shown_with(
    document: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line, comments=True)[1:]
    # Options are read before help is given in place of work.
    assert main([*words, "--help"]) == 0, capsys.readouterr().err
