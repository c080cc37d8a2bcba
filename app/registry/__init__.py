"""The schema registry's decisions, pure: records of `_schemas` in, a view of all subjects and the records to write out.

- ``schema_log``: the seam to the log in which schemas are stored
- ``record_json``: keys and values of the log, in the form of other registries
- ``ownership``: the record of Firn's own, with the greatest ids
- ``subjects``: names of subjects and contexts
- ``view``: the state that a replay of the log gives
- ``extras``: the metadata and the rules that a config adds to a schema
- ``registering``: the records that a request's write puts into the log
- ``sources``: texts of stored schemas
- ``refusals``: error codes of the registry's API

``parsing/`` reads texts of schemas, ``compatibility/`` compares them, ``payloads/`` reads values by them, ``encoding/`` writes
values.
"""
