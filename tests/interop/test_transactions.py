"""Transactions by real clients: the Java client speaks the second protocol (KIP-890), librdkafka and aiokafka the first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from app.wire.apikeys import ApiKey
from tests.interop.java_programs import JavaProgram, Tools, running
from tests.interop.peers import request
from tests.interop.serving import COLD_CONFIGS, EARLIEST_LOCAL, Raw, Served, create_topic, firn_serving, offset_of
from tests.interop.tools import DUMP, TOPICS
from tests.interop.transactional import DEADLINE_S, JavaProducer, consumed
from tests.support.waiting import block_until

pytestmark = pytest.mark.interop

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
LATEST, LATEST_TIERED = -1, -5


@pytest.fixture(scope="module")
def java() -> Iterator[JavaProgram]:
    with running("TransactionalProducer.java") as program:
        yield program


def described(firn: Served, transactional_id: str) -> tuple[str, int, int]:
    """State, producer id and epoch."""
    with Raw(firn.port) as raw:
        answer = raw.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[transactional_id])
        )
    (state,) = answer.transaction_states
    assert state.error_code == 0
    return state.transaction_state, state.producer_id, state.producer_epoch


def committed_offset(firn: Served, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": firn.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=60)
        return int(found.offset)
    finally:
        consumer.close()


@pytest.mark.ci
def test_the_java_client_speaks_the_second_protocol(java: JavaProgram, quiet: Served) -> None:
    create_topic(quiet.port, "java", 2)
    producer = JavaProducer(java, "p", quiet, "java-tx")
    producer("init")
    _, producer_id, epoch = described(quiet, "java-tx")
    for number, end in enumerate(("commit", "abort", "commit")):
        producer("begin")
        for partition in (0, 1):
            producer("send", "java", partition, f"{end}{number}")
        assert described(quiet, "java-tx") == ("Ongoing", producer_id, epoch + number)
        producer(end)
    # The markers may still be on their way: the client is answered once the decision is stored.
    block_until(lambda: described(quiet, "java-tx")[0] != "PrepareCommit", "the transaction is complete")
    assert described(quiet, "java-tx") == ("CompleteCommit", producer_id, epoch + 3), "every end raises the epoch"
    for partition in (0, 1):
        assert consumed(quiet, "java", 2, partition=partition) == ["commit0", "commit2"]
        assert len(consumed(quiet, "java", 3, partition=partition, isolation="read_uncommitted")) == 3
    producer("begin")
    producer("abort")
    producer("close")


@pytest.mark.ci
def test_offsets_of_a_java_transaction_count_only_if_it_is_committed(java: JavaProgram, quiet: Served) -> None:
    create_topic(quiet.port, "javaoffsets", 1)
    producer = JavaProducer(java, "p", quiet, "java-offsets-tx")
    producer("init")
    for end, offset in (("commit", 5), ("abort", 7)):
        producer("begin")
        producer("send", "javaoffsets", 0, end)
        producer("offsets", "java-group", "javaoffsets", 0, offset)
        producer(end)
        assert committed_offset(quiet, "java-group", "javaoffsets") == 5
    producer("close")


@pytest.mark.ci
def test_a_second_java_producer_fences_the_first(java: JavaProgram, quiet: Served) -> None:
    create_topic(quiet.port, "javafence", 1)
    first = JavaProducer(java, "first", quiet, "fence-tx")
    first("init")
    first("begin")
    first("send", "javafence", 0, "lost")
    second = JavaProducer(java, "second", quiet, "fence-tx")
    second("init")
    second("begin")
    second("send", "javafence", 0, "kept")
    assert re.match("InvalidProducerEpochException|ProducerFencedException", first.ask("send", "javafence", 0, "late"))
    assert "Fenced" in first.ask("commit") or "Exception" in first.ask("commit")
    second("commit")
    assert consumed(quiet, "javafence", 1) == ["kept"]
    first("close")
    second("close")


@pytest.mark.ci
def test_librdkafka_commits_aborts_and_is_fenced(quiet: Served) -> None:
    create_topic(quiet.port, "rdkafka", 1)
    settings = {"bootstrap.servers": quiet.bootstrap, "transactional.id": "rdkafka-tx"}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(DEADLINE_S)
    for end in ("commit", "abort", "commit"):
        producer.begin_transaction()
        for number in range(100):
            producer.produce("rdkafka", f"{end}{number}")
        if end == "commit":
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.flush(DEADLINE_S)
            producer.abort_transaction(DEADLINE_S)
    assert len(consumed(quiet, "rdkafka", 200)) == 200
    producer.begin_transaction()
    producer.produce("rdkafka", "lost")
    producer.flush(DEADLINE_S)
    other = confluent_kafka.Producer(settings)
    other.init_transactions(DEADLINE_S)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        producer.commit_transaction(DEADLINE_S)
    assert raised.value.args[0].fatal()
    assert len(consumed(quiet, "rdkafka", 200)) == 200


@pytest.mark.ci
def test_read_committed_is_the_same_from_the_tier(quiet: Served) -> None:
    create_topic(quiet.port, "coldtx", 1, COLD_CONFIGS)
    producer = confluent_kafka.Producer({"bootstrap.servers": quiet.bootstrap, "transactional.id": "cold-tx"})
    producer.init_transactions(DEADLINE_S)
    kept: list[str] = []
    for number in range(16):
        producer.begin_transaction()
        values = [f"{number}-{place}-".ljust(1_000, "x") for place in range(200)]
        for value in values:
            producer.produce("coldtx", value)
        if number % 3 == 1:
            producer.flush(DEADLINE_S)
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
            kept += values
    producer.begin_transaction()
    producer.produce("coldtx", "open")
    producer.flush(DEADLINE_S)
    open_from = offset_of(quiet.port, "coldtx", LATEST) - 1
    plain = confluent_kafka.Producer({"bootstrap.servers": quiet.bootstrap})
    for number in range(2_500):
        plain.produce("coldtx", f"{number}".ljust(1_000, "y"))
    assert plain.flush(DEADLINE_S) == 0
    block_until(lambda: offset_of(quiet.port, "coldtx", EARLIEST_LOCAL) > 0, "the first segments leave the local disk")
    assert consumed(quiet, "coldtx", len(kept)) == kept
    assert offset_of(quiet.port, "coldtx", LATEST_TIERED) < open_from, "what is open is not tiered"
    producer.abort_transaction(DEADLINE_S)
    block_until(lambda: offset_of(quiet.port, "coldtx", LATEST_TIERED) > open_from, "what is decided is tiered")
    assert len(consumed(quiet, "coldtx", len(kept) + 2_500)) == len(kept) + 2_500
    everything = 16 * 200 + 1 + 2_500
    assert len(consumed(quiet, "coldtx", everything, isolation="read_uncommitted")) == everything


async def test_aiokafka_commits_offsets_with_records(quiet: Served) -> None:
    create_topic(quiet.port, "aiotx", 1)
    producer = AIOKafkaProducer(bootstrap_servers=quiet.bootstrap, transactional_id="aio-tx")
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait("aiotx", b"kept", partition=0)
            await producer.send_offsets_to_transaction({TopicPartition("aiotx", 0): 3}, "aio-group")
        await producer.begin_transaction()
        await producer.send_and_wait("aiotx", b"lost", partition=0)
        await producer.send_offsets_to_transaction({TopicPartition("aiotx", 0): 4}, "aio-group")
        await producer.abort_transaction()
    finally:
        await producer.stop()
    assert consumed(quiet, "aiotx", 1) == ["kept"]
    assert committed_offset(quiet, "aio-group", "aiotx") == 3


@pytest.mark.ci
def test_kafkas_tools_list_describe_find_and_abort_transactions(
    jvm: JavaProgram, java: JavaProgram, quiet: Served
) -> None:
    tools = Tools(jvm, quiet)
    create_topic(quiet.port, "tooltx", 1)
    producer = JavaProducer(java, "p", quiet, "tool-tx")
    producer("init")
    producer("begin")
    producer("send", "tooltx", 0, "open")
    _, producer_id, epoch = described(quiet, "tool-tx")
    listed = tools(TRANSACTIONS, "list")
    assert re.search(rf"tool-tx\s+\d+\s+{producer_id}\s+Ongoing", listed), listed
    assert "tool-tx" in tools(TRANSACTIONS, "list", "--transactional-id-pattern", "tool-.*")
    assert "tool-tx" not in tools(TRANSACTIONS, "list", "--transactional-id-pattern", "java-.*")
    assert "tool-tx" not in tools(TRANSACTIONS, "list", "--duration-filter", "100000000")
    shown = tools(TRANSACTIONS, "describe", "--transactional-id", "tool-tx")
    assert re.search(rf"{producer_id}\s+{epoch}\s+Ongoing\s+60000\s+.*tooltx-0", shown), shown
    writers = tools(TRANSACTIONS, "describe-producers", "--topic", "tooltx", "--partition", 0)
    assert re.search(rf"{producer_id}\s+{epoch}\s+-1\s+0\s+\d+\s+0", writers), writers
    assert "tool-tx" not in tools(TRANSACTIONS, "find-hanging", "--broker-id", 1)
    tools(TRANSACTIONS, "abort", "--topic", "tooltx", "--partition", 0, "--start-offset", 0)
    assert consumed(quiet, "tooltx", 0) == []
    producer("close")


@pytest.mark.slow
def test_a_transaction_that_no_coordinator_knows_of_is_found_and_ended_by_kafkas_tool(
    jvm: JavaProgram, tmp_path: Path
) -> None:
    with firn_serving(tmp_path) as firn:
        tools = Tools(jvm, firn)
        create_topic(firn.port, "hanging", 1)
        for transactional_id in ("known", "forgotten"):
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": firn.bootstrap, "transactional.id": transactional_id}
            )
            producer.init_transactions(DEADLINE_S)
            producer.begin_transaction()
            producer.produce("hanging", transactional_id)
            assert producer.flush(DEADLINE_S) == 0
            if transactional_id == "known":
                find = ("find-hanging", "--broker-id", 1, "--max-transaction-timeout", 0)
                assert "hanging" not in tools(TRANSACTIONS, *find), "its coordinator will end it"
                producer.commit_transaction(DEADLINE_S)
        _, producer_id, epoch = described(firn, "forgotten")
        done = tools.run(TOPICS, "--bootstrap-server", firn.bootstrap, "--delete", "--topic", "__transaction_state")
        assert done.code == 0, done
        block_until(lambda: "hanging" in tools(TRANSACTIONS, *find), "the transaction is found")
        assert re.search(rf"hanging\s+0\s+{producer_id}\s+{epoch}\s", tools(TRANSACTIONS, *find))
        tools(TRANSACTIONS, "abort", "--topic", "hanging", "--partition", 0, "--start-offset", 2)
        assert "hanging" not in tools(TRANSACTIONS, *find)
        assert consumed(firn, "hanging", 1) == ["known"]
        assert offset_of(firn.port, "hanging", LATEST) == 4


@pytest.mark.ci
def test_kafkas_tool_reads_the_transaction_log(jvm: JavaProgram, quiet: Served) -> None:
    tools = Tools(jvm, quiet)
    create_topic(quiet.port, "dumptx", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": quiet.bootstrap, "transactional.id": "dump-tx"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce("dumptx", "x")
    producer.commit_transaction(DEADLINE_S)
    dumps = []
    for log in sorted(quiet.data_dir.glob("__transaction_state-*/*.log")):
        if log.stat().st_size:
            done = tools.run(DUMP, "--transaction-log-decoder", "--files", log)
            assert done.code == 0, done
            dumps.append(done.out)
    # Other tests' transactional ids may lie in the same partition.
    dump = "\n".join(line for line in "\n".join(dumps).splitlines() if '"transactionalId":"dump-tx"' in line)
    assert [int(state) for state in re.findall(r'"transactionStatus":(\d)', dump)] == [0, 1, 2, 4], dump
    assert '"topic":"dumptx","partitionIds":[0]' in dump
