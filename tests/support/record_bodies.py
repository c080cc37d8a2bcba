"""Bodies of requests for records of REST v3, good and bad ones."""

from __future__ import annotations

from typing import Final

RECORD: Final = b'{"key":{"type":"STRING","data":"k"},"value":{"data":{"a":[1,"}"]}},"timestamp":1}'
LIMIT: Final = 30_000
"""Bytes of a record that the servers take."""

BODIES: Final = {
    "one record": RECORD,
    "one record behind white space": b" \r\n" + RECORD + b"\n ",
    "one record behind a byte order mark": b"\xef\xbb\xbf" + RECORD,
    "two records": RECORD * 2,
    "a record and half of another": RECORD + b'{"value"',
    "half of a record": RECORD[:-4],
    "no record": b"  ",
    "not JSON": b'{"value" 1}',
    "an unknown field": b'{"values":1}',
    "an unknown type": b'{"value":{"type":"XML","data":"x"}}',
    "not base64": b'{"value":{"type":"BINARY","data":"%"}}',
    "not UTF-8": b'{"value":{"data":"\xff"}}',
    "an array": b"[" + RECORD + b"]",
    "a partition that is not there": b'{"partition_id":7,"value":{"data":1}}',
    "a deep record": b'{"timestamp":1,"value":{"data":' + b"[" * 200 + b"]" * 200 + b"}}",
    "a record above the limit": b'{"value":{"type":"STRING","data":"' + b"x" * LIMIT + b'"},"timestamp":1}',
    "a long record": b'{"value":{"type":"STRING","data":"' + b"x" * (LIMIT - 100) + b'"},"timestamp":1}',
    "the last record": b'{"value":{"data":"last"},"timestamp":2}',
}
