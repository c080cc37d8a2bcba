"""An S3 server for the tests: moto on an ephemeral port of the loopback, printed on the first line of standard output. An argument
names another address to listen on, and a second one the file of a certificate and its key: then it takes TLS alone.

Ends when its standard input does, so it never outlives the tests. Moto answers ``If-None-Match: *`` on PutObject and on
CompleteMultipartUpload, but looks first and writes afterwards, on as many threads as there are requests: a lock makes the
two one step, as they are in S3. Buckets named ``ignorant-…`` belong to a server that ignores the header, as old
S3-compatible servers do. An upload that is gone is an internal error of moto's; here it is NoSuchUpload, as in S3. For each list of
a prefix moto looks at all keys of the bucket and sorts them; here they are kept in order.
"""

from __future__ import annotations

import functools
import logging
import ssl
import sys
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from moto.s3.exceptions import NoSuchUpload
from moto.s3.models import FakeBucket, FakeDeleteMarker, S3Backend
from moto.s3.utils import _VersionedKeyStore
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

App: TypeAlias = Callable[..., Iterable[bytes]]


def by_service(s3: App, others: App) -> App:
    """``others`` looks for the service that is meant, which takes it as long as S3 does to answer."""

    def answered(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        is_s3 = "/s3/aws4_request" in environ.get("HTTP_AUTHORIZATION", "")
        return (s3 if is_s3 else others)(environ, start_response)

    return answered


class Conditional:
    def __init__(self, app: App) -> None:
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


class OrderedKeys(_VersionedKeyStore):
    """The keys of a bucket, and their names in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self:
            insort(self.names, key)
        super().__setitem__(key, value)

    def setlist(self, key: Any, list_: Any) -> None:
        if key not in self:
            insort(self.names, key)
        super().setlist(key, list_)

    def pop(self, key: str) -> None:  # type: ignore[override]
        super().pop(key)
        del self.names[bisect_left(self.names, key)]


def with_ordered_keys(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def made(bucket: FakeBucket, *arguments: Any, **options: Any) -> None:
        method(bucket, *arguments, **options)
        bucket.keys = OrderedKeys()

    return made


def from_ordered_keys(method: Callable[..., Any]) -> Callable[..., Any]:
    """``S3Backend.list_objects_v2`` for lists of a prefix without a delimiter."""

    @functools.wraps(method)
    def found(
        backend: S3Backend,
        bucket: FakeBucket,
        prefix: str | None,
        delimiter: str | None,
        continuation_token: str | None,
        start_after: str | None,
        max_keys: int,
    ) -> Any:
        if delimiter:
            return method(backend, bucket, prefix, delimiter, continuation_token, start_after, max_keys)
        names, prefix = bucket.keys.names, prefix or ""
        after = continuation_token or start_after  # a token is the last name of the list before
        at = max(bisect_left(names, prefix), bisect_right(names, after) if after else 0)
        keys: list[Any] = []
        while at < len(names) and names[at].startswith(prefix) and len(keys) <= max_keys:
            key = bucket.keys[names[at]]
            if not isinstance(key, FakeDeleteMarker):
                keys.append(key)
            at += 1
        if len(keys) <= max_keys:
            return keys, False, None
        keys.pop()
        return keys, True, keys[-1].name if keys else None

    return found


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"


def main() -> None:
    for name in ("upload_part", "complete_multipart_upload"):
        setattr(S3Backend, name, knowing_gone_uploads(getattr(S3Backend, name)))
    FakeBucket.__init__ = with_ordered_keys(FakeBucket.__init__)  # type: ignore[method-assign]
    S3Backend.list_objects_v2 = from_ordered_keys(S3Backend.list_objects_v2)  # type: ignore[method-assign]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Conditional(by_service(create_backend_app("s3"), DomainDispatcherApplication(create_backend_app)))
    host = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    server = make_server(host, 0, app, threaded=True, request_handler=Handler)
    server.daemon_threads = True
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2])
        # Handshakes are for the threads of connections: one that nobody goes on with must not keep others from being accepted.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.ssl_context = context
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
