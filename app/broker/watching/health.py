"""Whether a broker can serve its partitions: for load balancers (``/readyz``), and for people. Pure."""

from __future__ import annotations

from app.http.health import Health, Part


def judge(
    *,
    store_trouble: str,
    offline_reason: str | None,
    no_room: str | None,
    leaders: int,
    offline: int,
    isolated: bool = False,
) -> Health:
    """A broker is ready if it can serve any partition that it leads.

    A full disk refuses producers only, and without the store the records of the local disk are served. Both are told, and neither
    makes a broker unready. With the log directory offline nothing is served.

    Args:
        store_trouble: a sentence, empty if the store responds.
        offline_reason: why the log directory is offline; None if it is not.
        no_room: why producers are refused; None if there is room.
        leaders, offline: counts of partitions that it leads and serves, and of those that it cannot open.
        isolated: whether it hears neither brokers nor store (ADR 0040).
    """
    if offline_reason is not None:
        disk = Part("offline", f"The log directory is offline: {offline_reason.rstrip('.')}.")
    elif no_room is not None:
        disk = Part("full", f"Producers are refused: {no_room.rstrip('.')}.")
    else:
        disk = Part("ok")
    return Health(
        ready=offline_reason is None and (leaders > 0 or (offline == 0 and not isolated)),
        store=Part("away", store_trouble) if store_trouble else Part("ok"),
        disk=disk,
        leaders=leaders,
        offline=offline,
        isolated=isolated,
    )
