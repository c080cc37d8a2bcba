"""Protobuf schemas: a text or a serialised descriptor becomes a ``FileDescriptorProto``, which the package `protobuf` checks.

- ``tokens``: a text becomes tokens with their comments
- ``statements``: tokens become a descriptor, by the language specifications of proto2, proto3 and editions
- ``options``: options of files, types and fields
- ``texts``: a descriptor becomes its text
- ``building``: a descriptor with its imports becomes a ``ProtobufSchema``; names are resolved, and rules are checked
- ``builtin``: files that every schema may import without a reference

The text is read here and not by a package. `proto-schema-parser`, the kept one in Python, needs 40 µs for each token and more than
linear time for comments, and it has no limit of levels. `protoc` is exact, but needs a process and files for each schema.

The modules import `protobuf`, which the extra ``registry`` brings. Import them late.
"""
