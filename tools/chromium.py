"""Chromium without a window, driven by its own protocol (Chrome DevTools Protocol) over a web socket.

It tells all that a page reports to the console, so a test can hold that a page reports nothing.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
START_S: Final = 60.0
ANSWER_S: Final = 120.0
"""A browser that is silent for so long has ended or hangs. A page has shown everything long before."""
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024


def chromium() -> str | None:
    """The path of the program, None if it is not installed."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Screen(NamedTuple):
    """How a page is shown."""

    width: int = 1280
    height: int = 900
    dark: bool = False


class Tab:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.reports: list[str] = []
        """Lines that pages wrote to the console, their uncaught exceptions, and failed requests."""

    async def listen(self) -> None:
        """Take messages until the browser ends."""
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                waiting = self._waiting.pop(told["id"])
                if not waiting.done():
                    waiting.set_result(told)
                continue
            given = told.get("params", {})
            match told["method"]:
                case "Page.loadEventFired":
                    self._loaded.set()
                case "Runtime.exceptionThrown":
                    self.reports.append(str(given["exceptionDetails"]))
                case "Runtime.consoleAPICalled":
                    self.reports.append(f"{given['type']}: {[one.get('value') for one in given['args']]}")
                case "Log.entryAdded":
                    self.reports.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
                case "Page.javascriptDialogOpening":
                    self.reports.append(f"dialog: {given['message']}")

    async def send(self, method: str, **given: Any) -> Any:
        """The result of a command of the protocol. Raises: TimeoutError after ``ANSWER_S``."""
        number = next(self._ids)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": given})
        async with asyncio.timeout(ANSWER_S):
            told = await waiting
        assert "error" not in told, (method, told)
        return told["result"]

    async def prepare(self) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{domain}.enable")

    async def show_as(self, screen: Screen) -> None:
        """The size of the page, and the colours that its reader wants."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=screen.width,
            height=screen.height,
            deviceScaleFactor=1,
            mobile=screen.width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if screen.dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def go(self, url: str) -> None:
        """Open a page, and wait until it has loaded with all its files. Raises: TimeoutError after ``ANSWER_S``."""
        self._loaded.clear()
        told = await self.send("Page.navigate", url=url)
        assert not told.get("errorText"), told
        async with asyncio.timeout(ANSWER_S):
            await self._loaded.wait()

    async def value(self, expression: str) -> Any:
        """The value of an expression in the page. It may be a promise."""
        told = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression holds in the page. Raises: TimeoutError after ``ANSWER_S``."""
        async with asyncio.timeout(ANSWER_S):
            while not await self.value(expression):  # noqa: ASYNC110 - the page cannot set an event of this process
                await asyncio.sleep(0.05)

    async def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            await self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def picture(self) -> bytes:
        """The whole page as PNG."""
        told = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(told["data"])


@asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Tab]:
    """A browser with a profile of its own in ``folder``."""
    program = chromium()
    assert program is not None, "Chromium is not installed"
    process = await asyncio.create_subprocess_exec(
        program,
        "--headless=new",
        "--no-sandbox",  # Chromium has no sandbox for root
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    listening: asyncio.Task[None] | None = None
    try:
        port = await _port(process, folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                (page,) = [one for one in await response.json() if one["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=MESSAGE_BYTES_MAX) as socket:
                tab = Tab(socket)
                listening = asyncio.create_task(tab.listen())
                await tab.prepare()
                yield tab
    finally:
        if listening is not None:
            listening.cancel()
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _port(process: asyncio.subprocess.Process, file: Path) -> int:
    """The port that the browser listens on, which it writes to a file."""
    async with asyncio.timeout(START_S):
        while not (file.is_file() and (text := file.read_text()).count("\n")):
            assert process.returncode is None, "Chromium has ended"
            await asyncio.sleep(0.05)
    return int(text.split("\n", 1)[0])
