"""Files that a schema may import without a reference: `google/protobuf`, `google/type`, `confluent`.

Tests: ``tests/registry/test_protobuf.py``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_PROTOBUF: Final = "any api descriptor duration empty field_mask source_context struct timestamp type wrappers"
_TYPE: Final = (
    "calendar_period color date datetime dayofweek decimal expr fraction interval latlng localized_text money month phone_number"
    " postal_address quaternion timeofday"
)
_MODULES: Final = {
    f"{folder}/{name}.proto": f"{folder.replace('/', '.')}.{name}_pb2"
    for folder, names in (("google/protobuf", _PROTOBUF), ("google/type", _TYPE))
    for name in names.split()
}
_DECIMAL: Final = """syntax = "proto3";
package confluent.type;

message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""
_EXTENSIONS: Final = (("File", "file"), ("Message", "message"), ("Field", "field"), ("Enum", "enum"))
_TEXTS: Final = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;

import "google/protobuf/descriptor.proto";

message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
}
"""
    + "".join(
        f"extend google.protobuf.{kind}Options {{\n  Meta {name}_meta = 1088;\n}}\n"
        for kind, name in (*_EXTENSIONS, ("EnumValue", "enum_value"))
    ),
    "confluent/type/decimal.proto": _DECIMAL,
    "confluent/types/decimal.proto": _DECIMAL.replace("confluent.type;", "confluent.types;"),
}

NAMES: Final = (*_MODULES, *_TEXTS)
"""All built-in files."""


def builtin_text(name: str) -> str | None:
    """The text of a built-in file that no package brings."""
    return _TEXTS.get(name)


def builtin_descriptor(name: str) -> bytes | None:
    """The serialised descriptor of a built-in file that a package brings."""
    module = _MODULES.get(name)
    if module is None:
        return None
    found: Any = import_module(module)
    return bytes(found.DESCRIPTOR.serialized_pb)
