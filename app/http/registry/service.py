"""Registers, looks up, compares and deletes schemas. Each request reads the log to its end, decides, and appends at that end only.

A write that loses against another writer reads on and decides again. Its records belong to one end of the log, so that no id can be
given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from app.core.errors import BrokerUnavailable
from app.core.turns import Portion, run
from app.http.registry.followed import FollowedLog
from app.http.registry.parsing_work import COMPARED_STEPS_MAX, ParsingWork
from app.registry.compatibility.levels import Level
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import Format, ParsedSchema, SchemaType, forms_of
from app.registry.refusals import Code, RegistryRefusal, SchemaInvalid
from app.registry.registering import (
    Append,
    Registered,
    SchemaRequest,
    check_mode,
    completed,
    is_same,
    of_group,
    referenced,
    register,
    subject_not_found,
    wanted_content,
    with_extras,
    with_layers,
    with_text,
)
from app.registry.schema_log import EndMoved
from app.registry.sources import source_of
from app.registry.subjects import check_subject
from app.registry.view import Mode, Version, View

T = TypeVar("T")
TRIES_MAX: Final = 50
"""Appends that one request tries. The leader of the log lets a caller go first after three losses."""


class Judged(NamedTuple):
    """The schema of a request, and the version that has it."""

    parsed: ParsedSchema
    same: Version | None
    """The version of the subject that has this schema already."""


class SchemaService:
    """The registry as one caller uses it."""

    def __init__(self, followed: FollowedLog, work: ParsingWork) -> None:
        self._followed = followed
        self._work = work

    async def view(self) -> View:
        """The registry as it is now: the end of its log is asked for after this call. Raises: FirnError."""
        return await self._followed.refreshed()

    async def model_of_id(self, context: str, schema_id: int) -> ParsedSchema | None:
        """The model of a schema; None if there is none with this id, or if its text cannot be read.

        An id that was found once is found without the broker for ``KEPT_S``. Raises: ParserMissing, FirnError.
        """
        view = await self._followed.recent()
        version = view.schema(context, schema_id)
        if version is None:
            view = await self._followed.refreshed()
            version = view.schema(context, schema_id)
        return None if version is None else await self.model_of(view, version)

    async def recent_view(self) -> View:
        """The registry as it was ``KEPT_S`` ago, or later. Raises: FirnError."""
        return await self._followed.recent()

    async def read(self, kind: SchemaType, text: str) -> ParsedSchema:
        """The model of a text that refers to no others. Raises: RegistryRefusal, ParserMissing."""
        try:
            return await self._work.parsed((kind, text, ()), is_new=True)
        except SchemaInvalid as error:
            raise _invalid(error) from None

    # --- schemas ------------------------------------------------------------------------------------------------------

    async def register(self, asked: SchemaRequest) -> Registered:
        """Register a schema. Raises: RegistryRefusal, ParserMissing, FirnError."""
        for _ in range(TRIES_MAX):
            view = await self.view()
            asked_now = with_layers(view, _configured(view, asked))
            check_subject(asked_now.subject)
            check_mode(view, asked_now)
            end = view.end
            judged = await self._judged(view, asked_now)
            if judged.same is None and view.mode(asked_now.subject) is not Mode.IMPORT:
                await self._check_compatible(view, asked_now, judged.parsed)
            if view.end != end:
                continue  # another request has read on while this one was parsing
            registered = register(view, completed(view, asked_now), judged.parsed, judged.same)
            if registered.append is None or await self._appended(end, registered.append):
                return registered
        raise _busy()

    async def look_up(self, asked: SchemaRequest, *, deleted: bool) -> tuple[View, Version]:
        """The version of the subject that has a schema, and its view. Raises: RegistryRefusal, ParserMissing, FirnError."""
        view = await self.view()
        asked = _configured(view, asked)
        name = asked.subject.qualified
        if not view.versions(name, deleted=deleted):
            raise subject_not_found(name)
        found = await self._judged(view, asked, deleted=deleted)
        if found.same is None:
            raise RegistryRefusal(Code.SCHEMA_NOT_FOUND, "Schema not found.")
        return view, found.same

    async def check(self, asked: SchemaRequest, against: Callable[[View], Sequence[Version] | None]) -> list[str]:
        """Why a schema is not compatible; empty if it is. ``against`` gives the versions to compare with, or None for those that
        the subject's level compares.

        Raises: RegistryRefusal, ParserMissing, FirnError.
        """
        view = await self.view()
        asked = _configured(view, asked)
        versions = against(view)
        if versions is None:
            versions = view.versions(asked.subject.qualified)
        parsed = await self._parsed(view, asked)
        versions = await run(of_group(view, asked, versions))
        return await self._incompatibilities(view, view.level(asked.subject), parsed, versions)

    async def model_of(self, view: View, version: Version) -> ParsedSchema | None:
        """The model of a stored version, None if its text cannot be read. Raises: ParserMissing."""
        source = source_of(view, version)
        return None if source is None else (await self._work.readable([source]))[0]

    async def in_form(self, view: View, version: Version, form: Format | None) -> Version:
        """A stored version whose text is in another form, if its type has this form. Raises: ParserMissing."""
        if form is None or form not in forms_of(version.stored.schema_type):
            return version
        source = source_of(view, version)
        text = None if source is None else await self._work.formatted(source, form)
        if text is None:
            return version
        return version._replace(stored=version.stored._replace(schema=text, guid=version.guid))

    async def _judged(self, view: View, asked: SchemaRequest, *, deleted: bool = False) -> Judged:
        parsed = await self._parsed(view, asked)
        versions = view.versions(asked.subject.qualified, deleted=deleted)
        same = await self._same(view, asked, parsed, versions)
        if same is None and asked.id is None:
            if asked.metadata is None and asked.rule_set is None:
                # A serialiser knows the text alone, and must find the schema that has rules.
                same = await self._same(view, asked, parsed, await run(with_extras(versions)), extras=False)
                same = same or await self._written_out(view, asked, parsed, versions)
            elif (whole_one := completed(view, asked)) != asked:
                same = await self._same(view, whole_one, parsed, versions)
        return Judged(parsed, same)

    async def _same(
        self,
        view: View,
        asked: SchemaRequest,
        parsed: ParsedSchema,
        versions: Sequence[Version],
        *,
        extras: bool = True,
    ) -> Version | None:
        """The newest version that has a schema. Without ``extras``, its metadata and rules do not matter."""
        portion = Portion()
        wanted = wanted_content(view, asked, parsed)
        same, others = await run(with_text(versions, wanted, extras=extras), portion)
        if same is not None:
            return same
        # Other registries store texts as they were sent, and a normalised text may equal several canonical ones.
        for version in others:
            model = await self.model_of(view, version)
            if model is not None and is_same(asked, parsed, model):
                return version
            await portion.rest_if_spent()
        return None

    async def _written_out(
        self, view: View, asked: SchemaRequest, parsed: ParsedSchema, versions: Sequence[Version]
    ) -> Version | None:
        """The newest version that has the schema of a request with some of its types in references. Classes that were generated
        from such a version have the schema with all types in it."""
        if asked.references or asked.schema_type is not SchemaType.AVRO:
            return None
        portion = Portion()
        for version in versions[::-1]:
            await portion.rest_if_spent()
            if not version.stored.references or version.stored.schema_type != SchemaType.AVRO.value:
                continue
            text = (await self.in_form(view, version, Format.RESOLVED)).stored.schema
            model = (await self._work.readable([(SchemaType.AVRO, text, ())]))[0]
            if model is not None and is_same(asked, parsed, model):
                return version
        return None

    async def _parsed(self, view: View, asked: SchemaRequest) -> ParsedSchema:
        named = referenced(view, asked.subject, asked.references)
        try:
            return await self._work.parsed((asked.schema_type, asked.schema, tuple(named)), is_new=True)
        except SchemaInvalid as error:
            raise _invalid(error) from None

    async def _check_compatible(self, view: View, asked: SchemaRequest, parsed: ParsedSchema) -> None:
        name = asked.subject.qualified
        level = view.level(asked.subject)
        versions = await run(of_group(view, asked, view.versions(name)))
        found = await self._incompatibilities(view, level, parsed, versions)
        if found:
            raise RegistryRefusal(
                Code.INCOMPATIBLE,
                f"The schema is incompatible with an earlier schema for subject {name!r}, by the level {level}. {' '.join(found)}",
            )

    async def _incompatibilities(
        self, view: View, level: Level, new: ParsedSchema, versions: Sequence[Version]
    ) -> list[str]:
        if level is Level.NONE:
            return []
        steps, portion = StepBudget(COMPARED_STEPS_MAX), Portion()
        for version in reversed(versions if level.transitive else versions[-1:]):
            await portion.rest_if_spent()
            named = f"version {version.stored.version}"
            model = await self.model_of(view, version)
            if model is None:
                return [
                    f"The schema of {named} cannot be read. Set the level to NONE to register without a comparison."
                ]
            try:
                found = await self._work.incompatibilities(level, new, (named, model), steps)
            except SchemaInvalid as error:
                raise _invalid(error) from None
            if found:
                return found
        return []

    # --- other writes -------------------------------------------------------------------------------------------------

    async def write(self, decide: Callable[[View], tuple[T, Append]]) -> T:
        """Append the records that ``decide`` gives at the end of the log. Returns: its other result.

        Raises: RegistryRefusal as ``decide``, FirnError.
        """
        for _ in range(TRIES_MAX):
            view = await self.view()
            result, append = decide(view)
            if await self._appended(view.end, append):
                return result
        raise _busy()

    async def _appended(self, end: int, append: Append) -> bool:
        try:
            await self._followed.log.append(end, append.subject, append.records)
        except EndMoved:
            return False
        self._followed.appended()
        return True


def _configured(view: View, asked: SchemaRequest) -> SchemaRequest:
    """The request for the subject that it means, normalised if a config asks for it."""
    asked = asked._replace(subject=view.meant(asked.subject))
    if asked.normalize or view.setting(asked.subject, "normalize") is not True:
        return asked
    return asked._replace(normalize=True)


def _invalid(error: SchemaInvalid) -> RegistryRefusal:
    return RegistryRefusal(Code.INVALID_SCHEMA, f"Invalid schema: {error}.")


def _busy() -> BrokerUnavailable:
    return BrokerUnavailable("Other writers append to the topic _schemas all the time. Try again in a moment.")
