"""The state of the console in a process. Templates and files are loaded at the first page.

Tests: ``tests/http/console/test_pages.py``.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from app.client.admin import otherwise
from app.core.seams import Clock
from app.http.asked_once import AskedOnce
from app.http.console.records.masks import Masks
from app.http.console.sessions import Sessions
from app.http.console.texts import formats
from app.http.console.texts.command_lines import reaching
from app.http.console.texts.runbooks import Runbook, runbook_of

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER: Final = Path(__file__).parent
ASSETS: Final = "/console/assets/"
RUNBOOKS: Final = (FOLDER / "runbooks", FOLDER.parents[2] / "docs" / "runbooks")
"""Of an installed wheel, and of a checkout."""
PAGES: Final = (
    ("overview", "/", "Overview", "o"),
    ("topics", "/console/topics", "Topics", "t"),
    ("groups", "/console/groups", "Groups", "g"),
    ("brokers", "/console/brokers", "Brokers", "b"),
    ("store", "/console/store", "Store", "d"),
    ("schemas", "/console/schemas", "Schemas", "s"),
    ("transactions", "/console/transactions", "Transactions", "x"),
    ("access", "/console/access", "Access", "a"),
    ("cost", "/console/cost", "Cost", "c"),
)
"""The pages that each page leads to: section, URL, name, and the key that opens it after ``g``."""
LIVE_S: Final = 2.0
_KINDS: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file."""

    kind: str
    content: bytes


class Console:
    """Templates and static files, loaded when the first page is asked for, and the sessions."""

    def __init__(
        self, clock: Clock, *, encrypted: bool = False, read_only: bool = False, masks: Iterable[tuple[str, str]] = ()
    ) -> None:
        """``encrypted``: whether a proxy in front encrypts. ``read_only``: whether each change is refused. ``masks``: of fields
        of messages, as ``parse_masks`` returns them."""
        self.clock = clock
        self.masks: Final = Masks(masks)
        self.read_only: Final = read_only
        self.sessions = Sessions(encrypted=encrypted)
        self.live: AskedOnce[Any] = AskedOnce(keeps=True, kept_s=LIVE_S)
        """The numbers for the script of the first page, which all callers share who may describe the cluster."""
        self.measured: AskedOnce[Any] = AskedOnce(keeps=True, kept_s=LIVE_S)
        """Measurements of topics by brokers in the last hour, shared as ``live`` is."""
        self._environment: Environment | None = None
        self._assets: Mapping[str, Asset] = {}
        self._runbooks: Mapping[str, Runbook] = {}

    @cached_property
    def installed(self) -> bool:
        """Whether the extra ``console`` is there."""
        return importlib.util.find_spec("jinja2") is not None

    async def environment(self) -> Environment:
        """The templates. They are compiled in a thread, because that takes longer than a portion."""
        if self._environment is not None:
            return self._environment
        self._assets, self._runbooks, environment = await asyncio.to_thread(_load)
        self._environment = environment
        return environment

    async def asset(self, name: str) -> Asset | None:
        """The static file of that name, which has the hash of its content."""
        if not self._assets:
            await self.environment()
        return self._assets.get(name)

    async def runbooks(self) -> Mapping[str, Runbook]:
        """The runbooks by their names."""
        await self.environment()
        return self._runbooks


@cache
def _load() -> tuple[Mapping[str, Asset], Mapping[str, Runbook], Environment]:
    """Static files, runbooks and compiled templates, which all consoles of a process share: they take a quarter of a second."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    assets: dict[str, Asset] = {}
    urls: dict[str, str] = {}
    for path in sorted((FOLDER / "assets").iterdir()):
        content = path.read_bytes()
        name = f"{path.stem}.{sha256(content).hexdigest()[:12]}{path.suffix}"
        assets[name] = Asset(_KINDS[path.suffix], content)
        urls[path.name] = ASSETS + name
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": formats.size,
        "number": formats.number,
        "duration": formats.duration,
        "instant": formats.instant,
        "readable": formats.readable,
        "part": lambda text: quote(text, safe=""),
        "breakable": lambda text: escape(formats.readable(text)).replace(".", Markup(".<wbr>")),
    }
    environment.globals |= {
        "urls": urls,
        "pages": PAGES,
        "many": formats.many,
        "ago": formats.ago,
        "shell": formats.shell,
        "reaching": reaching,
        "setting": formats.setting,
        "otherwise": otherwise,
    }
    for name in environment.list_templates():
        environment.get_template(name)
    return assets, _runbooks(), environment


def _runbooks() -> Mapping[str, Runbook]:
    folder = next((one for one in RUNBOOKS if one.is_dir()), None)
    if folder is None:
        return {}
    paths = (path for path in sorted(folder.glob("*.md")) if path.stem != "README")
    return {path.stem: runbook_of(path.stem, path.read_text("utf-8")) for path in paths}
