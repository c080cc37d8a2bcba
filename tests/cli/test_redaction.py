"""Secrets are taken out of every form of text that they come in, and the rest stays."""

from __future__ import annotations

import json

import pytest

from app.cli.redaction import redacted

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
    ],
)
def test_a_secret_is_gone(text: str) -> None:
    told = redacted(text)
    assert SECRET not in told
    assert SECRET.replace("/", "") not in told
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
