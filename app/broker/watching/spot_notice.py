"""Asks the machine's metadata service whether the machine is about to be taken away (``firn.spot.notice.endpoint``).

The questions are those of AWS: a token (IMDSv2), and ``spot/instance-action``, which is not there until two minutes before a spot
instance ends. The notice begins a drain, which a broker without a disk finishes in seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from app.core.faults import Faults
from app.core.log_events import Event
from app.machine.web import NOT_FOUND, NotFetched, fetch

INTERVAL_S: Final = 5.0
"""As AWS advises."""
TOKEN_PATH: Final = "/latest/api/token"
TOKEN_S: Final = 21_600
NOTICE_PATH: Final = "/latest/meta-data/spot/instance-action"
ANSWER_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 4096
ASKING: Final = "asking for a spot notice at"


class SpotNotice:
    """Belongs to one event loop."""

    def __init__(
        self,
        endpoint: str,
        *,
        on_notice: Callable[[], None],
        log_line: Callable[[str], None],
        faults: Faults,
        interval_s: float | None = None,
    ) -> None:
        """``endpoint``: URL of the metadata service, without a path. ``on_notice`` is called once."""
        self._endpoint = endpoint.rstrip("/")
        self._on_notice = on_notice
        self._log_line = log_line
        self._faults = faults
        self._interval_s = INTERVAL_S if interval_s is None else interval_s
        self._token = ""

    async def run(self) -> None:
        """Ask until there is a notice, or until cancelled. A service that does not answer is asked again."""
        while True:
            try:
                notice = await self._ask()
            except NotFetched as error:
                self._token = ""  # it may have ended
                self._faults.met(
                    ASKING, self._endpoint, f"cannot ask {self._endpoint} whether this machine is about to end: {error}"
                )
            else:
                self._faults.over(ASKING, self._endpoint)
                if notice:
                    self._log_line(
                        Event.BROKER_TAKEN_AWAY.line(
                            f"this machine is about to be taken away ({notice}): the broker drains and stops"
                        )
                    )
                    self._on_notice()
                    return
            await asyncio.sleep(self._interval_s)

    async def _ask(self) -> str:
        """The announced interruption of the machine; empty if there is none. Raises: NotFetched."""
        if not self._token:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            self._token = (await self._fetch(TOKEN_PATH, "PUT", lifetime)).decode("ascii", "replace").strip()
        try:
            document = await self._fetch(NOTICE_PATH, "GET", {"X-aws-ec2-metadata-token": self._token})
        except NotFetched as error:
            if str(error) == NOT_FOUND:
                return ""
            raise
        try:
            found = json.loads(document)
            return f"{found['action']} at {found.get('time', 'an unknown time')}"
        except (ValueError, KeyError, TypeError, AttributeError):
            raise NotFetched("the answer is no notice of a spot instance") from None

    async def _fetch(self, path: str, method: str, headers: dict[str, str]) -> bytes:
        url = urlsplit(f"{self._endpoint}{path}")
        return await fetch(
            url, context=None, seconds=ANSWER_S, bytes_max=ANSWER_BYTES_MAX, method=method, headers=headers
        )
