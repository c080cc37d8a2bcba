"""The HTTP process: Confluent's REST v3 for producing and administration, health, and metrics. It is a client of the brokers.

- ``server``: the process; ``application``: routes and errors; ``gateway``: ``Gateway``, the parts that every route gets
- ``rest_v3/``: routes of REST v3
- ``compactions``, ``costs``, ``drains``, ``metrics``, ``documentation``: other routes; ``health``: the broker's health
- ``pages``, ``record_rendering``: reads of records
- ``record_json``, ``json_stream``, ``bodies``, ``content_encoding``, ``errors``: bodies and responses; ``schemas``: in OpenAPI
- ``guard``, ``access``, ``conventions``, ``login``, ``credentials``, ``callers``, ``serving``, ``forwarded``: access and callers
- ``connections``, ``tls``, ``tls_settings``: connections and HTTPS
"""
