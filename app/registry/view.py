"""The registry's state, made by replay of `_schemas`: subjects, versions, ids, references, configs and modes.

The view takes in entries in the order of the log and can say nothing else. Entries that cannot be read, and those of unknown kinds,
are skipped and counted: a malformed record must not stop the registry. Of two records for one key in different forms the later one
counts. The forms that are present are kept, because a delete must cover all of them (``forms``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from enum import StrEnum
from itertools import chain
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from app.core.turns import STRIDE, Steps
from app.registry.compatibility.levels import Level
from app.registry.ownership import Ownership, ownership_of
from app.registry.record_json import (
    Key,
    KeyType,
    Malformed,
    Reference,
    StoredSchema,
    read_config,
    read_deleted_version,
    read_key,
    read_mode,
    read_schema,
)
from app.registry.schema_log import Entry
from app.registry.subjects import DEFAULT_CONTEXT, Subject, read_subject

DEFAULT_LEVEL: Final = Level.BACKWARD


class Mode(StrEnum):
    """Which writes a subject takes."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"

    @property
    def is_read_only(self) -> bool:
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE)


class Content(NamedTuple):
    """Everything that makes two schemas the same one."""

    schema_type: str
    schema: str
    references: tuple[Reference, ...]
    extras: bytes
    """Metadata and rules as JSON; empty if there are none."""


class Version(NamedTuple):
    """One version of a subject."""

    stored: StoredSchema
    timestamp_ms: int

    @property
    def content(self) -> Content:
        stored = self.stored
        return content_of(stored.schema_type, stored.schema, stored.references, stored.metadata, stored.rule_set)

    @property
    def guid(self) -> str:
        """The same in every registry that holds the schema."""
        return self.stored.guid or guid_of(self.content)


def content_of(
    schema_type: str, schema: str, references: tuple[Reference, ...], metadata: Any = None, rule_set: Any = None
) -> Content:
    """The content of a schema with these parts."""
    extras = b"" if metadata is None and rule_set is None else msgspec.json.encode([metadata, rule_set], order="sorted")
    return Content(schema_type, schema, references, extras)


def has_properties(version: Version, wanted: Iterable[tuple[str, str]]) -> bool:
    """Whether the metadata of a version have all these properties, by key and value."""
    properties = properties_of(version.stored.metadata)
    return all(properties.get(key) == value for key, value in wanted)


def properties_of(metadata: Any) -> Mapping[str, Any]:
    """The properties in the metadata of a schema."""
    found = metadata.get("properties") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def has_rule(version: Version, types: Set[str]) -> bool:
    """Whether the rule set of a version has a rule of one of these types."""
    rule_set = version.stored.rule_set
    if not isinstance(rule_set, dict):
        return False
    rules = chain.from_iterable(one for one in rule_set.values() if isinstance(one, list))
    found = (rule.get("type") for rule in rules if isinstance(rule, dict))
    return any(isinstance(kind, str) and kind in types for kind in found)


def guid_of(content: Content) -> str:
    """A UUID that is made of a schema's content."""
    digest = hashlib.md5(content.schema.encode("utf-8", "surrogatepass"), usedforsecurity=False)
    digest.update(msgspec.json.encode([content.schema_type, content.references]))
    digest.update(content.extras)
    return str(UUID(bytes=digest.digest()))


class _Ids:
    """Ids of one context."""

    __slots__ = ("by_content", "by_guid", "greatest", "uses")

    def __init__(self) -> None:
        self.greatest = 0
        """The greatest id that a record of a schema ever had, as far as the log still says it."""
        self.uses: dict[int, dict[tuple[str, int], None]] = {}
        """Subjects and versions by id, in the order of the log."""
        self.by_content: dict[Content, int] = {}
        self.by_guid: dict[str, int] = {}


class View:
    """The state at ``end``."""

    def __init__(self) -> None:
        self.end = 0
        self.skipped = 0
        """Entries that could not be read or were of an unknown kind."""
        self.chars = 0
        """Characters of the texts of all versions."""
        self.version_count = 0
        self._subjects: dict[str, dict[int, Version]] = {}
        """By name: the versions in the order of their numbers."""
        self._live: dict[str, int] = {}
        """By name: versions that are not soft-deleted. A subject without any is missing."""
        self._ids: dict[str, _Ids] = {}
        self._configs: dict[str | None, Mapping[str, Any]] = {}
        self._modes: dict[str | None, str] = {}
        self._forms: dict[Key, tuple[bytes, ...]] = {}
        self._referrers: dict[tuple[str, int], dict[tuple[str, int], None]] = {}
        self._ownership: Ownership | None = None
        self._has_foreign = False

    # --- replay -------------------------------------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Take in the next entry."""
        self.end = max(self.end, entry.offset + 1)
        ownership = ownership_of(entry.key, entry.value)
        if ownership is not None:
            self._ownership = ownership
            return
        try:
            key = read_key(entry.key)
            self._apply(key, entry)
        except Malformed:
            self.skipped += 1
            return
        if key.kind is KeyType.NOOP:
            return
        if self._ownership is None:
            self._has_foreign = True
        others = tuple([form for form in self._forms.pop(key, ()) if form != entry.key])
        forms = others if entry.value is None else (*others, entry.key)
        if forms:
            self._forms[key] = forms

    def reached(self, end: int) -> None:
        """The log has no entries below ``end`` that were not taken in."""
        self.end = max(self.end, end)

    def _apply(self, key: Key, entry: Entry) -> None:
        """Raises: Malformed."""
        value = entry.value
        match key.kind:
            case KeyType.SCHEMA:
                assert key.subject is not None
                if value is None:
                    self._drop(key.subject, key.version)
                else:
                    self._put(Version(read_schema(value, key), entry.timestamp_ms))
            case KeyType.CONFIG:
                if value is None:
                    self._configs.pop(key.subject, None)
                else:
                    self._configs[key.subject] = read_config(value)
            case KeyType.MODE:
                if value is None:
                    self._modes.pop(key.subject, None)
                else:
                    self._modes[key.subject] = read_mode(value)
            case KeyType.DELETE_SUBJECT:
                if value is not None:
                    self._soft_delete(key.subject or "", read_deleted_version(value))
            case KeyType.CLEAR_SUBJECT:
                if value is not None:
                    self._clear(key.subject)
            case KeyType.NOOP:
                pass

    def _put(self, version: Version) -> None:
        stored = version.stored
        own = stored.subject, stored.version
        context, content = read_subject(stored.subject).context, version.content
        before = self._subjects.get(stored.subject, {}).get(stored.version)
        if before is not None and (before.stored.id, before.content) != (stored.id, content):
            self._drop(*own)
            before = None
        self._place(version, before)
        ids = self._ids.setdefault(context, _Ids())
        ids.greatest = max(ids.greatest, stored.id)
        ids.uses.setdefault(stored.id, {})[own] = None
        ids.by_content.setdefault(content, stored.id)
        ids.by_guid.setdefault(stored.guid or guid_of(content), stored.id)
        for one in stored.references:
            target = read_subject(one.subject, context).qualified
            self._referrers.setdefault((target, one.version), {})[own] = None

    def _place(self, version: Version, before: Version | None) -> None:
        stored = version.stored
        versions = self._subjects.setdefault(stored.subject, {})
        last = next(reversed(versions), 0)
        versions[stored.version] = version
        if before is None:
            self.chars += len(stored.schema)
            self.version_count += 1
            if stored.version < last:
                self._subjects[stored.subject] = dict(sorted(versions.items()))
        was_live = before is not None and not before.stored.deleted
        self._count_live(stored.subject, (not stored.deleted) - was_live)

    def _count_live(self, subject: str, change: int) -> None:
        count = self._live.get(subject, 0) + change
        if count:
            self._live[subject] = count
        else:
            self._live.pop(subject, None)

    def _drop(self, subject: str, version: int) -> None:
        versions = self._subjects.get(subject, {})
        gone = versions.pop(version, None)
        if gone is None:
            return
        self.chars -= len(gone.stored.schema)
        self.version_count -= 1
        if not gone.stored.deleted:
            self._count_live(subject, -1)
        if not versions:
            del self._subjects[subject]
        context = read_subject(subject).context
        ids = self._ids[context]
        uses = ids.uses[gone.stored.id]
        uses.pop((subject, version), None)
        if not uses:
            del ids.uses[gone.stored.id]
            if ids.by_content.get(gone.content) == gone.stored.id:
                del ids.by_content[gone.content]
            if ids.by_guid.get(gone.guid) == gone.stored.id:
                del ids.by_guid[gone.guid]
        for one in gone.stored.references:
            target = read_subject(one.subject, context).qualified, one.version
            referrers = self._referrers.get(target, {})
            referrers.pop((subject, version), None)
            if not referrers:
                self._referrers.pop(target, None)

    def _soft_delete(self, subject: str, version_max: int) -> None:
        versions = self._subjects.get(subject, {})
        for number, version in versions.items():
            if number <= version_max and not version.stored.deleted:
                versions[number] = version._replace(stored=version.stored._replace(deleted=True))
                self._count_live(subject, -1)

    def _clear(self, subject: str | None) -> None:
        for name in [subject] if subject is not None else list(self._subjects):
            for number, version in list(self._subjects.get(name, {}).items()):
                if version.stored.deleted:
                    self._drop(name, number)

    # --- subjects and versions ----------------------------------------------------------------------------------------

    def subjects(self, *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Qualified names, in no order. With ``deleted``, also those that have soft-deleted versions only; with
        ``deleted_only``, those alone."""
        if deleted_only:
            return [name for name in self._subjects if name not in self._live]
        return list(self._subjects if deleted else self._live)

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """The versions of a subject in the order of their numbers."""
        found = self._subjects.get(subject, {})
        return [one for one in found.values() if deleted or not one.stored.deleted]

    def newest(self, subject: str) -> Version | None:
        """The version of a subject with the greatest number that is not soft-deleted."""
        return next((one for one in reversed(self._subjects.get(subject, {}).values()) if not one.stored.deleted), None)

    def version(self, subject: str, number: int) -> Version | None:
        """One version, also a soft-deleted one."""
        return self._subjects.get(subject, {}).get(number)

    def contexts(self) -> set[str]:
        """The contexts that hold schemas, and the default one."""
        return {DEFAULT_CONTEXT, *(context for context, ids in self._ids.items() if ids.uses)}

    def has_schemas(self, context: str | None) -> bool:
        """Whether a context has schemas, also soft-deleted ones; with None, whether any has."""
        if context is None:
            return bool(self._subjects)
        ids = self._ids.get(context)
        return ids is not None and bool(ids.uses)

    def referrers(self, subject: str, number: int, *, deleted: bool = False) -> Iterator[Version]:
        """The versions that refer to a version and are not soft-deleted; with ``deleted``, also those that are.

        The view may read on between two of them."""
        for own in list(self._referrers.get((subject, number), ())):
            one = self.version(*own)
            if one is not None and (deleted or not one.stored.deleted):
                yield one

    def count_referrers(self, subject: str, number: int, named_max: int) -> Steps[tuple[int, list[Version]]]:
        """How many versions ``referrers`` has, and the first ones of them, as work in steps."""
        count = 0
        named: list[Version] = []
        for place, own in enumerate(list(self._referrers.get((subject, number), ()))):
            one = self.version(*own)
            if one is not None and not one.stored.deleted:
                count += 1
                if len(named) < named_max:
                    named.append(one)
            if place % STRIDE == 0:
                yield
        return count, named

    # --- ids ----------------------------------------------------------------------------------------------------------

    def uses(self, context: str, number: int) -> list[tuple[str, int]]:
        """The subjects and versions that have an id, also soft-deleted ones."""
        ids = self._ids.get(context)
        return [] if ids is None else list(ids.uses.get(number, ()))

    def schema(self, context: str, number: int) -> Version | None:
        """A version that has an id, also a soft-deleted one."""
        ids = self._ids.get(context)
        own = None if ids is None else next(iter(ids.uses.get(number, ())), None)
        return None if own is None else self.version(*own)

    def with_id(self, subject: str, number: int) -> Version | None:
        """The newest version that has an id and is not soft-deleted, of the subject that a name means."""
        meant = self.meant(read_subject(subject))
        subject = meant.qualified
        versions = self._subjects.get(subject, {})
        ids = self._ids.get(meant.context)
        uses = {} if ids is None else ids.uses.get(number, {})
        if len(uses) < len(versions):
            found = [place for name, place in uses if name == subject]
            places: Iterable[int] = sorted(found, reverse=True)
        else:
            places = reversed(versions)
        for place in places:
            version = versions.get(place)
            if version is not None and version.stored.id == number and not version.stored.deleted:
                return version
        return None

    def id_of_guid(self, context: str, guid: str) -> int | None:
        """The id that a context's schema with this GUID has."""
        ids = self._ids.get(context)
        return None if ids is None else ids.by_guid.get(guid)

    def id_of(self, context: str, content: Content) -> int | None:
        """The id that a context's schema with this content has."""
        ids = self._ids.get(context)
        return None if ids is None else ids.by_content.get(content)

    def greatest_id(self, context: str) -> int:
        """The greatest id that the context may ever have given, as far as the log and its leader say it."""
        ids = self._ids.get(context)
        seen = 0 if ids is None else ids.greatest
        return seen if self._ownership is None else max(seen, self._ownership.greatest_of(context))

    def by_guid(self, guid: str) -> list[Version]:
        """One version for each context that has the schema."""
        numbers = [(context, ids.by_guid[guid]) for context, ids in self._ids.items() if guid in ids.by_guid]
        found = (self.schema(*one) for one in numbers)
        return [one for one in found if one is not None]

    # --- settings -----------------------------------------------------------------------------------------------------

    @property
    def is_foreign(self) -> bool:
        """Whether another registry wrote the log and Firn did not yet."""
        return self._has_foreign and self._ownership is None

    def config(self, name: str | None) -> Mapping[str, Any] | None:
        """The config that was set for a subject, a context (``:.name:``) or, with None, for all."""
        return self._configs.get(name)

    def aliases(self) -> Iterator[tuple[Subject, str]]:
        """The subjects whose config has an alias, and the subjects that they stand for, in no order.

        The view may read on between two of them."""
        for name in list(self._configs):
            subject = read_subject(name or "")
            if (meant := self.meant(subject)) != subject:
                yield subject, meant.qualified

    def meant(self, subject: Subject) -> Subject:
        """The subject that a request means by a name: the alias in the name's own config, or else the name itself.

        An alias is in the context of the name, because ids belong to contexts. An alias of an alias is not looked up.
        """
        config = self._configs.get(subject.qualified) if subject.name else None
        alias = None if config is None else config.get("alias")
        found = read_subject(alias, subject.context) if isinstance(alias, str) else subject
        return found if found.name and found.context == subject.context else subject

    def mode_set(self, name: str | None) -> str | None:
        """The mode that was set, as ``config``."""
        return self._modes.get(name)

    def subjects_with_mode(self, context: str) -> Iterator[str | None]:
        """The subjects of a context that have a mode of their own, in no order. Other names are None: work has portions.

        The view may read on between two of them."""
        for name in list(self._modes):
            subject = read_subject(name or "")
            yield name if subject.name and subject.context == context else None

    def level(self, subject: Subject) -> Level:
        """The level that holds for a subject."""
        for name in scopes(subject):
            found = self._configs.get(name, {}).get("compatibilityLevel")
            if isinstance(found, str) and found in Level.__members__:
                return Level(found)
        return DEFAULT_LEVEL

    def setting(self, subject: Subject, member: str) -> Any:
        """A member of the nearest config that has it; None if no config has."""
        for name in scopes(subject):
            found = self._configs.get(name, {}).get(member)
            if found is not None:
                return found
        return None

    def mode(self, subject: Subject | None) -> Mode:
        """The mode that holds for a subject, or for all."""
        if self.is_foreign:
            return Mode.READONLY
        everywhere = self._modes.get(None)
        if everywhere == Mode.READONLY_OVERRIDE:
            return Mode.READONLY_OVERRIDE
        for name in (None,) if subject is None else scopes(subject):
            found = self._modes.get(name)
            if found is not None and found in Mode.__members__:
                return Mode(found)
        return Mode.READWRITE

    def forms(self, key: Key) -> list[bytes]:
        """The bytes of every form in which a key is in the log."""
        return list(self._forms.get(key, ()))


def scopes(subject: Subject) -> tuple[str | None, ...]:
    """The names that a subject's settings may have, the nearest one first."""
    of_context = () if subject.context == DEFAULT_CONTEXT else (f":{subject.context}:",)
    return (*((subject.qualified,) if subject.name else ()), *of_context, None)


def replay(entries: Iterable[Entry]) -> View:
    """The view of a whole log."""
    view = View()
    for entry in entries:
        view.take(entry)
    return view
