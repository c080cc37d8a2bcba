"""The tree of commands, put together from one module per noun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app import __version__
from app.cli.session import local_path, use_client_config
from app.core.errors import ConfigError

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer carries click inside since 0.29 and imported it before; this is its UsageError either way."""
ClickError: type[Exception] = typer.BadParameter.__mro__[2]
Stopped: type[BaseException] = typer.Abort


_FAMILIES: Final = {
    "serve": ("serve", "serve"),
    "wait": ("background", "wait"),
    "stop": ("background", "stop"),
    "drain": ("drain", "drain"),
    "http": ("http", "http"),
    "demo": ("commands", "demo"),
    "topic": ("topic", "app"),
    "produce": ("produce", "produce"),
    "consume": ("consume", "consume"),
    "group": ("group", "app"),
    "acl": ("acl", "app"),
    "tier": ("tier", "app"),
    "store": ("store", "app"),
    "cluster": ("cluster", "app"),
    "quota": ("quota", "app"),
    "schema": ("schema", "app"),
    "verify": ("verify", "verify"),
    "doctor": ("doctor", "doctor"),
    "debug": ("debug", "app"),
    "job": ("job", "app"),
    "cost": ("cost", "cost"),
    "iam": ("iam", "app"),
    "user": ("user", "app"),
    "token": ("token", "app"),
    "tls": ("tls", "app"),
}
"""Command to its module of this package and its name there, in the order of the help."""


def application(arguments: Sequence[str] = ()) -> Any:
    """The command ``firn``, to be called with ``main(args=…)``.

    If ``arguments`` begin with a command's name, no other command is imported: a broker need not wait for the rest.
    """
    app = typer.Typer(
        name="firn",
        help="A Kafka-protocol log service whose home is the object store.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # Its tables cut names of options on narrow terminals.
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    named = arguments[0] if arguments and arguments[0] in _FAMILIES else None
    for name, (module, attribute) in _FAMILIES.items():
        if named is None or name == named:
            command = getattr(import_module(f"app.cli.{module}"), attribute)
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name)
            else:
                app.command(name=name)(command)
    return typer.main.get_command(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from app.machine.commit import commit

        sys.stdout.write(f"firn {__version__} (commit {commit() or 'unknown'})\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version and commit, and exit."),
    ] = False,
    client_config: Annotated[
        str | None,
        typer.Option(
            "--client-config",
            metavar="FILE",
            envvar="FIRN_CLIENT_CONFIG",
            help="How commands reach brokers: a file with Kafka's client settings (security.protocol, sasl.…, ssl.…).",
        ),
    ] = None,
) -> None:
    """A Kafka-protocol log service whose home is the object store."""
    use_client_config(client_config)


def demo(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIRECTORY]", parser=local_path, help="Where the demo keeps its data.")
    ] = Path("firn-demo"),
    brokers: Annotated[
        int,
        typer.Option(
            "--brokers", min=1, max=9, help="With 3 or more: a cluster, of which a broker is killed meanwhile."
        ),
    ] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the brokers up with the console, until Ctrl-C.")] = False,
) -> int:
    """Show the main scenario on real records.

    Produces 336,776 flights that left New York in 2013, moves them to the object store, deletes them from the local disk, reads
    them back and compares them.

    With --brokers 3, three brokers share the object store. The leader of some partitions is killed while the flights go in.
    """
    from app.demo import run

    if brokers == 1:
        return run(directory, keep=keep)
    if brokers == 2:
        raise ConfigError("--brokers 2: of two brokers none can be killed without a loss of service; write 3.")
    from app.cli.demo_brokers import failover

    return run(directory, failover(brokers, keep=keep), keep=keep)
