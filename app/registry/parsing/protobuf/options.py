"""Options of Protobuf: those that `descriptor.proto` defines are set in their messages, and others are kept as they were written.

Tests: ``tests/registry/test_protobuf.py``.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import text_encoding
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, UninterpretedOption

from app.registry.refusals import SchemaInvalid

Value = UninterpretedOption
"""A value as it was written: one of its members is set."""
_INTS: Final = frozenset(
    {
        FieldDescriptorProto.TYPE_INT32,
        FieldDescriptorProto.TYPE_INT64,
        FieldDescriptorProto.TYPE_UINT32,
        FieldDescriptorProto.TYPE_UINT64,
    }
)


def set_option(options: Any, name: list[tuple[str, bool]], value: Any) -> None:
    """Set an option. ``name``: its parts, and whether each is in parentheses. Raises: SchemaInvalid."""
    if any(is_extension for _, is_extension in name):
        _keep(options, name, value)
        return
    target = options
    for part, _ in name[:-1]:
        field = target.DESCRIPTOR.fields_by_name.get(part)
        if field is None or field.message_type is None or field.is_repeated:
            raise _unknown(name)
        target = getattr(target, part)
    last = name[-1][0]
    field = target.DESCRIPTOR.fields_by_name.get(last)
    if field is None or last == "uninterpreted_option":
        raise _unknown(name)
    if field.message_type is not None:
        _keep(options, name, value)
        return
    made = _converted(field, value)
    try:
        if field.is_repeated:
            getattr(target, last).append(made)
        elif target.HasField(last):
            raise SchemaInvalid(f"the option {_shown(name)} is set twice")
        else:
            setattr(target, last, made)
    except (TypeError, ValueError):
        raise SchemaInvalid(f"the option {_shown(name)} has a value of another type") from None


def _keep(options: Any, name: list[tuple[str, bool]], value: Any) -> None:
    kept = options.uninterpreted_option.add()
    kept.CopyFrom(value)
    for part, is_extension in name:
        kept.name.add(name_part=part, is_extension=is_extension)


def _converted(field: Any, value: Any) -> Any:
    """The value of an option that `descriptor.proto` defines."""
    if field.enum_type is not None:
        found = field.enum_type.values_by_name.get(value.identifier_value)
        return None if found is None else found.number
    if field.type == FieldDescriptorProto.TYPE_BOOL:
        return {"true": True, "false": False}.get(value.identifier_value)
    if field.type in _INTS:
        return value.negative_int_value if value.HasField("negative_int_value") else value.positive_int_value
    if field.type == FieldDescriptorProto.TYPE_STRING and value.HasField("string_value"):
        return value.string_value.decode("utf-8", "replace")
    return None


def _unknown(name: list[tuple[str, bool]]) -> SchemaInvalid:
    return SchemaInvalid(f"the option {_shown(name)} is not known")


def _shown(name: list[tuple[str, bool]]) -> str:
    return ".".join(f"({part})" if is_extension else part for part, is_extension in name)[:100]


# --- texts ------------------------------------------------------------------------------------------------------------


def option_texts(options: Any, *, extensions: bool, in_order: bool) -> list[str]:
    """``name = value`` of each option that is set.

    Args:
        extensions: whether options with a name in parentheses are shown.
        in_order: whether they are sorted by their names.
    """
    made: list[str] = []
    for field, value in options.ListFields():
        if field.name == "uninterpreted_option":
            made += [
                f"{_shown_whole(one)} = {_value_text(one)}"
                for one in value
                if extensions or not any(part.is_extension for part in one.name)
            ]
        elif field.is_extension:
            if extensions:
                made += _member_texts(f"({field.full_name})", field, value)
        else:
            made += _member_texts(field.name, field, value)
    return sorted(made) if in_order else made


def _member_texts(name: str, field: Any, value: Any) -> list[str]:
    values = value if field.is_repeated else [value]
    if field.message_type is None:
        return [f"{name} = {scalar_text(field, one)}" for one in values]
    if field.message_type.full_name == "google.protobuf.FeatureSet":
        return [
            text
            for one in values
            for inner, leaf in one.ListFields()
            for text in _member_texts(f"{name}.{inner.name}", inner, leaf)
        ]
    return [f"{name} = {_message_text(one)}" for one in values]


def _message_text(message: Any) -> str:
    parts = []
    for field, value in message.ListFields():
        name = f"[{field.full_name}]" if field.is_extension else field.name
        for one in value if field.is_repeated and not _is_map(field) else _entries(field, value):
            parts.append(
                f"{name}: {scalar_text(field, one)}" if field.message_type is None else f"{name}: {_message_text(one)}"
            )
    return "{ " + ", ".join(parts) + " }" if parts else "{}"


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _entries(field: Any, value: Any) -> list[Any]:
    if not _is_map(field):
        return [value]
    return [value.GetEntryClass()(key=key, value=value[key]) for key in sorted(value)]


def scalar_text(field: Any, value: Any) -> str:
    """A value that is no message, as a text writes it."""
    if field.enum_type is not None:
        found = field.enum_type.values_by_number.get(value)
        return str(value) if found is None else str(found.name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, bytes)):
        return quoted(value)
    return repr(value)


def quoted(value: str | bytes) -> str:
    """A string in quotes."""
    return f'"{text_encoding.CEscape(value, isinstance(value, str))}"'


def _shown_whole(one: Any) -> str:
    return ".".join(f"({part.name_part})" if part.is_extension else part.name_part for part in one.name)


def _value_text(one: Any) -> str:
    if one.HasField("identifier_value"):
        return str(one.identifier_value)
    if one.HasField("string_value"):
        return quoted(bytes(one.string_value))
    if one.HasField("aggregate_value"):
        return "{ " + str(one.aggregate_value) + " }"
    if one.HasField("negative_int_value"):
        return str(one.negative_int_value)
    return repr(one.double_value) if one.HasField("double_value") else str(one.positive_int_value)
