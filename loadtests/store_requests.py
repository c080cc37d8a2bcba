"""What a broker has asked of its object store, by operation, as its ``/metrics`` tell."""

from __future__ import annotations

import re
import time
from http.client import HTTPConnection

LINE = re.compile(r"^firn_store_requests_total\{(?P<labels>[^}]*)\} (?P<value>[\d.e+]+)$", re.MULTILINE)
OPERATION = re.compile(r'operation="(\w+)"')
READY_TIMEOUT_S = 30.0


def store_requests(port: int) -> dict[str, int]:
    """Operation to how often it was asked for, whatever came of it; ``port`` is the HTTP process's."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            if answer.status == 200:
                break
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)
    found: dict[str, int] = {}
    for line in LINE.finditer(text):
        operation = OPERATION.search(line["labels"])
        assert operation is not None, line[0]
        found[operation[1]] = found.get(operation[1], 0) + int(float(line["value"]))
    return found
