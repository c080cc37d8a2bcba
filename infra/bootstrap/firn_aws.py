"""What a machine asks of AWS before anything is installed: instance metadata (IMDSv2), S3 objects, the EC2 and Auto Scaling APIs.

Python's standard library alone, as Debian 12 has it (Python 3.11). Requests are signed with Signature Version 4
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html). Nothing here decides anything: ``firn_bootstrap`` and
``firn_agent`` do.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from xml.etree import ElementTree

METADATA: Final = "http://169.254.169.254"
TOKEN_S: Final = 21_600
"""The longest that a token of the metadata service lives."""
TRIES_MAX: Final = 6
"""Attempts at one request: 0.25 + 0.5 + 1 + 2 + 4 s of pauses between them."""
PAUSE_S: Final = 0.25
TIMEOUT_S: Final = 10.0
BODY_BYTES_MAX: Final = 16 << 20
"""Most that is read of one response. Objects read here are small; the wheelhouse is downloaded by the user data."""

_VERSIONS: Final = {"ec2": "2016-11-15", "autoscaling": "2011-01-01"}
_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
_THROTTLED: Final = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException", "SlowDown"})


class Unreachable(Exception):
    """No usable response came: none at all after every attempt, or one that the service itself does not send."""


class AwsError(Exception):
    """AWS refused a request. ``code`` is its own name for the reason, ``InvalidVolume.NotFound`` for example."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code or status}: {message}" if message else code or f"status {status}")
        self.status = status
        self.code = code


class Clock(Protocol):
    """Time, for whoever waits."""

    def now_s(self) -> float:
        """Seconds since 1970, for signatures and deadlines that others name."""

    def monotonic_s(self) -> float:
        """Seconds that never go back, for time-outs."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Http(Protocol):
    """One exchange. Raises: OSError if none came about."""

    def exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Response: ...


class UrllibHttp:
    """The standard library's, without proxies: metadata must not leave the machine, and S3 is behind a VPC endpoint."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())

    def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Response:
        request = urllib.request.Request(url, data=body or None, headers=dict(headers), method=method)
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                return _read(answer.status, answer)
        except urllib.error.HTTPError as error:
            with error:
                return _read(error.code, error)
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP response: {error!r}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: that of S3 says that the bucket is in another region."""

    def redirect_request(self, *arguments: object, **named: object) -> None:
        return None


def _read(status: int, answer: http.client.HTTPResponse | urllib.error.HTTPError) -> Response:
    body = answer.read(BODY_BYTES_MAX + 1)
    if len(body) > BODY_BYTES_MAX:
        raise OSError(f"the response is longer than {BODY_BYTES_MAX} bytes")
    return Response(status, {name.lower(): value for name, value in answer.headers.items()}, body)


def persistently(http: Http, clock: Clock, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Response:
    """An exchange that is repeated while the other side is away or says that it cannot now. Raises: Unreachable."""
    failure = ""
    for attempt in range(TRIES_MAX):
        if attempt:
            clock.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            response = http.exchange(method, url, headers, body, TIMEOUT_S)
        except OSError as error:
            failure = str(getattr(error, "reason", None) or error)
            continue
        if response.status not in _RETRIED and _error_of(response).code not in _THROTTLED:
            return response
        failure = f"status {response.status}"
    parts = urlsplit(url)
    raise Unreachable(f"{parts.scheme}://{parts.netloc} does not answer ({failure})")


# --- instance metadata -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(repr=False)
    expire_s: float
    """When they end, in seconds since 1970."""


class Metadata:
    """The instance metadata service, version 2: a token first, which is asked for again when it is refused."""

    def __init__(self, http: Http, clock: Clock, endpoint: str = METADATA) -> None:
        self._http = http
        self._clock = clock
        self._endpoint = endpoint.rstrip("/")
        self._token = ""
        self._credentials: Credentials | None = None

    def get(self, path: str) -> str | None:
        """What ``/latest/<path>`` says; None if there is no such thing. Raises: Unreachable, AwsError."""
        url = f"{self._endpoint}/latest/{path}"
        asked_anew = not self._token
        while True:
            if not self._token:
                self._token = self._new_token()
            headers = {"X-aws-ec2-metadata-token": self._token}
            response = persistently(self._http, self._clock, "GET", url, headers, b"")
            if response.status == 200:
                return response.text
            if response.status == 404:
                return None
            if response.status != 401 or asked_anew:
                raise AwsError(response.status, "", f"instance metadata refuses {path} (status {response.status})")
            self._token, asked_anew = "", True

    def need(self, path: str) -> str:
        """The same, of what every instance has. Raises: Unreachable, AwsError."""
        found = self.get(path)
        if not found:
            raise AwsError(404, "", f"instance metadata has no {path}")
        return found.strip()

    def credentials(self) -> Credentials:
        """Those of the instance's role, valid for five minutes more at least. Raises: Unreachable, AwsError."""
        if self._credentials is None or self._credentials.expire_s - self._clock.now_s() < 300:
            folder = "meta-data/iam/security-credentials/"
            role = self.need(folder).splitlines()[0]
            self._credentials = _credentials_of(role, self.need(folder + role))
        return self._credentials

    def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
        response = persistently(self._http, self._clock, "PUT", f"{self._endpoint}/latest/api/token", headers, b"")
        if response.status != 200:
            raise AwsError(response.status, "", "instance metadata gives no token (hop limit, or metadata turned off)")
        return response.text


def _credentials_of(role: str, text: str) -> Credentials:
    """What the metadata says of a role. No text of it goes into an error: it may be the secret. Raises: AwsError."""
    try:
        found = json.loads(text)
        if found.get("Code") != "Success":
            raise AwsError(200, str(found.get("Code")), f"role {role} has no credentials")
        expire_s = datetime.fromisoformat(found["Expiration"].replace("Z", "+00:00")).timestamp()
        return Credentials(str(found["AccessKeyId"]), str(found["SecretAccessKey"]), str(found["Token"]), expire_s)
    except KeyError as error:
        raise AwsError(200, "", f"the credentials of role {role} in the instance metadata have no {error}") from None
    except (ValueError, TypeError, AttributeError):
        raise AwsError(200, "", f"the credentials of role {role} in the instance metadata are damaged") from None


# --- signatures --------------------------------------------------------------------------------------------------


def signed(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    credentials: Credentials,
    service: str,
    region: str,
    now_s: float,
) -> dict[str, str]:
    """``headers`` with those of Signature Version 4. The URL's path must be encoded as it will be sent."""
    parts = urlsplit(url)
    moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    everything = {name.lower(): value.strip() for name, value in headers.items()}
    everything |= {"host": parts.netloc, "x-amz-date": moment, "x-amz-content-sha256": digest}
    if credentials.token:
        everything["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(everything))
    pairs = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in parse_qsl(parts.query, True))
    query = "&".join(f"{name}={value}" for name, value in pairs)
    lines = "".join(f"{name}:{everything[name]}\n" for name in sorted(everything))
    canonical = "\n".join([method, parts.path or "/", query, lines, names, digest])
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    everything["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    )
    return everything


class Aws:
    """Signed requests with the instance's role.

    ``endpoints`` overrides where a service is (``ec2``, ``s3``, ``autoscaling``); empty in production.
    """

    def __init__(
        self, http: Http, clock: Clock, metadata: Metadata, region: str, endpoints: Mapping[str, str] | None = None
    ) -> None:
        self._http = http
        self._clock = clock
        self._metadata = metadata
        self.region = region
        self._endpoints = dict(endpoints or {})

    def query(self, service: str, action: str, **parameters: str) -> ElementTree.Element:
        """A call of the EC2 or Auto Scaling API. The result's tags are without name spaces. Raises: Unreachable, AwsError."""
        url = self._endpoints.get(service, f"https://{service}.{self.region}.amazonaws.com").rstrip("/") + "/"
        body = urlencode({"Action": action, "Version": _VERSIONS[service], **parameters}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        response = self._send("POST", url, headers, body, service, self.region)
        if response.status != 200:
            raise _error_of(response)
        try:
            root = ElementTree.fromstring(response.text)
        except ElementTree.ParseError as error:
            raise Unreachable(
                f"{url} answers {action} with something that is no XML ({error}). Check what stands between: a proxy, or a "
                "wrong endpoint"
            ) from error
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root

    def get_object(self, bucket: str, key: str, region: str = "", endpoint: str = "") -> bytes | None:
        """An object's bytes; None if there is none of this key. Raises: Unreachable, AwsError."""
        response = self._send(
            "GET", self._object_url(bucket, key, region, endpoint), {}, b"", "s3", region or self.region
        )
        if response.status == 200:
            return response.body
        error = _error_of(response)
        if response.status == 404 and error.code in ("NoSuchKey", ""):
            return None
        raise error

    def put_object_if_absent(self, bucket: str, key: str, body: bytes, region: str = "", endpoint: str = "") -> bool:
        """Write an object unless there is one; whether it was written. Raises: Unreachable, AwsError."""
        headers = {"If-None-Match": "*", "Content-Type": "application/json"}
        url = self._object_url(bucket, key, region, endpoint)
        response = self._send("PUT", url, headers, body, "s3", region or self.region)
        if response.status == 200:
            return True
        if response.status in (409, 412):
            return False
        raise _error_of(response)

    def secret(self, arn: str) -> str:
        """The present text of a secret of Secrets Manager. Raises: Unreachable, AwsError; nothing of it is in either."""
        service = "secretsmanager"
        url = self._endpoints.get(service, f"https://{service}.{self.region}.amazonaws.com").rstrip("/") + "/"
        headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": f"{service}.GetSecretValue"}
        response = self._send("POST", url, headers, json.dumps({"SecretId": arn}).encode(), service, self.region)
        try:
            found = json.loads(response.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Unreachable(f"{url} answers GetSecretValue with something that is no JSON (status {response.status})")
        if response.status != 200:
            code = str(found.get("__type", "")).rpartition("#")[2]
            raise AwsError(response.status, code, str(found.get("message") or found.get("Message") or ""))
        text = found.get("SecretString")
        if not isinstance(text, str):
            raise AwsError(200, "", "the secret holds bytes and no text")
        return text

    def _object_url(self, bucket: str, key: str, region: str, endpoint: str) -> str:
        path = quote(key, safe="/-_.~")
        endpoint = self._endpoints.get("s3", endpoint)
        if endpoint:
            return f"{endpoint.rstrip('/')}/{bucket}/{path}"
        host = f"s3.{region or self.region}.amazonaws.com"
        # A name with dots does not match S3's certificate.
        return f"https://{host}/{bucket}/{path}" if "." in bucket else f"https://{bucket}.{host}/{path}"

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, service: str, region: str
    ) -> Response:
        credentials = self._metadata.credentials()
        now_s = self._clock.now_s()
        ready = signed(method, url, headers, body, credentials=credentials, service=service, region=region, now_s=now_s)
        return persistently(self._http, self._clock, method, url, ready, body)


def _error_of(response: Response) -> AwsError:
    if response.status < 300:
        return AwsError(response.status, "", "")
    code = message = ""
    try:
        for element in ElementTree.fromstring(response.text).iter():
            name = element.tag.rpartition("}")[2]
            if name == "Code" and not code:
                code = (element.text or "").strip()
            elif name == "Message" and not message:
                message = " ".join((element.text or "").split())
    except ElementTree.ParseError:
        message = f"status {response.status}"  # a HEAD's answer, or a proxy's page
    return AwsError(response.status, code, message)
