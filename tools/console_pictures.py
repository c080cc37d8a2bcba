"""Pictures of the console's pages, in light and dark, for a screen and a phone.

    python -m tools.console_pictures http://127.0.0.1:8080 FOLDER [PATH …]

Without a PATH it takes the pages of ``PATHS`` for the topic with the demo's flights (``firn demo --keep``). It shows all
that a page reports to the browser's console, and then ends with 1.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.chromium import Screen, browsing

PATHS: Final = {
    "overview": "/",
    "topics": "/console/topics?internal=1",
    "timeline": "/console/topics/flights",
    "messages": "/console/topics/flights/messages",
    "message": "/console/topics/flights/partitions/0/messages/100",
    "partitions": "/console/topics/flights/partitions",
    "settings": "/console/topics/flights/settings",
    "groups": "/console/groups",
    "brokers": "/console/brokers",
    "broker": "/console/brokers/1",
    "store": "/console/store",
    "schemas": "/console/schemas",
    "transactions": "/console/transactions",
    "access": "/console/access",
    "users": "/console/users",
    "quotas": "/console/quotas",
    "cost": "/console/cost",
    "error": "/console/topics/none",
}
SCREENS: Final = {
    "light": Screen(),
    "dark": Screen(dark=True),
    "phone": Screen(390, 844),
    "phone-dark": Screen(390, 844, dark=True),
}
SETTLED_S: Final = 4.5
"""Until a page with numbers that move has shown two rates."""


async def take(base: str, folder: Path, paths: dict[str, str]) -> int:
    """Write the pictures. Returns: the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="firn-chromium-") as profile:
        async with browsing(Path(profile)) as tab:
            for name, path in paths.items():
                for screen_name, screen in SCREENS.items():
                    await tab.show_as(screen)
                    await tab.go(base + path)
                    if path == "/" or path.startswith(("/console/groups/", "/console/topics?")):
                        await asyncio.sleep(SETTLED_S)
                    (folder / f"{name}-{screen_name}.png").write_bytes(await tab.picture())
            reports = [one for one in tab.reports if "404 (Not Found)" not in one]
    for report in reports:
        sys.stderr.write(f"{report}\n")
    return 1 if reports else 0


def main(arguments: list[str]) -> int:
    base, folder, *paths = arguments
    named = {path.strip("/").replace("/", "-") or "overview": path for path in paths}
    return asyncio.run(take(base.rstrip("/"), Path(folder), named or dict(PATHS)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
