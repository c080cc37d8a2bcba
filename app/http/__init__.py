"""The HTTP process: REST v3 and v2 by Confluent's conventions, schema registry, health, metrics. It is a client of the brokers.

- ``server``: the process; ``application``: routes and errors; ``gateway``: ``Gateway``, the parts that every route gets
- ``rest_v3/``, ``rest_v2/``: their routes; ``consumers/``: consumer instances of REST v2; ``registry/``: the schema registry
- ``keyed/``: requests with an `Idempotency-Key`
- ``compactions``, ``costs``, ``drains``, ``metrics``, ``documentation``: other routes; ``health``: the broker's health
- ``asked_once``: readiness is asked once for all callers
- ``traced``: spans of requests, in a process that traces
- ``front``: before all routes; ``direct_routes``: frequent requests, past FastAPI's router
- ``quick_records``: a small record alone, past ASGI
- ``console/``: pages for people
- ``processes/``: several processes of one port; ``passing_on``: to the process that has a consumer instance
- ``pages``, ``record_rendering``, ``read_budget``: reads of records
- ``record_json``, ``json_stream``, ``bodies``, ``body_budget``, ``content_encoding``, ``accepting``, ``errors``: bodies and
  responses
- ``schemas``: their types in OpenAPI
- ``guard``, ``access``, ``conventions``, ``login``, ``credentials``, ``callers``, ``serving``, ``forwarded``: access and callers
- ``connections``, ``tls``, ``tls_settings``: connections and HTTPS
"""
