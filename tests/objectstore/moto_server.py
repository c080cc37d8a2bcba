"""An S3 server for the tests: moto on an ephemeral port of the loopback, printed on the first line of standard output. An argument
names another address to listen on.

Ends when its standard input does, so it never outlives the tests. Moto answers ``If-None-Match: *`` on PutObject and on
CompleteMultipartUpload, but looks first and writes afterwards, on as many threads as there are requests: a lock makes the
two one step, as they are in S3. Buckets named ``ignorant-…`` belong to a server that ignores the header, as old
S3-compatible servers do. An upload that is gone is an internal error of moto's; here it is NoSuchUpload, as in S3.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.s3.exceptions import NoSuchUpload
from moto.s3.models import S3Backend
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class Conditional:
    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith("/ignorant-"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with self._lock:
            return self._app(environ, start_response)


def knowing_gone_uploads(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(backend: S3Backend, bucket_name: str, multipart_id: str, *rest: Any, **options: Any) -> Any:
        if multipart_id not in backend.get_bucket(bucket_name).multiparts:
            raise NoSuchUpload(upload_id=multipart_id)
        return method(backend, bucket_name, multipart_id, *rest, **options)

    return checked


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"


def main() -> None:
    for name in ("upload_part", "complete_multipart_upload"):
        setattr(S3Backend, name, knowing_gone_uploads(getattr(S3Backend, name)))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Conditional(create_backend_app("s3"))
    host = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    server = make_server(host, 0, app, threaded=True, request_handler=Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
