"""The tree of commands, put together from one module per noun."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from app import __version__

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer carries click inside since 0.29 and imported it before; this is its UsageError either way."""
ClickError: type[Exception] = typer.BadParameter.__mro__[2]
Stopped: type[BaseException] = typer.Abort


def application() -> Any:
    """The command ``firn``, to be called with ``main(args=…)``."""
    from app.cli import consume, doctor, http, produce, serve, tier, topic, verify

    app = typer.Typer(
        name="firn",
        help="A Kafka-protocol log service whose home is the object store.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command()(serve.serve)
    app.command()(http.http)
    app.command()(demo)
    app.add_typer(topic.app, name="topic")
    app.command()(produce.produce)
    app.command()(consume.consume)
    app.add_typer(tier.app, name="tier")
    app.command()(verify.verify)
    app.command()(doctor.doctor)
    return typer.main.get_command(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"firn {__version__}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A Kafka-protocol log service whose home is the object store."""


def demo(
    directory: Annotated[Path, typer.Argument(metavar="[DIRECTORY]", help="Where the demo keeps its data.")] = Path(
        "firn-demo"
    ),
) -> int:
    """Watch the main job on real input.

    The 336,776 flights out of New York in 2013 go in, roll, move to the object store, leave the local disk, and are read
    back and compared.
    """
    from app.demo import run

    return run(directory)
