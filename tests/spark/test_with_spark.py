"""The reader inside Spark: found by its name, equal to the plain reader, exactly once into a checkpointed sink."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.spark.conftest import Topic
from tests.spark.damages import flip, of_the_future
from tests.spark.sessions import PySparkException, SparkSession, collected, grow, sentence_of
from tests.support.buckets import BucketBuilder

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"
)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    async def make() -> Topic:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic_id = await bucket.create_topic("t", 2)
        await grow(bucket, topic_id, 0, 0)
        await grow(bucket, topic_id, 1, 0, 1)
        return Topic(tmp_path / "bucket", "t", topic_id, 2)

    return asyncio.run(make())


@pytest.mark.ci
def test_the_format_is_found_by_its_name_and_reads_what_is_there(spark: SparkSession, topic: Topic) -> None:
    frame = (
        spark.read.format("firn")
        .option("store", topic.store)
        .option("subscribe", "t")
        .option("includeHeaders", "true")
        .option("splitBytes", "1m")
        .load()
    )
    kafka = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    assert frame.schema.simpleString() == (
        "struct<" + kafka.replace(", ", ",").replace(" ", ":") + ",headers:array<struct<key:string,value:binary>>>"
    )
    names = frame.columns
    assert collected(frame) == [{name: row[name] for name in names} for row in topic.reference()]
    assert frame.count() == 600


@pytest.mark.slow
def test_a_schema_of_ones_own_chooses_columns(spark: SparkSession, topic: Topic) -> None:
    frame = (
        spark.read.format("firn")
        .schema("offset bigint, partition int, leader_epoch int")
        .option("store", topic.store)
        .option("subscribe", "t")
        .load()
    )
    assert collected(frame)[0] == {"offset": 0, "partition": 0, "leader_epoch": -1}


@pytest.mark.slow
def test_filters_of_one_query_take_nothing_from_another_of_the_same_frame(spark: SparkSession, topic: Topic) -> None:
    """Also where Spark would push them."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("firn").option("store", topic.store).option("subscribe", "t").load()
        assert (frame.where("offset < 10").count(), frame.count()) == (20, 600)
        assert frame.where("partition = 0").union(frame.where("partition = 1")).count() == 600
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_a_mistake_is_told_in_a_sentence_when_planning(spark: SparkSession, topic: Topic) -> None:
    frame = spark.read.format("firn").option("store", topic.store).option("subscribe", "nowhere").load()
    with pytest.raises(PySparkException) as caught:
        frame.rdd.getNumPartitions()
    assert sentence_of(caught.value) == f"There is no topic 'nowhere' in {topic.store}."


def stored(topic: Topic, partition: int, base: int) -> Path:
    [path] = (topic.path / "data").glob(f"*/{topic.topic_id}/{partition}/{base:020d}-*.seg")
    return path


MEND = "bring the object back from a copy, or leave its offsets out; `firn verify` tells what else is damaged."


@pytest.mark.slow
def test_bad_input_of_a_batch_is_told_in_a_sentence(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    def told(**options: str) -> str:
        frame = spark.read.format("firn").options(**{"store": topic.store, "subscribe": "t", **options}).load()
        with pytest.raises(PySparkException) as caught:
            frame.collect()
        return sentence_of(caught.value)

    cut = '{"t": {"0": 250, "1": 0}}'
    assert told(startingOffset="1") == "There is no option 'startingoffset': perhaps startingOffsets is meant."
    assert told(endingOffsets='{"t": {"0": 401, "1": 0}}') == (
        "Offset 401 is past the end of t-0, which has [0, 400) in the store; what brokers hold above it is read with the option"
        " 'tail'."
    )
    assert "'2013-07-01T00:00', without a time zone: add one" in told(startingTimestamp="2013-07-01T00:00")
    assert "There is no folder" in told(store=(tmp_path / "nowhere").as_uri())
    assert "There is no Firn cluster" in told(store=tmp_path.as_uri())
    victim = stored(topic, 0, 200)
    whole = victim.read_bytes()
    flip(victim, 3000)
    assert told().startswith(f"{victim.relative_to(topic.path)}: wrong CRC of the chunk at position ")
    victim.write_bytes(whole)
    flip(victim, -100)
    for options in ({"startingOffsets": cut}, {}):
        found = told(**options)
        assert found.startswith(f"{victim.relative_to(topic.path)}: wrong CRC of the footer at position ")
        assert found.endswith(MEND)
    victim.write_bytes(whole)
    of_the_future(victim)
    for options in ({"startingOffsets": cut}, {}):
        assert told(**options).endswith("version 9 is from the future: this software knows up to 1; upgrade it")
    victim.unlink()
    assert told() == f"{victim.relative_to(topic.path)} is gone, although the manifest names it: {MEND}"


@pytest.mark.slow
def test_bad_input_of_a_stream_is_told_in_a_sentence(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    def told(**options: str) -> str:
        query = (
            spark.readStream.format("firn")
            .options(**{"store": topic.store, "subscribe": "t", **options})
            .load()
            .writeStream.format("noop")
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(PySparkException) as caught:
            query.awaitTermination(120)
        return sentence_of(caught.value)

    assert told(subscribe="nowhere") == f"There is no topic 'nowhere' in {topic.store}."
    assert told(endingOffsets="latest") == (
        "The option 'endingOffsets' does not go with this kind of read: a stream has no end; leave it out."
    )
    victim = stored(topic, 0, 200)
    flip(victim, 3000)
    assert told().startswith(f"{victim.relative_to(topic.path)}: wrong CRC of the chunk at position ")


@pytest.mark.slow
def test_bad_input_of_a_write_is_told_in_a_sentence(spark: SparkSession) -> None:
    def told(mode: str = "append", **options: str) -> str:
        rows = spark.range(1).selectExpr("'v' value")
        given = {"bootstrap": "127.0.0.1:1", "topic": "t", **options}
        with pytest.raises(PySparkException) as caught:
            rows.write.format("firn").options(**given).mode(mode).save()
        return sentence_of(caught.value)

    assert told(acks="1").startswith("There is no option 'acks' for writing: there are bootstrap, ")
    assert told("overwrite") == "A topic is only ever appended to: write with mode append."
    assert "127.0.0.1:1" in told()


def run_stream(spark: SparkSession, topic: Topic, tmp_path: Path, **options: str) -> None:
    query = (
        spark.readStream.format("firn")
        .option("store", topic.store)
        .option("subscribePattern", "t.*")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "sink"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


@pytest.mark.slow
def test_a_stream_reads_history_and_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    async def begin() -> tuple[BucketBuilder, Topic]:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic_id = await bucket.create_topic("t", 2)
        await grow(bucket, topic_id, 0, 0)
        return bucket, Topic(tmp_path / "bucket", "t", topic_id, 2)

    async def more(bucket: BucketBuilder, topic: Topic) -> Topic:
        await grow(bucket, topic.topic_id, 0, 400, 1)
        await grow(bucket, topic.topic_id, 1, 0, 1)
        other = await bucket.create_topic("t2", 1)
        await grow(bucket, other, 0, 0, 1)
        return Topic(topic.path, "t2", other)

    bucket, topic = asyncio.run(begin())
    run_stream(spark, topic, tmp_path, maxRecordsPerTrigger="150")
    sink = lambda: spark.read.parquet(str(tmp_path / "sink"))  # noqa: E731 - the directory grows
    first = topic.reference()
    assert [row["offset"] for row in collected(sink())] == [row["offset"] for row in first]
    commits = len([path for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdecimal()])
    assert commits >= 3
    other = asyncio.run(more(bucket, topic))
    run_stream(spark, topic, tmp_path, maxBytesPerTrigger="100k")
    found = [(row["topic"], row["partition"], row["offset"], row["value"]) for row in collected(sink())]
    expected = [
        (row["topic"], row["partition"], row["offset"], row["value"]) for row in topic.reference() + other.reference()
    ]
    assert sorted(found) == sorted(expected)
