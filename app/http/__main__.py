"""``python -m app.http``: the HTTP process as the broker starts it. People use ``firn http``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from app.core.addresses import FORWARDED_HEADERS, parse_networks
from app.core.errors import FirnError
from app.core.limits import (
    HTTP_BODY_TIMEOUT_MS,
    HTTP_CONNECTIONS_MAX,
    HTTP_HEADER_TIMEOUT_MS,
    HTTP_INSTANCE_TIMEOUT_MS,
    HTTP_PROCESSES_MAX,
)
from app.core.log_events import Event
from app.core.notices import announce, follow_format
from app.http.access import parse_hosts, parse_origins
from app.http.processes.worker import Worker
from app.machine.terminating import end_with_parent

if TYPE_CHECKING:
    from app.machine.certificates import TlsSettings


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def tls_of_environment() -> TlsSettings | None:
    """HTTPS as ``FIRN_HTTP_SSL_…`` says. Raises: ConfigError."""
    if not any(text for name, text in os.environ.items() if name.startswith("FIRN_HTTP_SSL_")):
        return None
    from app.http.tls_settings import from_environment, read_tls

    return read_tls(from_environment(os.environ))


def client_of_environment() -> Mapping[str, str]:
    """How brokers are reached, as ``FIRN_CLIENT_…`` says. Raises: ConfigError."""
    if not any(name.startswith("FIRN_CLIENT_") for name in os.environ):
        return {}
    from app.client.security import read_settings

    return read_settings(os.environ)


def _masks(text: str) -> tuple[tuple[str, str], ...]:
    from app.http.console.records.masks import parse_masks

    return parse_masks(text.split(","))


def _supervise(arguments: argparse.Namespace) -> int:
    from app.http.processes.supervisor import supervise

    follow_format()
    host, port = arguments.listen
    scheme = "https" if any(text for name, text in os.environ.items() if name.startswith("FIRN_HTTP_SSL_")) else "http"
    try:
        return supervise(
            host=host, port=port, processes=arguments.processes, scheme=scheme, parent_fd=arguments.parent_fd
        )
    except FirnError as error:
        announce(Event.HTTP_FAILED.line(str(error)))
        return 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m app.http", description="Serve HTTP as a client of Kafka brokers.")
    parser.add_argument("--bootstrap", required=True, help="HOST:PORT of brokers, separated by commas")
    parser.add_argument("--listen", type=_address, required=True, help="HOST:PORT")
    parser.add_argument("--parent-fd", type=int, help="end when this inherited descriptor reads end-of-file")
    parser.add_argument("--http-allowed-hosts", type=parse_hosts, default=(), help="HOST,… besides the loopback names")
    parser.add_argument("--http-allowed-origins", type=parse_origins, default=(), help="ORIGIN,… besides its own")
    parser.add_argument("--max-connections", type=int, default=HTTP_CONNECTIONS_MAX)
    parser.add_argument("--header-timeout-ms", type=int, default=HTTP_HEADER_TIMEOUT_MS)
    parser.add_argument("--body-timeout-ms", type=int, default=HTTP_BODY_TIMEOUT_MS)
    parser.add_argument("--instance-timeout-ms", type=int, default=HTTP_INSTANCE_TIMEOUT_MS)
    parser.add_argument("--anonymous", action="store_true", help="serve requests without credentials by the own user")
    parser.add_argument("--plain-credentials", action="store_true", help="a proxy in front encrypts")
    parser.add_argument("--console-read-only", action="store_true", help="the console refuses each change")
    parser.add_argument("--console-mask", type=_masks, default=(), help="TOPICS:FIELD,… that the console hides")
    parser.add_argument("--trusted-proxies", type=parse_networks, default=(), help="NETWORK,… of proxies in front")
    parser.add_argument("--forwarded-header", choices=FORWARDED_HEADERS, default=FORWARDED_HEADERS[0])
    parser.add_argument("--name-callers", action="store_true", help="tell brokers the addresses of callers")
    parser.add_argument("--tracing-endpoint", default="", help="URL of the collector of spans")
    parser.add_argument("--tracing-sample-ratio", type=float, default=0.0)
    parser.add_argument("--tracing-instance", default="", help="node id of the broker, in spans")
    parser.add_argument("--processes", type=int, default=1, choices=range(1, HTTP_PROCESSES_MAX + 1), metavar="N")
    parser.add_argument("--worker", type=Worker.of_argument, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.parent_fd is not None:
        end_with_parent(arguments.parent_fd)
    if arguments.processes > 1 and arguments.worker is None:
        return _supervise(arguments)
    from app.http.gateway import HttpSettings
    from app.http.server import run

    bootstrap = tuple(_address(part) for part in arguments.bootstrap.split(","))
    host, port = arguments.listen
    settings = HttpSettings(
        bootstrap=bootstrap,
        allowed_hosts=(host, *arguments.http_allowed_hosts),
        allowed_origins=arguments.http_allowed_origins,
        connections_max=arguments.max_connections,
        header_timeout_ms=arguments.header_timeout_ms,
        body_idle_timeout_ms=arguments.body_timeout_ms,
        instance_timeout_ms=arguments.instance_timeout_ms,
        anonymous=arguments.anonymous,
        plain_credentials=arguments.plain_credentials,
        console_read_only=arguments.console_read_only,
        console_masks=arguments.console_mask,
        trusted_proxies=arguments.trusted_proxies,
        forwarded_header=arguments.forwarded_header,
        names_callers=arguments.name_callers,
        worker=arguments.worker,
        tracing_endpoint=arguments.tracing_endpoint,
        tracing_sample_ratio=arguments.tracing_sample_ratio,
        tracing_instance=arguments.tracing_instance,
    )
    try:
        settings = replace(settings, client=client_of_environment(), tls=tls_of_environment())
        return run(settings, host=host, port=port, parent_fd=arguments.parent_fd)
    except FirnError as error:
        announce(Event.HTTP_FAILED.line(str(error)))
        return 2


if __name__ == "__main__":
    sys.exit(main())
