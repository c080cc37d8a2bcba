"""Parsing and comparing schemas in threads, a few at a time. Tests: ``tests/http/registry/test_service.py``.

The work of one call is bounded by ``app/registry/parsing/limits.py``. The newest models are kept, because a subject's earlier
versions are compared with each new one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from app.registry.compatibility.levels import Level, incompatibilities
from app.registry.parsing.limits import STEPS_MAX, StepBudget
from app.registry.parsing.schemas import Format, ParsedSchema, cost_of, formatted, parse
from app.registry.refusals import SchemaInvalid
from app.registry.sources import Source

T = TypeVar("T")
THREADS_MAX: Final = 2
"""Calls at a time. Others wait."""
KEPT_CHARS_MAX: Final = 4_000_000
"""Of the texts whose models are kept, with ``cost_of`` each model. A model needs about ten times as many bytes."""
COMPARED_STEPS_MAX: Final = 10 * STEPS_MAX
"""Of all comparisons of one request."""


class ParsingWork:
    """The parsing of one process."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(THREADS_MAX)
        self._kept: OrderedDict[tuple[bool, Source], ParsedSchema] = OrderedDict()
        """By whether the checks of new schemas were made, and by source."""
        self._chars = 0

    async def parsed(self, source: Source, *, is_new: bool) -> ParsedSchema:
        """A schema's model. Raises: SchemaInvalid, ParserMissing."""
        kind, text, named = source
        found = self._kept.get((True, source)) or self._kept.get((is_new, source))
        if found is not None:
            return found
        made = await self._in_thread(lambda: parse(kind, text, named, is_new=is_new))
        self._keep((is_new, source), made)
        return made

    async def readable(self, sources: Sequence[Source]) -> list[ParsedSchema | None]:
        """Models of stored schemas; None for a text that cannot be read. Raises: ParserMissing."""
        made: list[ParsedSchema | None] = []
        for source in sources:
            try:
                made.append(await self.parsed(source, is_new=False))
            except SchemaInvalid:
                made.append(None)
        return made

    async def formatted(self, source: Source, form: Format) -> str | None:
        """The text of a stored schema in a form of its type; None if its text cannot be read. Raises: ParserMissing."""
        try:
            made = await self.parsed(source, is_new=False)
        except SchemaInvalid:
            return None
        return await self._in_thread(lambda: formatted(made, form))

    async def incompatibilities(
        self, level: Level, new: ParsedSchema, earlier: tuple[str, ParsedSchema], steps: StepBudget
    ) -> list[str]:
        """As the function of this name, for one earlier schema. Raises: TooComplex."""
        return await self._in_thread(lambda: incompatibilities(level, new, [earlier], steps))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._turns:
            return await asyncio.to_thread(work)

    def _keep(self, key: tuple[bool, Source], made: ParsedSchema) -> None:
        chars = _chars(key[1])
        if chars > KEPT_CHARS_MAX // 4 or key in self._kept:
            return
        self._kept[key] = made
        self._chars += chars + cost_of(made)
        while self._chars > KEPT_CHARS_MAX:
            (_, gone), model = self._kept.popitem(last=False)
            self._chars -= _chars(gone) + cost_of(model)


def _chars(source: Source) -> int:
    return len(source[1]) + sum(len(one.text) for one in source[2])
