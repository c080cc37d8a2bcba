"""Texts of schemas in, models out: one module for each type of schema.

``schemas.py`` has the types that all share and chooses the module. ``limits.py`` has the bounds of a schema. A parser raises
``SchemaInvalid`` for every text that is no schema, and nothing else.
"""
