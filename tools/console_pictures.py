"""Pictures of the console's pages, in light and dark, for a screen and a phone.

    python -m tools.console_pictures http://127.0.0.1:8080 FOLDER [PATH …]
    python -m tools.console_pictures http://127.0.0.1:8080 --fill
    python -m tools.console_pictures http://127.0.0.1:8080 --use
    python -m tools.console_pictures http://127.0.0.1:8080 --documents

Without a PATH it takes the pages of ``PATHS``, for the topic with the demo's flights (``firn demo --keep``) and for what ``--fill``
adds to it (``tools/console_scene.py``). ``--use`` writes and reads for some minutes. ``--documents`` takes the
pictures in ``docs/images``, while ``--use`` goes on.
It shows all that a page reports to the browser's console, and then ends with 1.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.chromium import Screen, browsing
from tools.console_scene import fill, use

PATHS: Final = {
    "overview": "/",
    "topics": "/console/topics",
    "timeline": "/console/topics/flights",
    "messages": "/console/topics/flights/messages",
    "message": "/console/topics/flights/partitions/0/messages/100",
    "partitions": "/console/topics/flights/partitions",
    "topic-groups": "/console/topics/payments.settled/groups",
    "settings": "/console/topics/flights/settings",
    "produce": "/console/topics/orders/produce",
    "resend": "/console/topics/orders/partitions/0/messages/1/resend?to=clicks",
    "groups": "/console/groups",
    "group": "/console/groups/delays",
    "reset": "/console/groups/delays/reset?topic=flights&to=earliest",
    "brokers": "/console/brokers",
    "broker": "/console/brokers/1",
    "store": "/console/store",
    "schemas": "/console/schemas",
    "schema": "/console/schemas/flights-value/versions/2",
    "transactions": "/console/transactions",
    "transaction": "/console/transactions/settlement",
    "access": "/console/access",
    "users": "/console/users",
    "quotas": "/console/quotas",
    "cost": "/console/cost",
    "error": "/console/topics/none",
}
DOCUMENTS: Final = Path("docs/images")
IN_DOCUMENTS: Final = ("overview", "topics", "timeline", "topic-groups", "store", "schema")
"""Pages whose pictures the documents have, in light, for a screen."""
SCREENS: Final = {
    "light": Screen(),
    "dark": Screen(dark=True),
    "phone": Screen(390, 844),
    "phone-dark": Screen(390, 844, dark=True),
}
SETTLED_S: Final = 7.0
"""Until a page with numbers that move has shown two rates."""


async def take(
    base: str, folder: Path, paths: Mapping[str, str], screens: Mapping[str, Screen] = SCREENS, form: str = "{}-{}"
) -> int:
    """Write the pictures. ``form``: of their names, for the name of a page and of a screen. Returns: the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="firn-chromium-") as profile:
        async with browsing(Path(profile)) as tab:
            for name, path in paths.items():
                for screen_name, screen in screens.items():
                    await tab.show_as(screen)
                    await tab.go(base + path)
                    if await tab.value("document.querySelector('[data-live]') !== null"):
                        await asyncio.sleep(SETTLED_S)
                    (folder / f"{form.format(name, screen_name)}.png").write_bytes(await tab.picture())
            reports = [one for one in tab.reports if "404 (Not Found)" not in one]
    for report in reports:
        sys.stderr.write(f"{report}\n")
    return 1 if reports else 0


def main(arguments: list[str]) -> int:
    base, folder, *paths = arguments
    base = base.rstrip("/")
    if folder == "--fill":
        asyncio.run(fill(base))
        return 0
    if folder == "--use":
        asyncio.run(use(base))
        return 0
    if folder == "--documents":
        shown = {name: PATHS[name] for name in IN_DOCUMENTS}
        return asyncio.run(take(base, DOCUMENTS, shown, {"light": SCREENS["light"]}, "console-{}"))
    named = {path.strip("/").replace("/", "-") or "overview": path for path in paths}
    return asyncio.run(take(base, Path(folder), named or PATHS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
