"""``firn store``: the object store itself, before a broker uses it."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.output import say
from app.core.errors import ConfigError, FirnError

app = typer.Typer(help="Prepare an object store.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _family() -> None:
    """Prepare an object store."""


@app.command("init")
def init(
    url: Annotated[str, typer.Argument(metavar="URL", help="file:///path, perhaps with ?mode=0750.")],
) -> None:
    """Make a new store in a directory that is missing or empty.

    Brokers with --ephemeral start only on a directory that has been made a store, because an empty directory may be the place of
    a file system that is not mounted. A bucket needs no preparation.
    """
    from app.objectstore.directory_work import DirectoryWork
    from app.objectstore.location import DirectoryLocation, parse_store_url

    location = parse_store_url(url)
    if not isinstance(location, DirectoryLocation):
        raise ConfigError(f"{url} is no directory. Only directories are prepared; a bucket needs none of it.")
    work = DirectoryWork(location.path, mode=location.mode)
    try:
        if not work.is_blank():
            say(f"{location} is a store already, or has other files. Nothing was changed.")
            return
        work.check_links()
    except OSError as error:
        raise FirnError(f"Cannot read {location.path}: {error.strerror}. Give this user the permission.") from error
    finally:
        work.close()
    say(f"{location} is a new store.")
