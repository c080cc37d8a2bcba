"""A bucket that cannot be read: one sentence with the mend, when planning, and the same as Spark shows it."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from pathlib import Path

import pytest

from app.core.errors import StorageUnavailable
from pyspark_firn.batch import plan
from pyspark_firn.options import parse_read_options
from tests.objectstore.conftest import aws_credentials, moto_endpoint
from tests.objectstore.scripted_server import ScriptedServer, answer, refusal
from tests.spark.programs import run_script

__all__ = ["aws_credentials", "moto_endpoint"]

PLANS = """
import json, sys
from pathlib import Path
from tests.spark.sessions import PySparkException, sentence_of, session

spark = session("local[1]")
credentials = Path(sys.argv[1])
for store, has_credentials in json.loads(sys.argv[2]):
    if has_credentials:
        credentials.write_text("[default]\\naws_access_key_id = test\\naws_secret_access_key = test\\n")
    else:
        credentials.unlink(missing_ok=True)
    frame = spark.read.format("firn").option("store", store).option("subscribe", "t").load()
    try:
        frame.rdd.getNumPartitions()
    except PySparkException as error:
        print("TOLD", sentence_of(error), flush=True)
query = (
    spark.readStream.format("firn").option("store", store).option("subscribe", "t").load()
    .writeStream.format("noop").trigger(availableNow=True).start()
)
try:
    query.awaitTermination(120)
except PySparkException as error:
    print("TOLD", sentence_of(error), flush=True)
spark.stop()
"""


@pytest.mark.slow
async def test_a_bucket_that_cannot_be_read_is_told_in_a_sentence_by_spark(
    tmp_path: Path, aws_credentials: None, moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM has an environment of its own, in which credentials come and go with a file."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    credentials = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with ScriptedServer([refusal(403, "AccessDenied")]) as forbids, ScriptedServer([answer(404)]) as other:
            nobody = f"http://127.0.0.1:{bound.getsockname()[1]}"
            cases = {
                f"s3://bucket/c?endpoint={forbids.endpoint}": "; allow s3:ListBucket on arn:aws:s3:::bucket",
                f"s3://no-such-bucket/c?endpoint={moto_endpoint}": "; create the bucket, or correct the store URL",
                f"s3://bucket/c?endpoint={nobody}": "; correct endpoint or region in the store URL, or let this machine"
                " reach that address",
                f"s3://bucket/c?endpoint={other.endpoint}": "; this is not the response of an S3 server;"
                " correct endpoint in the store URL",
                f"s3://bucket/c?endpoint={moto_endpoint}": "; give this process credentials: an instance or pod role,"
                " AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            }
            without = f"s3://bucket/c?endpoint={moto_endpoint}"
            wanted = [(store, store != without) for store in cases]
            done = await asyncio.to_thread(run_script, PLANS, str(credentials), json.dumps(wanted))
    assert done.returncode == 0, done.stdout[-4000:]
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD")]
    # A stream of the last of them says what a batch does.
    for line, (store, mend) in zip(told, [*cases.items(), (without, cases[without])], strict=True):
        assert line.startswith(f"TOLD list_objects of cluster/ in {store.partition('?')[0]}: ")
        assert line.endswith(mend)


def test_a_folder_that_must_not_be_read_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    options = parse_read_options({"store": tmp_path.as_uri(), "subscribe": "t"}, streaming=False)
    with pytest.raises(StorageUnavailable) as caught:
        plan(options)
    assert str(caught.value) == (f"Could not look for {tmp_path}: Permission denied; give this user the permission.")
