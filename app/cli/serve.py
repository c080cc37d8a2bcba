"""``firn serve``: a broker."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app import __version__

if TYPE_CHECKING:
    from app.broker.process import Broker
    from app.configs import BrokerConfig


def serve(
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", "-d", metavar="DIR", help="Local logs. [./firn-data]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "-s",
            metavar="URL",
            help="file:///path or s3://bucket/prefix. [a folder beside the data directory]",
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Kafka protocol. [127.0.0.1:9092]")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="What clients are told to connect to. [--listen]"),
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT|off", help="REST, metrics and health. [127.0.0.1:8080]")
    ] = None,
    node_id: Annotated[str | None, typer.Option("--node-id", metavar="N", help="This broker's number. [1]")] = None,
    rack: Annotated[str | None, typer.Option("--rack", metavar="NAME", help="This broker's rack or zone.")] = None,
    redis: Annotated[
        str | None,
        typer.Option("--redis", metavar="URL", help="For a cluster of several brokers; one alone needs none."),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take over this node id though another data directory holds it.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", envvar="FIRN_CONFIG", help="TOML file with settings."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting by Kafka's name; may be repeated."),
    ] = None,
    list_settings: Annotated[bool, typer.Option("--list-settings", help="List every setting and exit.")] = False,
) -> int:
    """Run a broker.

    Without any flag it serves Kafka on 127.0.0.1:9092 and HTTP on 127.0.0.1:8080, with its data in ./firn-data.
    Settings come from a TOML file, FIRN_… environment variables, flags and --set, each over the ones before.
    """
    from app.settings import load

    if list_settings:
        return _list_settings()
    flags = {
        "--data-dir": data_dir,
        "--store": store,
        "--listen": listen,
        "--advertise": advertise,
        "--http": http,
        "--node-id": node_id,
        "--rack": rack,
        "--redis": redis,
        "--take-over": "true" if take_over else None,
    }
    settings = load(config_path=config, environment=os.environ, flags=flags, assignments=assignments or ())
    from app.broker.process import serve as run

    run(settings.broker, on_ready=_ready)
    return 0


def _ready(broker: Broker) -> None:
    image = broker.node.controller.image
    sys.stdout.write(banner(broker.config, port=broker.node.port, cluster_id=image.cluster_id))
    sys.stdout.flush()


def banner(config: BrokerConfig, *, port: int, cluster_id: str) -> str:
    """What a person sees when the broker is ready: where it is, where the data is, what to do next."""
    host = config.advertised_host or config.listen_host
    kafka = f"{host}:{config.advertised_port or port}"
    lines = [
        f"Firn {__version__}: broker {config.node_id} of cluster {cluster_id} is ready.",
        "",
        f"  Kafka     {kafka}",
        f"  HTTP      {'off' if config.http_address == 'off' else f'http://{config.http_address}'}",
        f"  Data      {Path(config.data_dir).absolute()}",
        f"  Store     {config.store_url}",
        "",
    ]
    option = "" if kafka == "127.0.0.1:9092" else f" -b {kafka}"
    lines += [
        f"  echo hello | firn produce greetings{option}",
        f"  firn consume greetings{option}",
    ]
    if config.http_address != "off":
        lines.append(f"  open http://{config.http_address}/docs")
    lines += ["", "Ctrl-C stops it in order.", ""]
    return "\n".join(lines)


def _list_settings() -> int:
    from app.cli.output import print_table
    from app.settings import catalogue, environment_name

    print_table(
        ("SETTING", "DEFAULT", "ENVIRONMENT", "WHAT IT DOES"),
        [
            (name, setting.default, environment_name(name), setting.documentation)
            for name, setting in catalogue().items()
        ],
    )
    return 0
