"""One small document from a web server, within a time and a size, off the loop.

The server is the operator's choice, and is not trusted further: redirects are not followed, nothing of the environment (proxies) is
asked, and every exchange with it ends within the time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Final
from urllib.parse import SplitResult

NOT_FOUND: Final = "there is no such document"
"""Why there is none, if the server says so."""
PORTS: Final = {"http": 80, "https": 443}


class NotFetched(Exception):  # the name of the event
    """There is no document. The text says why; no part of a document is in it."""


async def fetch(
    url: SplitResult,
    *,
    context: ssl.SSLContext | None,
    seconds: float,
    bytes_max: int,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Get the document of an http or https URL. ``context``: of https; it has the trusted authorities. ``headers``: more of them.

    Each call has a thread of its own, so a server that does not answer keeps no thread of the disk waiting. The thread ends with
    the call but where the system is still asked for the address of the host.

    Raises: NotFetched.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes | str] = loop.create_future()
    download = _Download(url, context, seconds, bytes_max, method, headers or {})

    def tell(outcome: bytes | str) -> None:
        if not done.done():
            done.set_result(outcome)

    def work() -> None:
        outcome = download.run()
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, outcome)

    threading.Thread(target=work, name="firn-web", daemon=True).start()
    limit = loop.call_later(seconds, download.end)
    try:
        outcome = await done
    finally:
        limit.cancel()
        download.end()
    if isinstance(outcome, str):
        raise NotFetched(outcome)
    return outcome


class _Download:
    """``run`` in one thread, ``end`` from another at any time."""

    def __init__(
        self,
        url: SplitResult,
        context: ssl.SSLContext | None,
        seconds: float,
        bytes_max: int,
        method: str,
        headers: Mapping[str, str],
    ) -> None:
        self._url = url
        self._method = method
        self._headers = {"Accept": "application/json", **headers, "Connection": "close"}
        self._context = context
        self._seconds = seconds
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._ended = False
        self._twin: socket.socket | None = None
        """Another descriptor of the connection: shutting it down ends every wait for the connection, TLS or not."""

    def run(self) -> bytes | str:
        """The document, or why there is none."""
        try:
            return self._get()
        except (OSError, HTTPException, ValueError) as error:
            if self._ended or isinstance(error, TimeoutError):
                return f"there was no whole answer within {self._seconds:g} s"
            return _why(error)
        finally:
            with self._lock:
                twin, self._twin = self._twin, None
            if twin is not None:
                twin.close()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            if self._twin is not None:
                with suppress(OSError):  # the server was faster
                    self._twin.shutdown(socket.SHUT_RDWR)

    def _get(self) -> bytes | str:
        """Raises: OSError, HTTPException, ValueError."""
        host, port = self._url.hostname or "", self._url.port or PORTS[self._url.scheme]
        link = socket.create_connection((host, port), timeout=self._seconds)
        try:
            with self._lock:
                if self._ended:
                    raise TimeoutError
                self._twin = link.dup()
            if self._context is not None:
                link = self._context.wrap_socket(link, server_hostname=host)
            connection = HTTPConnection(host, port, timeout=self._seconds)
            connection.sock = link
            target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
            connection.request(self._method, target, headers=self._headers)
            with connection.getresponse() as answer:
                if answer.status in (301, 302, 303, 307, 308):
                    return f"it redirects with status {answer.status}, and redirects are not followed"
                if answer.status == 404:
                    return NOT_FOUND
                if answer.status != 200:
                    return f"the status of the answer is {answer.status}"
                document = answer.read(self._bytes_max + 1)
                missing = answer.length
        finally:
            link.close()
        if self._ended:
            raise TimeoutError  # an apparent end of the document may be the end of the connection
        if len(document) > self._bytes_max:
            return f"the document has more than {self._bytes_max} bytes"
        return "the answer ends in the middle" if missing else document


def _why(error: OSError | HTTPException | ValueError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.').lower()}"
    if isinstance(error, socket.gaierror):
        return "its host is not known"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.rstrip(".").lower()
    return f"the answer is no HTTP ({type(error).__name__})"
