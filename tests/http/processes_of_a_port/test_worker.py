"""A worker is named by one argument of its command."""

from __future__ import annotations

import pytest

from app.core.limits import HTTP_PROCESSES_MAX
from app.http.processes.worker import Worker


def test_a_worker_is_read_from_its_argument_whatever_its_folder_is_called() -> None:
    worker = Worker(1, 3, 7, "/tmp/a folder/with 1/2/3")
    assert Worker.of_argument(worker.argument()) == worker
    assert worker.others == (0, 2)
    assert worker.path_of(2) == "/tmp/a folder/with 1/2/3/2.sock"


@pytest.mark.parametrize("text", ["", "1/2/3", "2/2/3/d", "-1/2/3/d", "x/2/3/d", f"0/{HTTP_PROCESSES_MAX + 1}/3/d"])
def test_an_argument_that_names_no_process_of_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no process of a port"):
        Worker.of_argument(text)
