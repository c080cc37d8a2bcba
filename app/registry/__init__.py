"""The schema registry's decisions, pure: records of `_schemas` in, a view of all subjects and the records to write out.

- ``schema_log``: ``SchemaLog``, the seam to the log in which schemas are stored
- ``ownership``: ``Ownership``, the record of the greatest ids
"""
