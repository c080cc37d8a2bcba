"""REST v2, by the conventions of Confluent's REST proxy: produce, topics, and consumer instances.

- ``media``: media types, and which of them a request sends and accepts
- ``answers``: routes of v2: types are agreed first, and errors have v2's numbers
- ``forms``: keys and values in JSON by their embedded format, and back
- ``topics``, ``produce``, ``consumers``: routes
"""
