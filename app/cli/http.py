"""``firn http``: the HTTP process by itself."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, parse_bootstrap
from app.settings import parse_address


def http(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where to serve HTTP.")
    ] = "127.0.0.1:8080",
    parent_fd: Annotated[
        int | None, typer.Option("--parent-fd", hidden=True, help="End at this descriptor's end-of-file.")
    ] = None,
) -> int:
    """Serve HTTP as a client of brokers.

    `firn serve` starts one of its own; this is for more of them, on any machine.
    """
    address = parse_address(listen, what="--listen")
    brokers = parse_bootstrap(bootstrap)
    from app.http.gateway import HttpSettings
    from app.http.server import run

    settings = HttpSettings(bootstrap=tuple((broker.host, broker.port) for broker in brokers))
    return run(settings, host=address.host, port=address.port, parent_fd=parent_fd)
