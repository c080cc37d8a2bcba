"""Several HTTP processes of one port: a supervisor without an application, and workers that serve.

- ``worker``: the identity and the inheritance of a worker: pure
- ``supervisor``: starts workers, starts them again, ends them; ``listening``: the socket that all accept from
- ``accepting``: a worker's share of the connections
- ``frames``: messages between workers: pure; ``siblings``: a worker asks the others; ``answering``: and answers them
- ``places``: limits on requests that pass between workers: pure

Rules: docs/adr/0046-http-processes.md.
"""
