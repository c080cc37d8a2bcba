"""Turns requests that write (schemas, deletions, configs, modes) into records of the log.

Each decision belongs to the view at one end of the log: its records may be appended at that end only (``SchemaLog.append``). Ids
are above the greatest one that the context ever gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from app.core.turns import STRIDE, Steps
from app.registry.compatibility.levels import Level
from app.registry.extras import METADATA, RULES, Layers, merged
from app.registry.parsing.limits import SCHEMA_BYTES_MAX
from app.registry.parsing.schemas import Named, ParsedSchema, SchemaType
from app.registry.record_json import (
    Key,
    KeyType,
    Reference,
    StoredSchema,
    write_deleted_version,
    write_json,
    write_key,
    write_schema,
)
from app.registry.refusals import Code, RegistryRefusal
from app.registry.subjects import Subject, read_subject
from app.registry.view import Content, Mode, Version, View, content_of, properties_of

RawRecord = tuple[bytes, bytes | None]
REFERENCES_MAX: Final = 1_000
"""Schemas that one schema may refer to, directly or not."""
REFERENCES_READ_MAX: Final = 4_000
"""References of all these schemas together. Each costs about 5 µs of the loop's time."""
COMPARED_AT_ONCE: Final = 64
"""Versions of one step of ``with_text``: about 0.2 ms."""
VERSION_MAX: Final = 2**31 - 1


class SchemaRequest(NamedTuple):
    """A schema as a request sends it."""

    subject: Subject
    schema_type: SchemaType
    schema: str
    references: tuple[Reference, ...] = ()
    metadata: Any = None
    rule_set: Any = None
    id: int | None = None
    version: int | None = None
    normalize: bool = False


class Append(NamedTuple):
    """Records to append, all of one subject or all of none."""

    subject: str | None
    records: Sequence[RawRecord]


class Registered(NamedTuple):
    """The id of a schema, and the records that give it; no records if the subject has the schema already."""

    id: int
    version: int
    append: Append | None
    stored: StoredSchema


# --- references -------------------------------------------------------------------------------------------------------


def referenced(view: View, subject: Subject, references: Sequence[Reference]) -> list[Named]:
    """The texts that a schema refers to, directly or not, each after those that it needs.

    Raises: RegistryRefusal for a reference to no version, and for too many of them.
    """
    found: dict[tuple[str, int], Named] = {}
    open_ones: set[tuple[str, int]] = set()
    # Each entry is a reference with the context that its subject's name is read in, or the mark that its own are done.
    waiting: list[tuple[Reference, str, bool]] = [(one, subject.context, False) for one in reversed(references)]
    read = len(waiting)
    while waiting:
        if read > REFERENCES_READ_MAX:
            raise _invalid(f"The schema and those that it refers to have more than {REFERENCES_READ_MAX} references.")
        one, context, done = waiting.pop()
        target = read_subject(one.subject, context)
        key = target.qualified, one.version
        version = _of_reference(view, target, one)
        if done:
            found[key] = Named(one.name, version.stored.schema)
            open_ones.discard(key)
        elif key not in found and key not in open_ones:
            open_ones.add(key)
            if len(open_ones) + len(found) > REFERENCES_MAX:
                raise _invalid(f"The schema refers to more than {REFERENCES_MAX} schemas.")
            waiting.append((one, context, True))
            read += len(version.stored.references)
            if read <= REFERENCES_READ_MAX:
                waiting += [(inner, target.context, False) for inner in reversed(version.stored.references)]
    return list(found.values())


def _of_reference(view: View, target: Subject, one: Reference) -> Version:
    name = target.qualified
    version = view.newest(name) if one.version == -1 else view.version(name, one.version)
    if version is None:
        raise _invalid(
            f"The reference {one.name[:100]!r} names version {one.version} of subject {one.subject[:100]!r}, which does not exist."
            " Register it first."
        )
    return version


def pinned(view: View, subject: Subject, references: Sequence[Reference]) -> tuple[Reference, ...]:
    """References with the number of the newest version instead of -1. Raises: RegistryRefusal."""
    made = []
    if len(references) > REFERENCES_MAX:
        raise _invalid(f"The schema refers to more than {REFERENCES_MAX} schemas.")
    for one in references:
        target = read_subject(one.subject, subject.context)
        made.append(one._replace(version=_of_reference(view, target, one).stored.version))
    return tuple(made)


# --- schemas ----------------------------------------------------------------------------------------------------------


def check_mode(view: View, asked: SchemaRequest) -> None:
    """Raises: RegistryRefusal if the subject takes no such schema now."""
    name, mode = asked.subject.qualified, view.mode(asked.subject)
    if mode.is_read_only:
        why = "Another registry has written it. An operator switches it with PUT /mode." if view.is_foreign else ""
        raise RegistryRefusal(Code.NOT_PERMITTED, f"Subject {name!r} is in read-only mode. {why}".rstrip())
    if mode is Mode.IMPORT:
        if asked.id is None:
            raise RegistryRefusal(Code.NOT_PERMITTED, f"Subject {name!r} is in import mode. Send the id of the schema.")
    elif asked.id is not None:
        raise RegistryRefusal(Code.NOT_PERMITTED, f"Subject {name!r} is not in import mode. Send no id.")


def with_text(
    versions: Sequence[Version], wanted: Content, *, extras: bool = True
) -> Steps[tuple[Version | None, list[Version]]]:
    """Look for a schema in versions, by its text. Without ``extras``, metadata and rules need not be equal.

    Returns: the last version that has the text, and the versions with another text but an equal type and equal references. Each of
    these may still have the same schema (``is_same``): other registries store texts as they were sent. The last one comes first.
    """
    others = []
    for place, version in enumerate(reversed(versions)):
        if place % COMPARED_AT_ONCE == COMPARED_AT_ONCE - 1:
            yield
        content = version.content if extras else version.content._replace(extras=wanted.extras)
        if content == wanted:
            return version, []
        if content.schema_type == wanted.schema_type and content[2:] == wanted[2:]:
            others.append(version)
    return None, others


def is_same(asked: SchemaRequest, parsed: ParsedSchema, model: ParsedSchema) -> bool:
    """Whether the schema of a request is that of a model. With ``asked.normalize``, the normalised texts are compared."""
    return _text(model, asked) == _text(parsed, asked)


def _text(parsed: ParsedSchema, asked: SchemaRequest) -> str:
    return parsed.normalized if asked.normalize else parsed.canonical


def with_extras(versions: Sequence[Version]) -> Steps[list[Version]]:
    """The versions that have metadata or rules, as work in steps."""
    return _chosen(versions, lambda one: one.stored.metadata is not None or one.stored.rule_set is not None)


def _chosen(versions: Sequence[Version], holds: Callable[[Version], bool]) -> Steps[list[Version]]:
    """The versions for which ``holds``. Clients decide how many versions a subject has."""
    found = []
    for place, one in enumerate(versions):
        if holds(one):
            found.append(one)
        if place % STRIDE == 0:
            yield
    return found


def completed(view: View, asked: SchemaRequest) -> SchemaRequest:
    """The request with the metadata and the rules of the subject's newest version, where it has none of its own, and with those
    that configs add. An import takes none.

    Raises: RegistryRefusal for too many rules.
    """
    if asked.id is not None:
        return asked
    newest = view.newest(asked.subject.qualified)
    if newest is not None:
        metadata = newest.stored.metadata if asked.metadata is None else asked.metadata
        rule_set = newest.stored.rule_set if asked.rule_set is None else asked.rule_set
        asked = asked._replace(metadata=metadata, rule_set=rule_set)
    return asked._replace(
        metadata=_layered(view, asked.subject, METADATA, asked.metadata),
        rule_set=_layered(view, asked.subject, RULES, asked.rule_set),
    )


def with_layers(view: View, asked: SchemaRequest) -> SchemaRequest:
    """The request with the metadata and the rules that configs add to its own. A request without any keeps none.

    Raises: RegistryRefusal for too many rules.
    """
    if asked.id is not None:
        return asked
    if asked.metadata is not None:
        asked = asked._replace(metadata=_layered(view, asked.subject, METADATA, asked.metadata))
    if asked.rule_set is not None:
        asked = asked._replace(rule_set=_layered(view, asked.subject, RULES, asked.rule_set))
    return asked


def _layered(view: View, subject: Subject, layers: Layers, own: Any) -> Any:
    default, override = (view.setting(subject, member) for member in layers)
    return merged(merged(default, own), override)


def of_group(view: View, asked: SchemaRequest, versions: Sequence[Version]) -> Steps[Sequence[Version]]:
    """The versions that a new schema must be compatible with, as work in steps: where a config names a ``compatibilityGroup``,
    those whose metadata have the same value of this property. Schemas without the property are a group, too."""
    name = view.setting(asked.subject, "compatibilityGroup")
    if not isinstance(name, str):
        return versions
    wanted = properties_of(completed(view, asked).metadata).get(name)
    return (yield from _chosen(versions, lambda one: properties_of(one.stored.metadata).get(name) == wanted))


def wanted_content(view: View, asked: SchemaRequest, parsed: ParsedSchema) -> Content:
    """The content that is stored for a request. Raises: RegistryRefusal."""
    references = pinned(view, asked.subject, asked.references)
    if asked.normalize:
        references = tuple(sorted(references))
    return content_of(asked.schema_type.value, _text(parsed, asked), references, asked.metadata, asked.rule_set)


def register(view: View, asked: SchemaRequest, parsed: ParsedSchema, same: Version | None) -> Registered:
    """The records of a schema that is compatible, at the end of ``view``. ``same``: the version of the subject that has it.

    Raises: RegistryRefusal.
    """
    check_mode(view, asked)
    name = asked.subject.qualified
    if same is not None and (asked.id is None or asked.id == same.stored.id):
        return Registered(same.stored.id, same.stored.version, None, same.stored)
    content = wanted_content(view, asked, parsed)
    _check_length(content.schema)
    number = _new_id(view, asked, content)
    version = _new_version(view, asked)
    stored = StoredSchema(
        name,
        version,
        number,
        content.schema,
        content.schema_type,
        content.references,
        asked.metadata,
        asked.rule_set,
    )
    record = write_key(Key(KeyType.SCHEMA, name, version)), write_schema(stored)
    return Registered(number, version, Append(name, [record]), stored)


def _check_length(stored: str) -> None:
    """Raises: RegistryRefusal if a text is too long to be read again. It may be longer than the text that was sent."""
    if len(stored) > SCHEMA_BYTES_MAX:
        raise _invalid(
            f"The schema has {len(stored)} characters in the layout in which it is stored, and {SCHEMA_BYTES_MAX} are allowed. "
            "Split it into schemas that refer to each other."
        )


def _new_id(view: View, asked: SchemaRequest, content: Content) -> int:
    context = asked.subject.context
    if asked.id is not None:
        present = view.schema(context, asked.id)
        if present is not None and present.content != content:
            raise RegistryRefusal(
                Code.NOT_PERMITTED, f"Id {asked.id} belongs to another schema. Send another id, or the same schema."
            )
        return asked.id
    known = view.id_of(context, content)
    if known is not None:
        return known
    return view.greatest_id(context) + 1


def _new_version(view: View, asked: SchemaRequest) -> int:
    name = asked.subject.qualified
    versions = view.versions(name, deleted=True)
    following = versions[-1].stored.version + 1 if versions else 1
    if asked.version is None:
        return following
    if view.mode(asked.subject) is Mode.IMPORT:
        present = view.version(name, asked.version)
        if present is not None and not present.stored.deleted:
            raise RegistryRefusal(
                Code.NOT_PERMITTED,
                f"Subject {name!r} has a version {asked.version} with another schema. Send another version.",
            )
    elif asked.version != following:
        raise _invalid(f"The version {asked.version} is not the next one of subject {name!r}, which is {following}.")
    return asked.version


# --- deletions --------------------------------------------------------------------------------------------------------


def delete_version(view: View, subject: Subject, version: Version, *, permanent: bool) -> Append:
    """The records that delete one version. Raises: RegistryRefusal."""
    name, number = subject.qualified, version.stored.version
    _check_writable(view, subject)
    if permanent:
        if not version.stored.deleted:
            raise RegistryRefusal(
                Code.VERSION_NOT_SOFT_DELETED,
                f"Subject '{name}' Version {number} was not deleted first before being permanently deleted.",
            )
        return Append(name, _tombstones(view, [Key(KeyType.SCHEMA, name, number)]))
    if version.stored.deleted:
        raise RegistryRefusal(
            Code.VERSION_SOFT_DELETED,
            f"Subject '{name}' Version {number} was soft deleted. Set permanent=true to delete it permanently.",
        )
    _check_unreferenced(view, name, [version])
    deleted = write_schema(version.stored._replace(deleted=True))
    return Append(name, [(write_key(Key(KeyType.SCHEMA, name, number)), deleted)])


def delete_subject(view: View, subject: Subject, *, permanent: bool) -> tuple[list[int], Append]:
    """The versions that a deletion of a subject concerns, and its records. A subject's own config and mode go, too.

    Raises: RegistryRefusal.
    """
    name = subject.qualified
    _check_writable(view, subject)
    every = view.versions(name, deleted=True)
    live = [one for one in every if not one.stored.deleted]
    if not every:
        raise subject_not_found(name)
    if permanent:
        if live:
            raise RegistryRefusal(
                Code.SUBJECT_NOT_SOFT_DELETED,
                f"Subject '{name}' was not deleted first before being permanently deleted.",
            )
        keys = [Key(KeyType.SCHEMA, name, one.stored.version) for one in every]
        return [one.stored.version for one in every], Append(name, _tombstones(view, [*keys, *_settings(view, name)]))
    if not live:
        raise RegistryRefusal(
            Code.SUBJECT_SOFT_DELETED,
            f"Subject '{name}' was soft deleted. Set permanent=true to delete it permanently.",
        )
    _check_unreferenced(view, name, live)
    newest = live[-1].stored.version
    records: list[RawRecord] = [
        (write_key(Key(KeyType.DELETE_SUBJECT, name)), write_deleted_version(name, newest)),
        *_tombstones(view, _settings(view, name)),
    ]
    return [one.stored.version for one in live], Append(name, records)


def _settings(view: View, name: str) -> list[Key]:
    return [key for kind in (KeyType.CONFIG, KeyType.MODE) if view.forms(key := Key(kind, name))]


def _tombstones(view: View, keys: Iterable[Key]) -> list[RawRecord]:
    """A tombstone for each form of each key that is in the log."""
    return [(form, None) for key in keys for form in view.forms(key) or [write_key(key)]]


def _check_unreferenced(view: View, name: str, versions: Iterable[Version]) -> None:
    for one in versions:
        referrers = view.referrers(name, one.stored.version)
        other = next((other for other in referrers if other.stored.subject != name), None)
        if other is not None:
            by = other.stored
            raise RegistryRefusal(
                Code.REFERENCE_EXISTS,
                f"Version {one.stored.version} of subject '{name}' is referenced by version {by.version} of subject '{by.subject}'."
                " Delete that one first.",
            )


def _check_writable(view: View, subject: Subject | None) -> None:
    if view.mode(subject).is_read_only:
        shown = "The registry" if subject is None else f"Subject '{subject.qualified}'"
        raise RegistryRefusal(Code.NOT_PERMITTED, f"{shown} is in read-only mode.")


# --- configs and modes ------------------------------------------------------------------------------------------------


def set_config(view: View, name: str | None, change: Mapping[str, Any], subject: Subject | None) -> Append:
    """The record of a config with changed members. ``name``: a subject, a context, or None for all. Raises: RegistryRefusal."""
    _check_writable(view, subject)
    level = change.get("compatibilityLevel")
    if level is not None and level not in Level.__members__:
        raise RegistryRefusal(
            Code.INVALID_LEVEL, f"{str(level)[:100]!r} is no level. Send one of {', '.join(Level.__members__)}."
        )
    made = {**(view.config(name) or {}), **change}
    value = write_json({member: one for member, one in made.items() if one is not None})
    return Append(None, [(write_key(Key(KeyType.CONFIG, name)), value)])


def delete_config(view: View, name: str | None, subject: Subject | None) -> Append:
    """The record that takes a config away. Raises: RegistryRefusal."""
    _check_writable(view, subject)
    return Append(None, _tombstones(view, [Key(KeyType.CONFIG, name)]))


def set_mode(view: View, name: str | None, mode: str, subject: Subject | None, *, force: bool) -> Append:
    """The record of a mode. Raises: RegistryRefusal."""
    if mode not in Mode.__members__:
        raise RegistryRefusal(
            Code.INVALID_MODE, f"{mode[:100]!r} is no mode. Send one of {', '.join(Mode.__members__)}."
        )
    if Mode(mode) is Mode.IMPORT and not force and _has_schemas(view, subject):
        raise RegistryRefusal(
            Code.NOT_PERMITTED, "Import mode needs an empty subject, or force=true. Schemas were found."
        )
    return Append(None, [(write_key(Key(KeyType.MODE, name)), write_json({"mode": mode}))])


def _has_schemas(view: View, subject: Subject | None) -> bool:
    if subject is not None and subject.name:
        return bool(view.versions(subject.qualified, deleted=True))
    return view.has_schemas(None if subject is None else subject.context)


def delete_modes(view: View, names: Iterable[str | None]) -> Append:
    """The records that take modes away."""
    return Append(None, _tombstones(view, [Key(KeyType.MODE, name) for name in names]))


# --- refusals that several decisions share ----------------------------------------------------------------------------


def subject_not_found(name: str) -> RegistryRefusal:
    return RegistryRefusal(Code.SUBJECT_NOT_FOUND, f"Subject '{name}' not found.")


def _invalid(message: str) -> RegistryRefusal:
    return RegistryRefusal(Code.INVALID_SCHEMA, message)
