"""``firn debug bundle``: facts about a cluster for a person who helps from far, without secrets."""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app import __version__
from app.cli.output import bytes_text, count_text, say
from app.cli.redaction import redacted
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, connected, local_path, run_async
from app.core.errors import ConfigError, FirnError
from app.core.limits import MIB

if TYPE_CHECKING:
    from app.client.admin import AdminClient
    from app.client.cluster import ClusterClient
    from app.core.units import BrokerId

LOG_BYTES_MAX: Final = 4 * MIB
"""The end of a log file that goes into a bundle."""
TIER_PARTITIONS_MAX: Final = 5_000
MODE: Final = 0o600

app = typer.Typer(help="Gather facts for a person who helps from far.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _family() -> None:
    """Gather facts for a person who helps from far."""


Part = Callable[[], Awaitable[str]]


@app.command()
def bundle(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", parser=local_path, help="The archive to write; it must not exist.")
    ] = Path("firn-debug.tar.gz"),
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", metavar="FILE", help="A log file: its last 4 MiB go in. May be repeated."),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", "-c", metavar="FILE", help="A file of settings to put in. May be repeated."),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Write an archive with versions, the state of the cluster, settings, metrics, the tier's status and the ends of the log
    files that you name, without secrets.

    A part that cannot be had, such as the metrics of a broker that is down, is named in missing.txt.
    Records and their keys are not in it; names of topics and addresses of brokers are. Look at it before you send it: a secret
    that stands in a line of a log without a name is not found.
    """
    if file.exists():
        raise ConfigError(f"{file} exists. Name another file.")
    parts = {"about.json": _about()}
    for name, paths in (("logs", log), ("settings", config)):
        for number, path in enumerate(paths or (), start=1):
            parts[f"{name}/{number}-{path.name}"] = _end_of(path)
    missing: dict[str, str] = {}
    run_async(lambda: _of_cluster(bootstrap, parts, missing))
    if missing:
        parts["missing.txt"] = "".join(f"{name}: {why}\n" for name, why in missing.items())
    size_bytes = _write(file, parts)
    say(f"Wrote {file}: {count_text(len(parts), 'file')}, {bytes_text(size_bytes)}. Look at it before you send it.")
    for name, why in missing.items():
        say(f"It lacks {name}: {why}")


def _about() -> str:
    """Versions of the program, of Python, of the machine and of the packages."""
    from app.machine.commit import commit

    return _json(
        {
            "firn": __version__,
            "commit": commit() or "unknown",
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": sys.version,
            "machine": platform.platform(),
            "processors": os.cpu_count(),
            "packages": dict(sorted((one.name, one.version) for one in distributions())),
        }
    )


def _end_of(path: Path) -> str:
    """The last lines of a file. A line that does not fit is left out, since a cut secret has lost its name. Raises: ConfigError."""
    try:
        with path.open("rb") as file:
            start = file.seek(0, os.SEEK_END) - LOG_BYTES_MAX
            if start > 0:
                file.seek(start - 1)
                file.readline()
            else:
                file.seek(0)
            return file.read(LOG_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Name another file.") from error


async def _of_cluster(bootstrap: str, parts: dict[str, str], missing: dict[str, str]) -> None:
    """Ask the brokers. A part that cannot be had is named in ``missing``."""
    from app.client.admin import AdminClient

    async def take(name: str, part: Part) -> None:
        try:
            parts[name] = await part()
        except FirnError as error:
            missing[name] = str(error)

    try:
        async with connected(bootstrap) as cluster:
            admin = AdminClient(cluster)
            await take("cluster.json", lambda: _standing(admin))
            await take("tier.json", lambda: _tier(admin))
            view = await cluster.refresh([])
            for node_id in sorted(view.brokers):
                await take(f"brokers/{node_id}.json", partial(_settings, admin, str(node_id)))
                await take(f"metrics/{node_id}.txt", partial(_metrics, cluster, admin, node_id))
            await take("brokers/all.json", lambda: _settings(admin, ""))
            await take("topics.json", lambda: _topics(cluster, admin))
    except FirnError as error:
        missing["the cluster"] = str(error)


async def _standing(admin: AdminClient) -> str:
    found = await admin.cluster_standing()
    return _json(found)


async def _metrics(cluster: ClusterClient, admin: AdminClient, node_id: BrokerId) -> str:
    """Metrics of a broker, a line each. A client may choose the value of a label, so it is escaped."""
    from app.http.metrics import escaped_value

    told = await admin.metrics(await cluster.broker(node_id))
    lines = []
    for one in told.samples:
        labels = ",".join(
            f'{name}="{escaped_value(value)}"' for name, value in [("node_id", str(node_id)), *one.labels]
        )
        lines.append(f"{one.name}{{{labels}}} {one.value!r}\n")
    return "".join(lines)


async def _tier(admin: AdminClient) -> str:
    found = await admin.tier_status()
    return _json(found[:TIER_PARTITIONS_MAX])


async def _settings(admin: AdminClient, name: str) -> str:
    """The settings of a broker that differ from their defaults, or those of all brokers. Sensitive ones have no value."""
    from app.wire.config_resources import ConfigResourceType

    found = await admin.describe_configs(ConfigResourceType.BROKER, name)
    return _json({one.name: one.value for one in found if not one.is_default})


async def _topics(cluster: ClusterClient, admin: AdminClient) -> str:
    """Partitions and own settings of each topic."""
    view = await cluster.refresh(None)
    configs = await admin.describe_topics_configs(sorted(view.topics))
    return _json(
        {
            name: {
                "partitions": len(topic.partitions),
                "settings": {one.name: one.value for one in configs.get(name, ()) if not one.is_default},
            }
            for name, topic in sorted(view.topics.items())
        }
    )


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(_named(value)), indent=2).decode() + "\n"


def _named(value: Any) -> Any:
    """Each structure in a value as a mapping from the names of its fields: on the wire it is a list without names."""
    names = getattr(value, "__struct_fields__", None)
    if names is not None:
        return {name: _named(getattr(value, name)) for name in names}
    return [_named(one) for one in value] if isinstance(value, list) else value


def _write(file: Path, parts: Mapping[str, str]) -> int:
    """Write the archive, with all secrets taken out. Returns: its bytes. Raises: ConfigError."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in sorted(parts.items()):
            data = redacted(text).encode()
            entry = tarfile.TarInfo(f"firn-debug/{name}")
            entry.size, entry.mode = len(data), MODE
            archive.addfile(entry, io.BytesIO(data))
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}. Name another file.") from error
    with os.fdopen(descriptor, "wb") as out:
        return out.write(packed.getvalue())
