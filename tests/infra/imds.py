"""A stand-in for what surrounds an EC2 machine: instance metadata (version 2 only) and the lifecycle actions of Auto Scaling.

As strict as the real ones where a client can be wrong: metadata asks for a token that was given to a ``PUT`` and has not run out,
refuses requests that came through a proxy (``X-Forwarded-For``), answers with the IP hop limit that the instance has, has no tags
unless they are allowed, and 404 for what there is not. Lifecycle actions want a signed request, a group, a hook and an instance
that exist, and an action under way.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps
from socketserver import TCPServer
from urllib.parse import parse_qs

TOKEN_TTL_MAX_S = 21_600


@dataclass
class Instance:
    """What the metadata says of one machine. Tests and the rehearsal change it while it is served."""

    instance_id: str = "i-0123456789abcdef0"
    zone: str = "eu-central-1a"
    zone_id: str = "euc1-az2"
    local_ipv4: str = "10.42.0.5"
    local_hostname: str = "ip-10-42-0-5.eu-central-1.compute.internal"
    instance_type: str = "i8g.large"
    role: str = "firn-broker"
    user_data: bytes | None = None
    hop_limit: int = 1
    tags: dict[str, str] = field(default_factory=dict)
    tags_allowed: bool = False
    spot_action: str | None = None
    spot_time_s: float | None = None
    rebalance: bool = False
    lifecycle_state: str | None = None
    """Of an instance in an auto-scaling group: ``InService``, ``Terminated`` …"""
    on: bool = True
    """Whether the service answers at all."""
    credentials_s: float = 21_600.0
    key_id: str = "AKIAREHEARSALONLY000"

    def paths(self, now_s: float) -> dict[str, str]:
        region = self.zone.rstrip("abcdef")
        found = {
            "meta-data/instance-id": self.instance_id,
            "meta-data/instance-type": self.instance_type,
            "meta-data/placement/availability-zone": self.zone,
            "meta-data/placement/availability-zone-id": self.zone_id,
            "meta-data/placement/region": region,
            "meta-data/local-ipv4": self.local_ipv4,
            "meta-data/local-hostname": self.local_hostname,
            "meta-data/iam/security-credentials/": self.role,
            f"meta-data/iam/security-credentials/{self.role}": dumps(
                {
                    "Code": "Success",
                    "LastUpdated": _moment(now_s),
                    "Type": "AWS-HMAC",
                    "AccessKeyId": self.key_id,
                    "SecretAccessKey": "rehearsal-secret",
                    "Token": "rehearsal-session",
                    "Expiration": _moment(now_s + self.credentials_s),
                }
            ),
            "dynamic/instance-identity/document": dumps(
                {"instanceId": self.instance_id, "region": region, "availabilityZone": self.zone}
            ),
        }
        if self.user_data is not None:
            found["user-data"] = self.user_data.decode()
        if self.lifecycle_state is not None:
            found["meta-data/autoscaling/target-lifecycle-state"] = self.lifecycle_state
        if self.spot_action is not None:
            moment = _moment(self.spot_time_s if self.spot_time_s is not None else now_s + 120)
            found["meta-data/spot/instance-action"] = dumps({"action": self.spot_action, "time": moment})
        if self.rebalance:
            found["meta-data/events/recommendations/rebalance"] = dumps({"noticeTime": _moment(now_s)})
        if self.tags_allowed:
            found["meta-data/tags/instance"] = "\n".join(self.tags)
            found |= {f"meta-data/tags/instance/{name}": value for name, value in self.tags.items()}
        return found


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class MetadataServer:
    """The service of one machine at a time, and of machines with addresses of their own (``by_address``).

    ``asked`` is every request with its status, oldest first.
    """

    def __init__(
        self, instance: Instance, host: str = "127.0.0.1", port: int = 0, now_s: Callable[[], float] = time.time
    ) -> None:
        self.instance = instance
        self.by_address: dict[str, Instance] = {}
        self.asked: list[tuple[str, str, int]] = []
        self._now_s = now_s
        self._tokens: dict[str, float] = {}
        self._server = _server(host, port, self._answer)
        self.url = f"http://{host}:{self._server.server_address[1]}"

    def become(self, instance: Instance) -> None:
        """Serve another machine from now on. Its service knows no token yet."""
        self.instance = instance
        self.forget_tokens()
        self.asked.clear()

    def forget_tokens(self) -> None:
        """Tokens that were given out count no more."""
        self._tokens.clear()

    def close(self) -> None:
        _close(self._server)

    def _answer(self, request: _Request) -> None:
        instance = self.by_address.get(request.client_address[0], self.instance)
        status, headers, body = self._reply(request, instance)
        self.asked.append((request.command, request.path, status))
        hops = instance.hop_limit
        request.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)
        request.reply(status, {**headers, "X-Hop-Limit": str(hops)}, body)

    def _reply(self, request: _Request, instance: Instance) -> tuple[int, dict[str, str], bytes]:
        now_s = self._now_s()
        if not instance.on:
            return 503, {}, b""
        if request.headers.get("X-Forwarded-For"):
            return 403, {}, b"requests through a proxy are refused"
        if request.command == "PUT":
            ttl = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if request.path != "/latest/api/token":
                return 405, {}, b""
            if not ttl.isdigit() or not 1 <= int(ttl) <= TOKEN_TTL_MAX_S:
                return 400, {}, b"the token's time to live is missing or not 1 to 21600"
            token = secrets.token_urlsafe(40)
            self._tokens[token] = now_s + int(ttl)
            return 200, {"X-aws-ec2-metadata-token-ttl-seconds": ttl}, token.encode()
        if request.command != "GET":
            return 405, {}, b""
        if self._tokens.get(request.headers.get("X-aws-ec2-metadata-token", ""), 0) <= now_s:
            return 401, {}, b"a valid token is required"
        name = request.path.partition("?")[0].removeprefix("/latest/")
        found = instance.paths(now_s)
        text = found.get(name, found.get(name.rstrip("/") + "/"))
        return (404, {}, b"") if text is None else (200, {"Content-Type": "text/plain"}, text.encode())


class LifecycleServer:
    """Auto Scaling's actions on lifecycle hooks, which moto does not have. ``waiting`` are actions under way."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.waiting: set[tuple[str, str, str]] = set()
        """(group, hook, instance)"""
        self.done: dict[tuple[str, str, str], str] = {}
        self.heartbeats: list[tuple[str, str, str]] = []
        self.changed = threading.Condition()
        self._server = _server(host, port, self._answer)
        self.url = f"http://{host}:{self._server.server_address[1]}"

    def forget(self) -> None:
        """Everything, for the next test."""
        with self.changed:
            self.waiting.clear()
            self.done.clear()
            self.heartbeats.clear()

    def begin(self, group: str, hook: str, instance_id: str) -> None:
        with self.changed:
            self.waiting.add((group, hook, instance_id))

    def wait_until_done(self, group: str, hook: str, instance_id: str, timeout_s: float) -> str:
        """The result that was given. Raises: TimeoutError."""
        key = (group, hook, instance_id)
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.done, timeout_s):
                raise TimeoutError(f"hook {hook} of {instance_id} was not completed within {timeout_s:.0f} s")
            return self.done[key]

    def close(self) -> None:
        _close(self._server)

    def _answer(self, request: _Request) -> None:
        status, code, text = self._act(request)
        if status == 200:
            name = f"{code}Response"
            body = f"<{name} xmlns='http://autoscaling.amazonaws.com/doc/2011-01-01/'><{code}Result/></{name}>"
        else:
            body = (
                "<ErrorResponse xmlns='http://autoscaling.amazonaws.com/doc/2011-01-01/'><Error><Type>Sender</Type>"
                f"<Code>{code}</Code><Message>{text}</Message></Error></ErrorResponse>"
            )
        request.reply(status, {"Content-Type": "text/xml"}, body.encode())

    def _act(self, request: _Request) -> tuple[int, str, str]:
        if request.command != "POST":
            return 405, "InvalidAction", "POST"
        if "AWS4-HMAC-SHA256 Credential=" not in request.headers.get("Authorization", ""):
            return 403, "MissingAuthenticationToken", "the request is not signed"
        if not request.headers.get("X-Amz-Security-Token"):
            return 403, "InvalidClientTokenId", "an instance role's request has a session token"
        says = {name: values[0] for name, values in parse_qs(request.body.decode(), strict_parsing=True).items()}
        action = says.get("Action", "")
        if says.get("Version") != "2011-01-01" or action not in (
            "CompleteLifecycleAction",
            "RecordLifecycleActionHeartbeat",
        ):
            return 400, "InvalidAction", f"{action} is not known here"
        try:
            key = says["AutoScalingGroupName"], says["LifecycleHookName"], says["InstanceId"]
        except KeyError as error:
            return 400, "ValidationError", f"{error.args[0]} is missing"
        with self.changed:
            if key not in self.waiting:
                return 400, "ValidationError", "No active Lifecycle Action found"
            if action == "RecordLifecycleActionHeartbeat":
                self.heartbeats.append(key)
            elif says.get("LifecycleActionResult") not in ("CONTINUE", "ABANDON"):
                return 400, "ValidationError", "LifecycleActionResult must be CONTINUE or ABANDON"
            else:
                self.waiting.discard(key)
                self.done[key] = says["LifecycleActionResult"]
            self.changed.notify_all()
        return 200, action, ""


# --- sockets -----------------------------------------------------------------------------------------------------


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    body: bytes
    answer: Callable[[_Request], None]

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        type(self).answer(self)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        del format, arguments  # what was asked is kept in ``asked``


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without the look-up of this machine's name that ``HTTPServer`` makes."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def _server(host: str, port: int, answer: Callable[[_Request], None]) -> _Server:
    handler = type("Handler", (_Request,), {"answer": staticmethod(answer)})
    server = _Server((host, port), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


def _close(server: _Server) -> None:
    server.shutdown()
    server.server_close()
