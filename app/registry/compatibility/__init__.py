"""Whether data of one schema can be read with another: one module for each type of schema.

``levels.py`` has the levels and chooses the pairs of schemas that a level compares.
"""
