"""An S3 server that obeys policies: moto with a gate before it. ``python -m tests.infra.iam.policed_server FOLDER`` prints a port.

``FOLDER/<access key>.json`` is the policy of a caller that signs with that key; a key without a file may do everything. Every
request of a key that has one is written to ``FOLDER/<access key>.calls`` with what the gate decided. ``FOLDER/bucket-policy``, if
it exists, is the policy of the bucket. It binds every caller with a policy, each as the role ``role_arn(access key)``. As in S3, a
missing object is a 403 to a caller that may not list the bucket. The server ends when its standard input does.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree

from moto.s3.models import S3Backend
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from app.iam.calls import NEEDS
from tests.infra.iam.callers import BUCKET_POLICY, role_arn
from tests.objectstore.moto_server import Conditional, Handler, knowing_gone_uploads
from tools.infra.iam import allowed

_WRITES_OBJECTS = frozenset({"PutObject", "CompleteMultipartUpload"})
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


def call_of(method: str, key: str, query: dict[str, list[str]], copies: bool) -> str:
    """The name of a request in S3's interface; empty for one that Firn has no use for."""
    if not key:
        match method:
            case "GET" if "uploads" in query:
                return "ListMultipartUploads"
            case "GET" if query.get("list-type") == ["2"]:
                return "ListObjectsV2"
            case "POST" if "delete" in query:
                return "DeleteObjects"
        return ""
    match method:
        case "GET" | "HEAD":
            return f"{method.capitalize()}Object"
        case "PUT" if "partNumber" in query:
            return "UploadPart"
        case "PUT":
            return "CopyObject" if copies else "PutObject"
        case "POST" if "uploads" in query:
            return "CreateMultipartUpload"
        case "POST" if "uploadId" in query:
            return "CompleteMultipartUpload"
        case "DELETE":
            return "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
    return ""


class Gate:
    def __init__(self, app: Callable[..., Iterable[bytes]], folder: Path) -> None:
        self._app = app
        self._folder = folder
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        caller = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        name = caller[1] if caller is not None else ""
        policy = self._folder / f"{name}.json"
        if not policy.exists():
            return self._app(environ, start_response)
        of_bucket = self._folder / BUCKET_POLICY
        documents = [json.loads(path.read_text()) for path in (policy, of_bucket) if path.exists()]
        bucket, _, key = unquote(environ["PATH_INFO"]).lstrip("/").partition("/")
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        call = call_of(environ["REQUEST_METHOD"], key, query, "HTTP_X_AMZ_COPY_SOURCE" in environ)
        prefix = query.get("prefix", [None])[0]
        context = {"aws:PrincipalArn": role_arn(name), "aws:SecureTransport": "true"}  # HTTPS is left to S3
        if prefix is not None:
            context["s3:prefix"] = prefix
        if call in NEEDS and NEEDS[call].action == NEEDS["PutObject"].action:
            context["s3:ObjectCreationOperation"] = "true" if call in _WRITES_OBJECTS else "false"
        if "HTTP_IF_NONE_MATCH" in environ:
            context["s3:if-none-match"] = environ["HTTP_IF_NONE_MATCH"]
        arn = f"arn:aws:s3:::{bucket}"
        keys = _keys_to_delete(environ) if call == "DeleteObjects" else [key]
        passes = call in NEEDS and all(
            allowed(documents, NEEDS[call].action, arn if NEEDS[call].on_bucket else f"{arn}/{each}", context)
            for each in keys
        )
        written = {"call": call, "keys": keys if key or call == "DeleteObjects" else [prefix], "allowed": passes}
        with self._lock, (self._folder / f"{name}.calls").open("a") as calls:
            calls.write(json.dumps(written) + "\n")
        if not passes:
            return _refuse(environ, start_response)
        if call in ("GetObject", "HeadObject") and not allowed(documents, "s3:ListBucket", arn):
            return self._hiding(environ, start_response)
        return self._app(environ, start_response)

    def _hiding(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """A response in which a missing object is forbidden."""
        told: list[tuple[Any, ...]] = []
        body = b"".join(self._app(environ, lambda *given, **_: told.append(given)))
        status, headers, *_ = told[0]
        if status.startswith("404"):
            return _refuse(environ, start_response)
        start_response(status, headers)
        return [body]


def _keys_to_delete(environ: dict[str, Any]) -> list[str]:
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    environ["wsgi.input"] = io.BytesIO(body)
    return [found.text or "" for found in ElementTree.fromstring(body).iter() if found.tag.rpartition("}")[2] == "Key"]


def _refuse(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    body = b"" if environ["REQUEST_METHOD"] == "HEAD" else _DENIED
    start_response("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def main() -> None:
    for name in ("upload_part", "complete_multipart_upload"):
        setattr(S3Backend, name, knowing_gone_uploads(getattr(S3Backend, name)))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Gate(Conditional(DomainDispatcherApplication(create_backend_app)), Path(sys.argv[1]))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
