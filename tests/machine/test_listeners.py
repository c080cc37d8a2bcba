"""Who listens on a port, and who holds a deleted file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from app.machine.listeners import holders_of, listeners_on, process_status


def test_the_process_that_listens_on_a_port_is_named_with_its_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        (found,) = listeners_on(port)
        assert (found.process_id, found.command[0]) == (os.getpid(), sys.orig_argv[0])
        assert str(found) == f"process {os.getpid()} ({Path(sys.orig_argv[0]).name})"
    assert listeners_on(port) == []


def test_a_connection_to_a_port_is_no_listener() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        assert listeners_on(client.getsockname()[1]) == []


def test_a_deleted_file_is_held_by_the_processes_that_have_it_open(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w"):
        assert holders_of(str(path)) == []
        path.unlink()
        assert holders_of(str(path)) == [os.getpid()]
    assert holders_of(str(path)) == []


def test_the_parent_of_a_process_is_in_its_status() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert int(process_status(child.pid)[1]) == os.getpid()
