"""The schema registry as this broker has read it, for the check of produced records (ADR 0044).

The log is read when batches need it, and not before. Batches with unknown ids wait for a read that begins after they came. All that
wait then share it. Tests: ``tests/schemas/test_following_model.py``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, TypeAlias

from app.core.errors import ErrorCode, FirnError, ProtocolError, RequestRejected, clause, without_frames
from app.core.limits import MIB
from app.core.seams import BlockingPool
from app.core.turns import Portion
from app.registry.parsing.schemas import ParsedSchema, cost_of, parse
from app.registry.payloads.prefix import SchemaRef
from app.registry.refusals import ParserMissing, SchemaInvalid
from app.registry.sources import Source, source_of
from app.registry.view import Version, View
from app.schemas.knowing import Naming, RecordNames, known
from app.schemas.registry_reads import LogRead

READ_EVERY_S: Final = 0.05
"""Between the begins of two reads: 20 a second for all unknown ids (SV4)."""
RETRY_S: Final = 1.0
"""After a read that failed."""
WAIT_S: Final = 5.0
"""How long a batch waits for a read (SV5)."""
READ_MAX_S: Final = 60.0
"""One read to the end. 100,000 schemas take two to three seconds."""
AGE_MAX_S: Final = 30.0
"""A view that was read longer ago is read on before it counts (SV6)."""
FOUND_MAX: Final = 10_000
"""Uses whose versions are kept in memory, until the log is read on."""
VIEW_BYTES_MAX: Final = 512 * MIB
"""Memory of the view, roughly."""
VERSION_BYTES: Final = 1_300
"""Of a version beside its text."""
MODELS_CHARS_MAX: Final = 4_000_000
"""Of the texts whose models are kept. A model needs about ten times as many bytes."""
BATCH_CHARS_MAX: Final = 2_000_000
"""Of the texts whose models one batch needs. The longest schema with the longest references has as many."""

SchemaAsked: TypeAlias = tuple[Naming, SchemaRef]
"""A schema that records name, and where its subject is looked for."""


class SchemaFollower:
    """The registry on a broker that checks schemas. Belongs to its loop; keep ``run`` running."""

    def __init__(self, read: Callable[[int], Awaitable[LogRead]], pool: BlockingPool) -> None:
        self._read = read
        self._pool = pool
        self._view = View()
        self._history = ""
        self._too_large: str | None = None
        """The history whose view would be too large. It is not read on, because each try would add to the view."""
        self._read_at_s: float | None = None
        """When the newest read began that came to the end."""
        self._tried_at_s = float("-inf")
        """When the newest read began."""
        self._failed_at_s = float("-inf")
        self._failing = False
        """Whether the newest read failed."""
        self._waiting: list[asyncio.Future[FirnError | None]] = []
        """Batches for which the next read will be."""
        self._asked = asyncio.Event()
        self._found: dict[tuple[Naming, SchemaRef], Version] = {}
        self._names = RecordNames()
        self._models: OrderedDict[Source, ParsedSchema | None] = OrderedDict()
        self._chars = 0

    # --- questions of batches -----------------------------------------------------------------------------------------

    async def versions(self, uses: Collection[SchemaAsked]) -> dict[SchemaAsked, Version | None]:
        """The version that knows each use; None for a use that is unknown at an end of the log that was learned after this call.

        Raises: RequestRejected NOT_ENOUGH_REPLICAS if a use is unknown and the log cannot be read now.
        """
        found: dict[SchemaAsked, Version | None] = {}
        if self._is_old():
            if self._failing and self._read_at_s is not None:
                self._asked.set()  # known ids count, and do not wait for each try
            else:
                error = await self._refreshed()
                left = await self._look(uses, found)
                if error is not None and left:
                    raise _unreadable(error)
                return found
        left = await self._look(uses, found)
        if left:
            error = await self._refreshed()
            if error is not None:
                raise _unreadable(error)
            await self._look(left, found)
        return found

    async def model(self, version: Version) -> ParsedSchema | None:
        """The schema of a version; None if this broker cannot read its text."""
        return await self._model(source_of(self._view, version))

    async def models(self, versions: Iterable[Version]) -> list[ParsedSchema | None]:
        """As ``model``, of the versions that one batch names.

        Raises: ProtocolError INVALID_RECORD if their texts have more than ``BATCH_CHARS_MAX`` characters together.
        """
        portion = Portion()
        sources = []
        chars = 0
        for version in versions:
            source = source_of(self._view, version)
            chars += 0 if source is None else _chars(source)
            if chars > BATCH_CHARS_MAX:
                raise ProtocolError(
                    f"The schemas that the records of the batch name have more than {BATCH_CHARS_MAX} characters together. Send "
                    f"records with different schemas in different batches, or set firn.schema.validation=id.",
                    ErrorCode.INVALID_RECORD,
                )
            sources.append(source)
            await portion.rest_if_spent()
        return [await self._model(source) for source in sources]

    async def _model(self, source: Source | None) -> ParsedSchema | None:
        if source is None:
            return None
        if source in self._models:
            self._models.move_to_end(source)
            return self._models[source]
        kind, text, named = source

        def read() -> ParsedSchema | None:
            try:
                return parse(kind, text, named, is_new=False)
            except (SchemaInvalid, ParserMissing):
                return None

        made = await self._pool.run(read)
        self._keep(source, made)
        return made

    def _keep(self, source: Source, made: ParsedSchema | None) -> None:
        if source in self._models:
            return
        self._models[source] = made
        self._chars += _chars(source) + cost_of(made)
        while self._chars > MODELS_CHARS_MAX:
            gone, model = self._models.popitem(last=False)
            self._chars -= _chars(gone) + cost_of(model)

    async def _look(self, uses: Iterable[SchemaAsked], found: dict[SchemaAsked, Version | None]) -> list[SchemaAsked]:
        """Add the versions that the view has to ``found``. Returns: the uses without one."""
        portion = Portion()
        left = []
        for use in uses:
            version = found[use] = self._version(*use)
            if version is None:
                left.append(use)
            await portion.rest_if_spent()
        return left

    def _version(self, naming: Naming, ref: SchemaRef) -> Version | None:
        found = self._found.get((naming, ref))
        if found is None:
            found = known(self._view, naming, ref, self._names)
            if found is not None:
                if len(self._found) >= FOUND_MAX:
                    self._found.clear()
                self._found[naming, ref] = found
        return found

    # --- reads --------------------------------------------------------------------------------------------------------

    def _is_old(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return self._read_at_s is None or now_s - self._read_at_s > AGE_MAX_S

    async def _refreshed(self) -> FirnError | None:
        """Wait for a read that has not begun yet. Returns: why it failed, None if it came to the end."""
        mine: asyncio.Future[FirnError | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self._asked.set()
        try:
            async with asyncio.timeout(WAIT_S):
                return await mine
        except TimeoutError:
            return RequestRejected(ErrorCode.REQUEST_TIMED_OUT, f"A read took longer than {WAIT_S:g} s.")
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)

    async def run(self) -> None:
        """Read the log when batches ask for it, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._asked.wait()
            next_s = max(self._tried_at_s + READ_EVERY_S, self._failed_at_s + RETRY_S)
            if next_s > loop.time():
                await asyncio.sleep(next_s - loop.time())
            self._asked.clear()
            waiting, self._waiting = self._waiting, []
            self._tried_at_s = loop.time()
            error: FirnError | None = None
            try:
                async with asyncio.timeout(READ_MAX_S):
                    await self._read_on()
            except FirnError as raised:
                error = without_frames(raised)
            except TimeoutError:
                error = RequestRejected(ErrorCode.REQUEST_TIMED_OUT, f"A read took longer than {READ_MAX_S:g} s.")
            self._failing = error is not None
            if error is None:
                self._read_at_s = self._tried_at_s
            else:
                self._failed_at_s = loop.time()
            for one in waiting:
                if not one.done():
                    one.set_result(error)

    async def _read_on(self) -> None:
        """Read to the end. Raises: FirnError."""
        view = self._view
        history = self._history
        portion = Portion()
        while True:
            read = await self._read(view.end)
            if read.history == self._too_large:
                raise _too_large()  # nothing more of it is taken
            if view.end and (read.history != history or read.end < view.end):
                view = View()  # the log has lost its end, or was made anew (SV7)
                continue
            history = read.history
            for entry in read.entries:
                view.take(entry)
                if portion.spent_by():
                    await portion.rest()
            view.reached(read.end)
            if view.chars + view.version_count * VERSION_BYTES > VIEW_BYTES_MAX:
                self._too_large = history
                if view is self._view:
                    self._found.clear()
                raise _too_large()
            if view is self._view:
                self._history = history
                self._found.clear()
            if read.whole:
                break
        self._view, self._history = view, history
        self._found.clear()


def _too_large() -> RequestRejected:
    return RequestRejected(
        ErrorCode.POLICY_VIOLATION,
        f"The registry has more than {VIEW_BYTES_MAX} bytes, so brokers do not check schemas by it. Delete schemas for good, and "
        f"restart the brokers once the log is compacted.",
    )


def _unreadable(error: FirnError) -> RequestRejected:
    return RequestRejected(
        ErrorCode.NOT_ENOUGH_REPLICAS,
        f"Whether the registry knows the schema is not known yet, because its log cannot be read: {clause(error)}. Try again.",
    )


def _chars(source: Source) -> int:
    return len(source[1]) + sum(len(one.text) for one in source[2])
