"""Turn the rows of a message into the source of a decoder and of an encoder for one version.

The source is straight-line code: the structs of a message are unrolled into one function, neighbouring fields of fixed size
are read and written by one precompiled ``Struct``, which also takes the length or count that follows them, and fields that
the version lacks are constants. It is written for the interpreter, not for people; ``tests/wire/reference.py`` is the plain
reading of the same rows that both directions are held against.

Promises of the generated decoder:

- nothing is allocated for a count before ``count × smallest element`` is known to fit in the bytes left, and the elements
  of all arrays together stay within ``MESSAGE_ELEMENTS_MAX``;
- it raises nothing but ``primitives.TROUBLES``, and does not recurse;
- ``records`` are slices of the buffer it was given; strings and bytes are its own.

Both directions have a second form for long messages, from the same rows: a generator that yields after every
``STEP_ELEMENTS`` elements of arrays, so that the event loop can do other work in between (INV-15).

Tests: ``tests/wire/test_codec.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import Struct, pack, unpack_from
from typing import Any, Final, cast

from app.core.limits import MESSAGE_ELEMENTS_MAX
from app.wire import primitives
from app.wire.primitives import Buffer
from app.wire.schema import ZERO_UUID, Field, Rows, all_fields, fields_of

FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
    "uuid": "16s",
}
"""Struct codes of the kinds whose size is fixed."""

STEP_ELEMENTS: Final = 32
"""Elements of arrays between two steps of a generator. Arrays of numbers are read and written whole."""

SENTENCE_CHARS_MAX: Final = 1_000
"""An error sentence is cut there when it is written. It may quote a name of the request that is as long as a string may be."""

SIZES: Final = {kind: Struct(f">{code}").size for kind, code in FIXED.items()}

GLOBALS: Final[dict[str, object]] = {
    "UVARINTS": primitives.UVARINTS,
    "ZERO_UUID": ZERO_UUID,
    "next_tagged_field": primitives.next_tagged_field,
    "pack": pack,
    "read_uvarint": primitives.read_uvarint,
    "refuse_count": primitives.refuse_count,
    "refuse_length": primitives.refuse_length,
    "refuse_marker": primitives.refuse_marker,
    "refuse_null": primitives.refuse_null,
    "refuse_rest": primitives.refuse_rest,
    "refuse_tag_size": primitives.refuse_tag_size,
    "skip_tagged_fields": primitives.skip_tagged_fields,
    "tagged_field_count": primitives.tagged_field_count,
    "unpack_from": unpack_from,
    "too_long": primitives.too_long,
    "uuid_of": primitives.uuid_of,
    "uvarint": primitives.uvarint,
}


@dataclass
class Shape:
    """A message in one version: everything that both directions are compiled from."""

    rows: Rows
    classes: dict[str, type]
    version: int
    is_flexible: bool

    def wire_fields(self, struct: str) -> list[Field]:
        return fields_of(self.rows, struct, self.version)

    def untagged(self, struct: str) -> list[Field]:
        return [item for item in self.wire_fields(struct) if item.tag is None]

    def tagged(self, struct: str) -> list[Field]:
        """Sorted by tag, as they are on the wire."""
        tagged = [(item.tag, item) for item in self.wire_fields(struct) if item.tag is not None]
        assert not tagged or self.is_flexible
        return [item for _, item in sorted(tagged, key=lambda pair: pair[0])]

    def smallest(self, item: Field) -> int:
        """Fewest bytes of one value of a field, of one element if it is an array."""
        if item.kind in SIZES:
            return SIZES[item.kind]
        if item.kind in ("string", "bytes", "records"):
            return 1 if self.is_flexible else 2 if item.kind == "string" else 4
        if item.is_nullable and not item.is_array:
            return 1
        return self.smallest_struct(item.kind)

    def smallest_struct(self, struct: str) -> int:
        fields = self.untagged(struct)
        arrays = [item for item in fields if item.is_array]
        size = sum(self.smallest(item) for item in fields if not item.is_array)
        return size + len(arrays) * (1 if self.is_flexible else 4) + (1 if self.is_flexible else 0)


@dataclass
class Source:
    """Source under construction, with the objects that it names."""

    names: dict[str, Any] = field(default_factory=lambda: dict(GLOBALS))
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    counter: int = 0

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self(head)
        self.depth += 1
        yield
        self.depth -= 1

    def fresh(self, stem: str) -> str:
        """A name not used before in this function."""
        self.counter += 1
        return f"{stem}{self.counter}"

    def struct(self, codes: str) -> str:
        """Name of the precompiled ``Struct`` of ``codes``."""
        name = "S_" + codes.replace("?", "o")
        self.names.setdefault(name, Struct(f">{codes}"))
        return name

    def constant(self, value: object) -> str:
        """Name of a constant object."""
        name = self.fresh("K_")
        self.names[name] = value
        return name

    def function(self, signature: str) -> Callable[..., Any]:
        """Compile the lines written so far as the body of a function ``signature``."""
        text = "\n".join([f"def {signature}:", *self.lines, ""])
        scope = dict(self.names)
        exec(compile(text, f"<wire {signature}>", "exec"), scope)
        made = scope[signature.split("(")[0]]
        return cast("Callable[..., Any]", made)


def default_source(shape: Shape, source: Source, item: Field) -> str:
    """An expression for the field's value in a message that does not carry it. Mutable values are made anew each time."""
    if item.default is None:
        return "None"
    if item.is_array:
        return "[]"
    if item.kind == "uuid":
        return "ZERO_UUID"
    if item.kind == "bytes":
        return 'b""'
    if item.kind in shape.classes:
        source.names[item.kind] = shape.classes[item.kind]
        return f"{item.kind}()"
    return repr(item.default)


def null_marker(item: Field) -> int:
    """The byte that stands for a null struct (KIP-893). In a tagged field Kafka writes another marker than elsewhere."""
    return -1 if item.tag is None else 0


# --- decoding ---------------------------------------------------------------------------------------------------------


class DecoderSource:
    """Writes the decoder of one message: ``decode(b)`` → an object of the message's class.

    In the source ``b`` is the buffer, ``p`` the position, ``end`` its length and ``left`` the elements still allowed.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        from_bytes: bool,
        is_request: bool,
        in_steps: bool = False,
        elements_max: int = MESSAGE_ELEMENTS_MAX,
    ) -> None:
        """``is_request``: bytes behind the message are ignored.
        ``in_steps``: the decoder is a generator that returns the object."""
        self.shape = shape
        self.source = Source()
        self.from_bytes = from_bytes
        self.is_request = is_request
        self.in_steps = in_steps
        self.elements_max = elements_max
        self.run: list[tuple[str, str, str]] = []
        """Fixed-size pieces not yet read: (struct code, variable, statement to run after it is read)."""

    def compile(self, struct: str) -> Callable[[Buffer], Any]:
        source = self.source
        source("p = 0")
        source("end = len(b)")
        source(f"left = {self.elements_max}")
        if self.in_steps:
            source(f"step = {STEP_ELEMENTS}")
            source("yield")
        result = self.read_struct(struct)
        if not self.is_request:
            with source.block("if p != end:"):
                source("raise refuse_rest(end - p)")
        source(f"return {result}")
        return source.function("decode(b)")

    def take(self, code: str, variable: str, after: str = "") -> None:
        """Read a piece of fixed size, together with its neighbours."""
        self.run.append((code, variable, after))

    def flush(self) -> None:
        """Read the pieces taken so far."""
        if not self.run:
            return
        codes = "".join(code for code, _, _ in self.run)
        variables = ", ".join(variable for _, variable, _ in self.run)
        size = Struct(f">{codes}").size
        if codes == "B":
            self.source(f"{variables} = b[p]")
        elif codes == "?":
            self.source(f"{variables} = b[p] != 0")
        else:
            comma = "," if len(self.run) == 1 else ""
            self.source(f"{variables}{comma} = {self.source.struct(codes)}.unpack_from(b, p)")
        self.source(f"p += {size}")
        for _, _, after in self.run:
            if after:
                self.source(after)
        self.run.clear()

    def take_length(self, code: str, name: str) -> str:
        """Read a length or count into a variable, -1 for null; everything taken before is read with it."""
        source = self.source
        variable = source.fresh("n")
        if self.shape.is_flexible:
            self.take("B", variable)
            self.flush()
            with source.block(f"if {variable} > 127:"):
                source(f"{variable}, p = read_uvarint(b, p - 1)")
            source(f"{variable} -= 1")
        else:
            self.take(code, variable)
            self.flush()
        return variable

    def read_struct(self, struct: str) -> str:
        """Read a struct; returns the expression that makes the object."""
        shape, source = self.shape, self.source
        values: dict[str, str] = {}
        for item in shape.untagged(struct):
            values[item.name] = self.read_field(item, f"{struct}.{item.name}")
        if shape.is_flexible:
            self.read_tagged(struct, values)
        self.flush()
        arguments = [
            values.get(item.name) or default_source(shape, source, item) for item in all_fields(shape.rows, struct)
        ]
        source.names[struct] = shape.classes[struct]
        return f"{struct}({', '.join(arguments)})"

    def read_tagged(self, struct: str, values: dict[str, str]) -> None:
        shape, source = self.shape, self.source
        count = source.fresh("t")
        self.take("B", count)
        self.flush()
        tagged = shape.tagged(struct)
        if not tagged:
            with source.block(f"if {count}:"):
                source("p = skip_tagged_fields(b, p - 1)")
            return
        for item in tagged:
            values[item.name] = source.fresh("v")
            source(f"{values[item.name]} = {default_source(shape, source, item)}")
        with source.block(f"if {count}:"):
            source(f"{count}, p = tagged_field_count(b, p - 1)")
            tag, stop = source.fresh("tag"), source.fresh("stop")
            source(f"{tag} = -1")
            with source.block(f"for _ in range({count}):"):
                source(f"{tag}, p, {stop} = next_tagged_field(b, p, {tag})")
                for index, item in enumerate(tagged):
                    with source.block(f"{'elif' if index else 'if'} {tag} == {item.tag}:"):
                        value = self.read_field(item, f"{struct}.{item.name}")
                        self.flush()
                        source(f"{values[item.name]} = {value}")
                        with source.block(f"if p != {stop}:"):
                            source(f'raise refuse_tag_size("{struct}.{item.name}")')
                with source.block("else:"):
                    source(f"p = {stop}")

    def read_field(self, item: Field, name: str) -> str:
        """Read a field; returns a variable (set once ``flush`` has run) or an expression."""
        if item.is_array:
            return self.read_array(item, name)
        if item.kind in FIXED:
            variable = self.source.fresh("v")
            after = f"{variable} = uuid_of({variable})" if item.kind == "uuid" else ""
            self.take(FIXED[item.kind], variable, after)
            return variable
        if item.kind in ("string", "bytes", "records"):
            return self.read_sized(item, name)
        if not item.is_nullable:
            return self.read_struct(item.kind)
        source = self.source
        marker, variable = source.fresh("m"), source.fresh("v")
        self.take("b", marker)
        self.flush()
        with source.block(f"if {marker} == {null_marker(item)}:"):
            source(f"{variable} = None")
        with source.block(f"elif {marker} == 1:"):
            source(f"{variable} = {self.read_struct(item.kind)}")
        with source.block("else:"):
            source(f'raise refuse_marker({marker}, "{name}")')
        return variable

    def read_sized(self, item: Field, name: str) -> str:
        source = self.source
        variable, stop = source.fresh("v"), source.fresh("e")
        is_compact_string = item.kind == "string" and self.shape.is_flexible
        length = self.take_length("h" if item.kind == "string" else "i", name)
        with source.block(f"if {length} >= 0:"):
            source(f"{stop} = p + {length}")
            # A compact length could say more than a string may have; an int16 cannot.
            too_long = f" or {length} > {primitives.STRING_BYTES_MAX}" if is_compact_string else ""
            with source.block(f"if {stop} > end{too_long}:"):
                source(f'raise refuse_length({length}, "{name}")')
            if item.kind == "string":
                value = f"b[p:{stop}].decode()" if self.from_bytes else f'str(b[p:{stop}], "utf-8")'
            elif item.kind == "bytes" and not self.from_bytes:
                value = f"bytes(b[p:{stop}])"
            else:
                value = f"b[p:{stop}]"
            source(f"{variable} = {value}")
            source(f"p = {stop}")
        self.absent(item, name, length, variable)
        return variable

    def absent(self, item: Field, name: str, length: str, variable: str) -> None:
        """The branches for a length or count below zero."""
        source = self.source
        refuse = "refuse_count" if item.is_array else "refuse_length"
        if self.shape.is_flexible:  # a compact length cannot be below -1
            with source.block("else:"):
                source(f"{variable} = None" if item.is_nullable else f'raise refuse_null("{name}")')
            return
        with source.block(f"elif {length} == -1:"):
            source(f"{variable} = None" if item.is_nullable else f'raise refuse_null("{name}")')
        with source.block("else:"):
            source(f'raise {refuse}({length}, "{name}")')

    def read_array(self, item: Field, name: str) -> str:
        source = self.source
        variable = source.fresh("v")
        count = self.take_length("i", name)
        smallest = self.shape.smallest(item)
        assert smallest > 0, name
        with source.block(f"if {count} >= 0:"):
            source(f"left -= {count}")
            with source.block(f"if {count} * {smallest} > end - p or left < 0:"):
                source(f'raise refuse_count({count}, "{name}")')
            if item.kind in FIXED and item.kind != "uuid":
                code = FIXED[item.kind]
                source(f'{variable} = list(unpack_from(f">{{{count}}}{code}", b, p))')
                source(f"p += {count} * {smallest}")
            else:
                add = source.fresh("add")
                source(f"{variable} = []")
                source(f"{add} = {variable}.append")
                with source.block(f"for _ in range({count}):"):
                    if self.in_steps:
                        source("step -= 1")
                        with source.block("if step < 0:"):
                            source("yield")
                            source(f"step = {STEP_ELEMENTS}")
                    element = item._replace(is_array=False, is_nullable=False)
                    value = self.read_field(element, name)
                    self.flush()
                    source(f"{add}({value})")
        self.absent(item, name, count, variable)
        return variable


# --- encoding ---------------------------------------------------------------------------------------------------------


class EncoderSource:
    """Writes the encoder of one message: ``encode(m)`` → bytes. In the source ``add`` takes the next piece.

    ``in_steps``: the encoder is a generator that returns the pieces of the message.
    """

    def __init__(self, shape: Shape, *, in_steps: bool = False) -> None:
        self.shape = shape
        self.in_steps = in_steps
        self.source = Source()
        self.add = "add"
        self.run: list[tuple[str, str]] = []
        """Fixed-size pieces not yet written: (struct code, expression or "" for a zero byte)."""

    def compile(self, struct: str) -> Callable[[Any], bytes]:
        assert not self.in_steps
        source = self.source
        source("out = []")
        source("add = out.append")
        self.write_struct(struct, "m")
        self.flush()
        source('return b"".join(out)')
        return source.function("encode(m)")

    def compile_steps(self, struct: str) -> Callable[[Any], Generator[int, None, list[bytes]]]:
        """As ``compile``, ``in_steps``. Each step yields the bytes that were added."""
        assert self.in_steps
        source = self.source
        source("done = []")
        source("out = []")
        source("add = out.append")
        source(f"step = {STEP_ELEMENTS}")
        source("yield 0")
        self.write_struct(struct, "m")
        self.flush()
        source('done.append(b"".join(out))')
        source("return done")
        return source.function("encode(m)")

    def put(self, code: str, expression: str) -> None:
        """Write a piece of fixed size, together with its neighbours."""
        self.run.append((code, expression))

    def flush(self) -> None:
        """Write the pieces put so far."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        arguments = ", ".join(expression for _, expression in self.run if expression)
        self.run.clear()
        if not arguments:
            self.source(f"{self.add}({bytes(len(codes))!r})")
        else:
            self.source(f"{self.add}({self.source.struct(codes)}.pack({arguments}))")

    def put_length(self, code: str, length: str) -> None:
        """Write a length or count that is not null."""
        if self.shape.is_flexible:
            self.flush()
            self.source(f"{self.add}(UVARINTS[{length} + 1] if {length} < 1000 else uvarint({length} + 1))")
        else:
            self.put(code, length)

    def put_null(self, code: str) -> None:
        """Write the length or count that says null."""
        if self.shape.is_flexible:
            self.put("x", "")
        else:
            self.put(code, "-1")

    def write_struct(self, struct: str, value: str) -> None:
        for item in self.shape.untagged(struct):
            self.write_field(item, f"{value}.{item.name}")
        if not self.shape.is_flexible:
            return
        tagged = self.shape.tagged(struct)
        if not tagged:
            self.put("x", "")
            return
        self.flush()
        self.write_tagged(tagged, value)

    def write_tagged(self, tagged: list[Field], value: str) -> None:
        source, outer = self.source, self.add
        fields = source.fresh("fields")
        source(f"{fields} = []")
        for item in tagged:
            attribute = f"{value}.{item.name}"
            if item.default is None:
                condition = f"{attribute} is not None"
            elif item.kind in self.shape.classes and item.is_nullable and not item.is_array:
                condition = f"{attribute} is None or {attribute} != {source.constant(self.shape.classes[item.kind]())}"
            elif item.is_array:
                condition = f"{attribute} is None or {attribute}" if item.is_nullable else attribute
            elif item.kind in self.shape.classes:
                condition = f"{attribute} != {source.constant(self.shape.classes[item.kind]())}"
            else:
                condition = f"{attribute} != {default_source(self.shape, source, item)}"
            with source.block(f"if {condition}:"):
                part, add = source.fresh("part"), source.fresh("add")
                source(f"{part} = []")
                source(f"{add} = {part}.append")
                self.add = add
                self.write_field(item, attribute)
                self.flush()
                self.add = outer
                source(f'{part} = b"".join({part})')
                source(f"{fields}.append(uvarint({item.tag}) + uvarint(len({part})) + {part})")
        source(f"{outer}(UVARINTS[len({fields})])")
        with source.block(f"if {fields}:"):
            source(f'{outer}(b"".join({fields}))')

    def write_field(self, item: Field, value: str) -> None:
        if item.kind in FIXED and not item.is_array:
            self.put(FIXED[item.kind], f"{value}.bytes" if item.kind == "uuid" else value)
            return
        source = self.source
        variable = source.fresh("v")
        source(f"{variable} = {value}")
        if not item.is_nullable:
            self.write_present(item, variable)
            return
        self.flush()
        with source.block(f"if {variable} is None:"):
            if item.kind in self.shape.classes and not item.is_array:
                self.put("b", str(null_marker(item)))
            else:
                self.put_null("h" if item.kind == "string" and not item.is_array else "i")
            self.flush()
        with source.block("else:"):
            if item.kind in self.shape.classes and not item.is_array:
                self.put("b", "1")
            self.write_present(item, variable)
            self.flush()

    def write_present(self, item: Field, variable: str) -> None:
        """Write a value that is not null, not of fixed size unless it is an array."""
        source = self.source
        if item.is_array:
            self.write_array(item, variable)
        elif item.kind in self.shape.classes:
            self.write_struct(item.kind, variable)
        else:
            if item.name == "error_message":
                with source.block(f"if len({variable}) > {SENTENCE_CHARS_MAX}:"):
                    source(f'{variable} = {variable}[:{SENTENCE_CHARS_MAX}] + "…"')
            if item.kind == "string":
                source(f"{variable} = {variable}.encode()")
            length = source.fresh("n")
            source(f"{length} = len({variable})")
            if item.kind == "string" and self.shape.is_flexible:
                with source.block(f"if {length} > {primitives.STRING_BYTES_MAX}:"):
                    source(f"raise too_long({length})")
            self.put_length("h" if item.kind == "string" else "i", length)
            self.flush()
            source(f"{self.add}({variable})")

    def write_array(self, item: Field, variable: str) -> None:
        source = self.source
        count = source.fresh("n")
        source(f"{count} = len({variable})")
        self.put_length("i", count)
        self.flush()
        if item.kind in FIXED and item.kind != "uuid":
            source(f'{self.add}(pack(f">{{{count}}}{FIXED[item.kind]}", *{variable}))')
            return
        element = source.fresh("x")
        with source.block(f"for {element} in {variable}:"):
            if self.in_steps:
                source("step -= 1")
                with source.block("if step < 0:"):
                    source(f"step = {STEP_ELEMENTS}")
                    source('done.append(b"".join(out))')
                    source("out.clear()")
                    source("yield len(done[-1])")
            self.write_field(item._replace(is_array=False, is_nullable=False), element)
            self.flush()
