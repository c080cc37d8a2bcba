"""Keys and values of the records that coordinators keep in internal topics, in Apache Kafka's own schemas.

A key is an int16 for the kind of record, and then the fields of the key. A value is an int16 version, and then the fields of
the value in that version, or null for a tombstone. The number of a kind has a meaning only within one topic, so each topic has
a ``Family``. The schemas are in ``app/coordinator/schemas``. The codec is that of the APIs (``app/wire/compiler.py``), so a
damaged record only raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from types import ModuleType
from typing import Any, Final, NamedTuple

from app.coordinator.record_type import RecordType
from app.coordinator.schemas import classic_group, consumer_group, share_group, share_state, transaction
from app.core.errors import CorruptionError
from app.wire.compiler import DecoderSource, EncoderSource, Shape
from app.wire.primitives import TROUBLES, explain

NUMBER: Final = Struct(">h")
"""The int16 at the start of a key and a value."""
NUMBER_BYTES: Final = NUMBER.size

_NEVER: Final = 1 << 15
"""A version above all versions of keys, because keys are not flexible."""


class CoordinatorRecord(NamedTuple):
    """One record of an internal topic. The value None is a tombstone."""

    key: bytes
    value: bytes | None


class _Codec:
    """Encodes and decodes one kind of record. The code for a version is compiled at its first use."""

    __slots__ = ("_classes", "_decoders", "_encoders", "_rows", "type")

    def __init__(self, record_type: RecordType, module: ModuleType) -> None:
        self.type = record_type
        self._rows = module.FIELDS
        self._classes = {name: getattr(module, name) for name in self._rows}
        self._decoders: dict[tuple[type, int], Callable[[bytes], Any]] = {}
        self._encoders: dict[tuple[type, int], Callable[[Any], bytes]] = {}

    def _shape(self, version: int, flexible_first: int) -> Shape:
        return Shape(self._rows, self._classes, version, version >= flexible_first)

    def encode(self, message: Any, struct: type, version: int, flexible_first: int) -> bytes:
        encoder = self._encoders.get((struct, version))
        if encoder is None:
            encoder = EncoderSource(self._shape(version, flexible_first)).compile(struct.__name__)
            self._encoders[struct, version] = encoder
        try:
            return encoder(message)
        except (StructError, AttributeError, TypeError, ValueError) as trouble:
            raise ValueError(f"{struct.__name__} cannot be written: {trouble}") from trouble

    def decode(self, data: bytes, struct: type, version: int, flexible_first: int) -> Any:
        decoder = self._decoders.get((struct, version))
        if decoder is None:
            writer = DecoderSource(self._shape(version, flexible_first), from_bytes=True, is_request=False)
            decoder = self._decoders[struct, version] = writer.compile(struct.__name__)
        try:
            return decoder(data)
        except TROUBLES as trouble:
            raise CorruptionError(str(explain(trouble, struct.__name__))) from None


class Family:
    """All kinds of records of one internal topic."""

    def __init__(self, topic: str, modules: Sequence[ModuleType]) -> None:
        self._topic = topic
        self._by_number: dict[int, _Codec] = {}
        self._by_key: dict[type, _Codec] = {}
        self._by_value: dict[type, _Codec] = {}
        for module in modules:
            for record_type in module.RECORDS:
                codec = _Codec(record_type, module)
                assert record_type.number not in self._by_number, record_type
                self._by_number[record_type.number] = codec
                self._by_key[record_type.key] = codec
                self._by_value[record_type.value] = codec

    def types(self) -> Mapping[int, RecordType]:
        """All kinds by number."""
        return {number: codec.type for number, codec in self._by_number.items()}

    def encode_key(self, key: Any) -> bytes:
        """Encode a key, an object of one of the schemas' key classes. Raises: ValueError if it cannot be encoded."""
        codec = self._by_key[type(key)]
        number = codec.type.number
        return NUMBER.pack(number) + codec.encode(key, codec.type.key, 0, _NEVER)

    def encode_value(self, value: Any, version: int) -> bytes:
        """Encode a value in a version. Raises: ValueError if it cannot be encoded."""
        codec = self._by_value[type(value)]
        kind = codec.type
        assert kind.version_first <= version <= kind.version_last, version
        return NUMBER.pack(version) + codec.encode(value, kind.value, version, kind.flexible_first)

    def record(self, key: Any, value: Any | None, version: int = 0) -> CoordinatorRecord:
        """Key and value, or a tombstone, for ``CoordinatedLog.append``. Raises: ValueError if they cannot be encoded."""
        return CoordinatorRecord(self.encode_key(key), None if value is None else self.encode_value(value, version))

    def decode_key(self, data: bytes) -> Any | None:
        """Decode the key in ``data``; None for an unknown kind, which readers skip.

        Raises: CorruptionError.
        """
        if len(data) < NUMBER_BYTES:
            raise CorruptionError(f"A key in {self._topic} has {len(data)} bytes.")
        codec = self._by_number.get(NUMBER.unpack_from(data)[0])
        return None if codec is None else codec.decode(data[NUMBER_BYTES:], codec.type.key, 0, _NEVER)

    def decode_value(self, key: Any, data: bytes) -> Any:
        """The value in ``data`` of the record with ``key``.

        Raises: CorruptionError, also for an unknown version: an unreadable record must not be ignored.
        """
        codec = self._by_key[type(key)]
        kind = codec.type
        if len(data) < NUMBER_BYTES:
            raise CorruptionError(f"A {kind.value.__name__} has {len(data)} bytes.")
        (version,) = NUMBER.unpack_from(data)
        if not kind.version_first <= version <= kind.version_last:
            raise CorruptionError(f"A {kind.value.__name__} has version {version}, which is not known.")
        return codec.decode(data[NUMBER_BYTES:], kind.value, version, kind.flexible_first)


GROUP_RECORDS: Final = Family("__consumer_offsets", (classic_group, consumer_group, share_group))
"""Of ``__consumer_offsets``."""
TRANSACTION_RECORDS: Final = Family("__transaction_state", (transaction,))
"""Of ``__transaction_state``."""
SHARE_STATE_RECORDS: Final = Family("__share_group_state", (share_state,))
"""Of ``__share_group_state``."""
