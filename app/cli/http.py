"""``firn http``: the HTTP process by itself."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, client_settings, parse_bootstrap
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.core.addresses import FORWARDED_HEADERS, parse_networks
from app.core.errors import ConfigError
from app.core.limits import (
    HTTP_BODY_TIMEOUT_MS,
    HTTP_CONNECTIONS_MAX,
    HTTP_HEADER_TIMEOUT_MS,
    HTTP_INSTANCE_TIMEOUT_MS,
    HTTP_PROCESSES_MAX,
)
from app.core.notices import FORMATS, TEXT, use_format
from app.http.access import parse_hosts, parse_origins
from app.http.processes.worker import Worker
from app.http.tls_settings import from_environment, read_tls
from app.settings import parse_address, parse_option

if TYPE_CHECKING:
    from app.machine.certificates import TlsSettings


def http(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Address to listen on.")
    ] = "127.0.0.1:8080",
    allowed_hosts: Annotated[
        str,
        typer.Option(
            "--http-allowed-hosts",
            metavar="HOST,…",
            help="Host names that requests may use, besides localhost and the address (NAME, NAME:PORT, *.NAME); * for any.",
        ),
    ] = "",
    allowed_origins: Annotated[
        str,
        typer.Option(
            "--http-allowed-origins",
            metavar="ORIGIN,…",
            help="Origins whose web pages may use this server, such as https://ui.example; * for any.",
        ),
    ] = "",
    connections_max: Annotated[
        int, typer.Option("--max-connections", min=1, metavar="N", help="Maximum number of connections.")
    ] = HTTP_CONNECTIONS_MAX,
    header_timeout_ms: Annotated[
        int, typer.Option("--header-timeout-ms", min=1, metavar="MS", help="Time limit for the head of a request.")
    ] = HTTP_HEADER_TIMEOUT_MS,
    body_timeout_ms: Annotated[
        int, typer.Option("--body-timeout-ms", min=1, metavar="MS", help="Time limit for a body without progress.")
    ] = HTTP_BODY_TIMEOUT_MS,
    instance_timeout_ms: Annotated[
        int,
        typer.Option(
            "--instance-timeout-ms",
            min=1,
            metavar="MS",
            help="Idle time after which a consumer instance of REST v2 ends.",
        ),
    ] = HTTP_INSTANCE_TIMEOUT_MS,
    tls_certificate: Annotated[
        str | None,
        typer.Option(
            "--tls-certificate", metavar="FILE", help="PEM file with private key and certificates: serve HTTPS."
        ),
    ] = None,
    anonymous: Annotated[
        bool,
        typer.Option(
            "--anonymous", help="Serve requests without user or token with the rights of the user of --client-config."
        ),
    ] = False,
    plain_credentials: Annotated[
        bool,
        typer.Option(
            "--plain-credentials", help="Take passwords without TLS from other machines: a proxy in front encrypts."
        ),
    ] = False,
    console_read_only: Annotated[
        bool, typer.Option("--console-read-only", help="The console shows pages, and refuses each change.")
    ] = False,
    console_mask: Annotated[
        str,
        typer.Option(
            "--console-mask",
            metavar="TOPICS:FIELD,…",
            help="Fields of messages that the console's pages hide, such as orders-*:customer.email.",
        ),
    ] = "",
    trusted_proxies: Annotated[
        str,
        typer.Option(
            "--trusted-proxies",
            metavar="NETWORK,…",
            help="Addresses and networks of the proxies in front. Their header names the client.",
        ),
    ] = "",
    forwarded_header: Annotated[
        str, typer.Option("--forwarded-header", metavar="NAME", help="That header: x-forwarded-for or forwarded.")
    ] = FORWARDED_HEADERS[0],
    name_callers: Annotated[
        bool,
        typer.Option(
            "--name-callers",
            help="Tell brokers the addresses of callers, for their rules and audit logs. Brokers must have this process in "
            "firn.trusted.proxies.",
        ),
    ] = False,
    tracing_endpoint: Annotated[
        str,
        typer.Option(
            "--tracing-endpoint",
            metavar="URL",
            envvar="FIRN_TRACING_ENDPOINT",
            help="URL to which traces of sampled requests go by OTLP over HTTP, as firn.tracing.endpoint of a broker.",
        ),
    ] = "",
    tracing_sample_ratio: Annotated[
        str,
        typer.Option(
            "--tracing-sample-ratio",
            metavar="RATIO",
            envvar="FIRN_TRACING_SAMPLE_RATIO",
            help="Share of requests without a traceparent that are traced, as firn.tracing.sample.ratio of a broker.",
        ),
    ] = str(BROKER_DEFINITIONS["firn.tracing.sample.ratio"].default),
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            min=1,
            max=HTTP_PROCESSES_MAX,
            metavar="N",
            help="Processes that share the port, each on a core.",
        ),
    ] = 1,
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format",
            metavar="text|json",
            envvar="FIRN_LOG_FORMAT",
            help="Format of the log: text for people, or one JSON object in each line for programs.",
        ),
    ] = TEXT,
    worker: Annotated[str | None, typer.Option("--worker", hidden=True, help="One of these processes.")] = None,
    parent_fd: Annotated[
        int | None, typer.Option("--parent-fd", hidden=True, help="End at this descriptor's end-of-file.")
    ] = None,
) -> int:
    """Serve HTTP as a client of brokers.

    `firn serve` starts an HTTP process of its own. Use this command to run more of them, on any machine.

    If brokers ask for a login (security.protocol=SASL_SSL in --client-config), each request brings its own: Basic or Bearer.
    """
    if log_format not in FORMATS:
        raise ConfigError(f"--log-format {log_format} is not {' or '.join(FORMATS)}.")
    address = parse_address(listen, what="--listen")
    brokers = parse_bootstrap(bootstrap)
    from app.http.console.records.masks import parse_masks
    from app.http.gateway import HttpSettings
    from app.http.server import run

    try:
        hosts = parse_hosts(allowed_hosts)
        origins = parse_origins(allowed_origins)
        proxies = parse_networks(trusted_proxies)
        masks = parse_masks(console_mask.split(","))
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
    use_format(log_format)
    settings = HttpSettings(
        bootstrap=tuple((broker.host, broker.port) for broker in brokers),
        allowed_hosts=(address.host, *hosts),
        allowed_origins=origins,
        connections_max=connections_max,
        header_timeout_ms=header_timeout_ms,
        body_idle_timeout_ms=body_timeout_ms,
        instance_timeout_ms=instance_timeout_ms,
        client=client_settings(),
        anonymous=anonymous,
        plain_credentials=plain_credentials,
        tls=_tls(tls_certificate),
        console_read_only=console_read_only,
        console_masks=masks,
        trusted_proxies=proxies,
        forwarded_header=_header(forwarded_header),
        names_callers=name_callers,
        tracing_endpoint=parse_option("--tracing-endpoint", "firn.tracing.endpoint", tracing_endpoint),
        tracing_sample_ratio=parse_option("--tracing-sample-ratio", "firn.tracing.sample.ratio", tracing_sample_ratio),
        tracing_instance=f"{socket.gethostname()}:{address.port}",
        worker=None if worker is None else Worker.of_argument(worker),
    )
    if processes > 1 and worker is None:
        from app.http.processes.supervisor import supervise

        scheme = "http" if settings.tls is None else "https"
        return supervise(host=address.host, port=address.port, processes=processes, scheme=scheme, parent_fd=parent_fd)
    if worker is not None and parent_fd is not None:
        from app.machine.terminating import end_with_parent

        end_with_parent(parent_fd)
    return run(settings, host=address.host, port=address.port, parent_fd=parent_fd)


def _header(name: str) -> str:
    """Raises: ConfigError."""
    if name.lower() not in FORWARDED_HEADERS:
        raise ConfigError(f"--forwarded-header {name} is not {' or '.join(FORWARDED_HEADERS)}.")
    return name.lower()


def _tls(certificate: str | None) -> TlsSettings | None:
    """HTTPS as the flag and ``FIRN_HTTP_SSL_…`` say. Raises: ConfigError."""
    texts = dict(from_environment(os.environ))
    if certificate is not None:
        texts |= {"ssl.keystore.location": certificate, "ssl.keystore.key": "", "ssl.keystore.certificate.chain": ""}
    return read_tls(texts)
