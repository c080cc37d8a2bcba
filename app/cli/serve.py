"""``firn serve``: a broker. Tests: ``tests/cli/test_settings.py``, ``tests/cli/test_process.py``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.banner import banner, shown_listener
from app.cli.session import local_path
from app.core.errors import ConfigError
from app.core.notices import in_json

if TYPE_CHECKING:
    from app.broker.start.process import Broker


def serve(
    context: typer.Context,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", "-d", metavar="DIR", help="Local logs. [./firn-data]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "-s",
            metavar="URL",
            help="file:///path or s3://bucket/prefix. [a folder next to the data directory]",
        ),
    ] = None,
    wal_store: Annotated[
        str | None,
        typer.Option(
            "--wal-store",
            metavar="URL",
            help="Store of the write-ahead logs of topics with firn.durability=object, if they have their own; the same for all"
            " brokers. [--store]",
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Kafka protocol. [127.0.0.1:9092]")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="Address that clients connect to. [--listen]"),
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT|off", help="REST, console, metrics. [127.0.0.1:8080]")
    ] = None,
    http_allowed_hosts: Annotated[
        str | None,
        typer.Option(
            "--http-allowed-hosts",
            metavar="HOST,…",
            help="Host names that HTTP requests may use, besides localhost, the address and --advertise; * for any.",
        ),
    ] = None,
    http_allowed_origins: Annotated[
        str | None,
        typer.Option(
            "--http-allowed-origins",
            metavar="ORIGIN,…",
            help="Origins whose web pages may use the HTTP API, such as https://ui.example; * for any.",
        ),
    ] = None,
    node_id: Annotated[
        str | None,
        typer.Option(
            "--node-id",
            metavar="N|auto",
            help="Node id of this broker. With auto it gets one from the cluster, and an empty store becomes a cluster of several"
            " brokers. [1]",
        ),
    ] = None,
    rack: Annotated[str | None, typer.Option("--rack", metavar="NAME", help="This broker's rack or zone.")] = None,
    redis: Annotated[
        str | None,
        typer.Option(
            "--redis",
            metavar="URL",
            help="Redis server for limits of the whole cluster (firn.quota.scope). None is needed.",
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take over this node id from another data directory, even if its broker may still run. The old broker is"
            " notified and stops. If it cannot be notified, it may acknowledge records that are lost, for up to 10 s or while"
            " it cannot reach the store; the new broker logs a warning.",
        ),
    ] = False,
    create_store: Annotated[
        bool,
        typer.Option(
            "--create-store",
            help="With --ephemeral and a file:// store: make a new store if the directory is missing or empty. Without this it is"
            " taken for a file system that is not mounted. `firn store init` makes one, too.",
        ),
    ] = False,
    ephemeral: Annotated[
        bool,
        typer.Option(
            "--ephemeral",
            help="The data directory may be lost at any time: this broker leads only topics whose records are in the object store"
            " (firn.durability=object), which new topics are then. Without --node-id it gets a node id (auto).",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            envvar="FIRN_CONFIG",
            help="Settings: a TOML file, or Kafka's .properties.",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a setting by Kafka's name; may be repeated."),
    ] = None,
    background: Annotated[
        bool,
        typer.Option(
            "--background", help="Start the broker in the background and return when it is ready; `firn stop` stops it."
        ),
    ] = False,
    log_file: Annotated[
        Path | None,
        typer.Option(
            "--log-file",
            parser=local_path,
            metavar="FILE",
            help="File to which --background appends the broker's log. [the data directory's name with .log]",
        ),
    ] = None,
    ready_fd: Annotated[
        int | None,
        typer.Option("--ready-fd", hidden=True, help="Write a line to this descriptor when the broker is ready."),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--log-format",
            metavar="text|json",
            help="Format of the log: text for people, or one JSON object in each line for programs (docs/log-events.md). [text]",
        ),
    ] = None,
    list_settings: Annotated[
        bool, typer.Option("--list-settings", help="List every setting with its default, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list-settings: print JSON, for programs.")] = False,
) -> int:
    """Run a broker.

    Without any flag it serves Kafka on 127.0.0.1:9092 and HTTP on 127.0.0.1:8080, with its data in ./firn-data.
    Settings come from a file (--config), FIRN_… environment variables, flags and --set. Later sources override earlier ones.
    """
    from app.settings import load

    if list_settings:
        return _list_settings(as_json=as_json)
    if as_json:
        raise ConfigError("--json needs --list-settings.")
    flags = {
        "--data-dir": data_dir,
        "--store": store,
        "--wal-store": wal_store,
        "--listen": listen,
        "--advertise": advertise,
        "--http": http,
        "--http-allowed-hosts": http_allowed_hosts,
        "--http-allowed-origins": http_allowed_origins,
        "--node-id": node_id,
        "--rack": rack,
        "--redis": redis,
        "--take-over": "true" if take_over else None,
        "--create-store": "true" if create_store else None,
        "--ephemeral": "true" if ephemeral else None,
        "--log-format": log_format,
    }
    settings = load(config_path=config, environment=os.environ, flags=flags, assignments=assignments or ())
    if background:
        from app.cli.background import start

        return start(settings.broker, _same_arguments(context), log_file)
    if log_file is not None:
        raise ConfigError("--log-file needs --background; in the foreground the log goes to standard error.")
    from app.broker.start.process import serve as run

    if ready_fd is not None:
        os.set_inheritable(ready_fd, False)  # The reader must see the end of this process, even if a child outlives it.
    run(settings.broker, on_ready=lambda broker: _ready(broker, ready_fd))
    return 0


def _same_arguments(context: typer.Context) -> list[str]:
    """The flags of this command as they were given, for a process that is to serve in its place."""
    again: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in ("background", "log_file", "ready_fd") or value in (None, False, (), []):
            continue
        if value is True:
            again.append(parameter.opts[0])
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                again += [parameter.opts[0], str(one)]
    return again


def _ready(broker: Broker, ready_fd: int | None) -> None:
    image = broker.node.cluster.image
    config = broker.config
    shown = broker.node.endpoints[shown_listener(config)]
    kafka = f"{shown.host}:{shown.port}"
    if ready_fd is not None:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
        return
    if in_json():
        return  # The line that the broker is ready says the same, and only JSON is in the log.
    sys.stdout.write(
        banner(config, node_id=config.node_id, kafka=kafka, cluster_id=image.cluster_id, stopped_by="Ctrl-C")
    )
    sys.stdout.flush()


def _list_settings(*, as_json: bool) -> int:
    from app.cli.output import print_json, print_table
    from app.configs.environment import environment_name
    from app.settings import catalogue

    settings = catalogue().items()
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "default": setting.default,
                    "environment": environment_name(name),
                    "topic_setting": setting.topic_setting,
                    "documentation": setting.documentation,
                }
                for name, setting in settings
            ]
        )
        return 0
    print_table(
        ("SETTING", "DEFAULT", "ENVIRONMENT", "~WHAT IT DOES"),
        [(name, setting.default, environment_name(name), setting.documentation) for name, setting in settings],
    )
    return 0
