"""uvicorn without an application: it reads a request's body and answers a constant. The limit for ``http_rates.py``.

python -m loadtests.bare_http PORT
"""

from __future__ import annotations

import sys

import uvicorn
from starlette.types import Receive, Scope, Send

BODY = (
    b'{"error_code":200,"cluster_id":"0123456789012345678901","topic_name":"rest","partition_id":0,"offset":1234567}\n'
)
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


async def constant(scope: Scope, receive: Receive, send: Send) -> None:
    """The whole application."""
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


if __name__ == "__main__":
    uvicorn.run(
        constant,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
