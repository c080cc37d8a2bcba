"""Secrets are taken out of every form of text that they come in, and the rest stays."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from time import process_time

import pytest

from app.cli.redaction import redacted
from app.core.log_events import Event
from app.core.notices import json_line

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECRET = "Xk9-planted/value+1="


@pytest.mark.parametrize(
    "text",
    [
        f"ssl.keystore.password={SECRET}",
        f"ssl.key.password = {SECRET}",
        f'password = "{SECRET}"',
        f"password: '{SECRET}'",
        f'{{"secret_access_key": "{SECRET}", "region": "eu"}}',
        json.dumps({"sasl.jaas.config": f'a.PlainLoginModule required username="u" password="{SECRET}";'}),
        f'sasl.jaas.config=org.apache.kafka.PlainLoginModule required username="u" password="{SECRET}";',
        f'listener.name.x.plain.sasl.jaas.config=a.b.PlainLoginModule required user_alice="{SECRET}" ;',
        f"firn.quota.redis.url=redis://user:{SECRET.replace('/', '')}@host:6379/0",
        f"GET /x?X-Amz-Signature={SECRET}&prefix=p HTTP/1.1",
        f"Authorization: Bearer {SECRET}",
        f"header 'Basic {SECRET}' refused",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n",
        f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}\nthe file ends here",
        f"firn user add x --password {SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f'{{"tokens": ["{SECRET}", "other"]}}',
        f"delegation.token.secret.key={SECRET}",
        f"the api_key={SECRET} was refused",
        f'password = """{SECRET}"""',
        f'password = """\na " in it\n{SECRET}\n"""\nnext = 1',
        f"password = '''{SECRET}'''",
        f"password: 'it''s {SECRET}'",
        f'{{"name":"sasl.password","value":"{SECRET}"}}',
        f'{{"value": "{SECRET}", "sensitive": true, "name": "sasl.password"}}',
        f'{{"name":"sasl.password","value":{{"plain":"{SECRET}"}},"synonyms":[]}}',
        f'{{"name":"password","value":null,"synonyms":[{{"name":"password","value":"{SECRET}"}}]}}',
        f"{{'value': '{SECRET}', 'name': 'sasl.password'}}",
        f"- name: SASL_PASSWORD\n  value: {SECRET}\n",
        f"password: |\n  first\n\n  {SECRET}\n",
        f"  - password: !vault >-\n      {SECRET}\n    user: u",
        f"tokens:\n- a\n- {SECRET}\n",
        f'password: "a\n  {SECRET}"\n',
        f"password=a\\\n  {SECRET}\n",
        f"DefaultEndpointsProtocol=https;AccountName=n;AccountKey={SECRET}=;EndpointSuffix=x",
        f"GET https://store.example/c?sv=1&sig={SECRET}&se=2",
        f"Server=s;uid=u;pwd={SECRET};",
        f"https://u:p@{SECRET.replace('/', '')}@host/x",
        f'{{"tokens": ["a]b", ["c", "{SECRET}"]]}}',
        f'tokens = [\n  "a]",\n  "{SECRET}",\n]\n',
        f"MIIE\n{SECRET.replace('-', '')}\nAAAA\n-----END RSA PRIVATE KEY-----\n",
        json.dumps({"log": json.dumps({"password": SECRET})}),
        f'["--password", "{SECRET}"]',
        json_line(
            Event.LOG.line(f"it refused ssl.key.password={SECRET}", exception=f"at x\npassword: {SECRET}\n"), NOW
        ),
        json_line(
            Event.LOG.line("refused", uri=f"redis://user:{SECRET.replace('/', '')}@host:6379/0", token=SECRET), NOW
        ),
        f'firn user add x --password "a {SECRET}"',
        f'a.PlainLoginModule required password="a;{SECRET}";',
        f'a.PlainLoginModule required password="{SECRET}',
    ],
)
def test_a_secret_is_gone(text: str) -> None:
    told = redacted(text)
    assert SECRET not in told
    for mark in "/-":
        assert SECRET.replace(mark, "") not in told
    assert "(redacted)" in told


def test_tokens_and_ids_of_keys_are_known_by_their_form() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"
    assert (
        redacted(f"login of {token} failed with AKIAABCDEFGHIJKLMNOP") == "login of (redacted) failed with (redacted)"
    )


@pytest.mark.parametrize(
    "text",
    [
        "log.retention.ms=1000\nlisteners=PLAINTEXT://0.0.0.0:9092\n",
        '{"topic": "orders", "partitions": 3, "settings": {"retention.ms": "1000"}}\n',
        'firn_records_in_total{node_id="1",process="broker"} 17\n',
        '{"value": "1", "name": "orders"}\n{"name": "key", "value": {"n": [1]}}\n',
        "password:\nnext: 1\n  more: 2\n",
        "a line\n-----END CERTIFICATE-----\n",
        "https://firn.example/a@b\n",
        "The event loop stood still for 0.2 s: FETCH of User:alice, client id 'c', from 10.0.0.1:5000\n",
    ],
)
def test_the_rest_stays(text: str) -> None:
    assert redacted(text) == text


def test_json_is_json_afterwards() -> None:
    told = {"password": f'with \\ and " {SECRET}', "tokens": ["a"], "n": 1, "jaas": None}
    assert json.loads(redacted(json.dumps(told))) == {
        "password": "(redacted)",
        "tokens": ["(redacted)"],
        "n": 1,
        "jaas": None,
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a:\n  password: |\n    x\n\n    y\n  user: u\nb: 1", "a:\n  password: (redacted)\n  user: u\nb: 1"),
        ("- password: >\n    x\n  user: u", "- password: (redacted)\n  user: u"),
        ('{"value":"x","name":"password"}, {"value":"y"}', '{"value":"(redacted)","name":"password"}, {"value":"y"}'),
        ("it serves\nMIIE\n-----END PRIVATE KEY-----\nand serves", "it serves\n(redacted)\nand serves"),
        ('password = """x"""\nuser = "u"', 'password = "(redacted)"\nuser = "u"'),
        ("GET /c?sig=x&se=2 HTTP/1.1", "GET /c?sig=(redacted)&se=2 HTTP/1.1"),
        ("firn --password=x --keep y", "firn --password=(redacted) --keep y"),
    ],
)
def test_the_text_around_a_secret_stays(text: str, told: str) -> None:
    assert redacted(text) == told


TEXT_CHARS = 256 * 1024
CPU_RATIO_MAX = 40
"""Some ten times the ratio of the slowest text. Texts of quadratic time have a ratio of hundreds and more."""


def cpu_s(pattern: str) -> float:
    text = (pattern * (TEXT_CHARS // len(pattern) + 1))[:TEXT_CHARS]
    started_s = process_time()
    redacted(text)
    return process_time() - started_s


@cache
def plain_s() -> float:
    """The time of a text without any name."""
    return min(cpu_s("a line of a log without any name 17\n") for _ in range(3))


@pytest.mark.parametrize(
    "pattern",
    [
        *("a.", "token.", "eyJ-", "://a", "a.LoginModule ", "token          ", "-----BEGIN A", "sig-"),
        *(
            "-----END PRIVATE KEY-----\nab\n",
            "token:\n",
            "token=[\n",
            'token="\\',
            'token=\\"',
            'token="""',
            "token='\n",
        ),
        *('{"name":"token","value":{', "token: |\n ", " token: |\n", "--token -", "token\n\nvalue", '"name":"'),
    ],
)
def test_no_text_takes_more_than_linear_time(pattern: str) -> None:
    assert cpu_s(pattern) < CPU_RATIO_MAX * plain_s()
