"""The banner that a person sees when a broker is ready."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from app import __version__

if TYPE_CHECKING:
    from app.configs import BrokerConfig

CLIENT_CONFIG: Final = "client.properties"
"""The file that the documents keep a client's login in."""


def shown_listener(config: BrokerConfig) -> int:
    """Which of ``config.served`` the banner names: one that needs no certificate and no login if there is one, and rather one for
    clients than the one between brokers."""
    from app.configs.listeners import SecurityProtocol

    served = config.served
    return min(
        range(len(served)),
        key=lambda place: (served[place].protocol is not SecurityProtocol.PLAINTEXT, place == 0, place),
    )


def banner(
    config: BrokerConfig,
    *,
    node_id: int,
    kafka: str,
    cluster_id: str,
    stopped_by: str,
    background: tuple[int, Path] | None = None,
) -> str:
    """The banner for a person when the broker is ready: its address, the place of its data, the next steps.

    ``node_id`` is of the broker that runs, since the configuration may leave it to the cluster. ``background`` is process and log
    file of a broker that has no terminal. ``kafka`` is the address of ``shown_listener``.
    """
    from app.configs.broker import OFF
    from app.configs.listeners import SecurityProtocol

    scheme = "https" if config.has_https else "http"
    lines = [
        f"Firn {__version__}: broker {node_id} of cluster {cluster_id} is ready.",
        "",
        f"  Kafka     {kafka}",
        f"  HTTP      {'off' if config.http_address == OFF else f'{scheme}://{config.http_address}'}",
        f"  Data      {Path(config.data_dir).absolute()}",
        f"  Store     {config.store_url}",
        *([f"  WAL       {config.wal_store_url}"] if config.wal_store_url else []),
        *([f"  Log       {background[1]}", f"  Process   {background[0]}"] if background else []),
        "",
    ]
    option = "" if kafka == "127.0.0.1:9092" else f" -b {kafka}"
    firn = "firn"
    if config.served[shown_listener(config)].protocol is not SecurityProtocol.PLAINTEXT:
        firn += f" --client-config {CLIENT_CONFIG}"
    lines += [
        f"  echo hello | {firn} produce greetings{option}",
        f"  {firn} consume greetings{option}",
    ]
    if config.http_address != OFF:
        lines.append(f"  open {scheme}://{config.http_address}/docs")
    lines += ["", f"{stopped_by} stops it in order.", ""]
    return "\n".join(lines)
