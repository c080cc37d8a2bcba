"""What a Metadata request costs a broker that knows many partitions: ``python -m loadtests.micro_metadata``.

Each line is the CPU of one request, from its decoded message to the response's frame: the first after a change of the image that
changed everything (a broker was fenced), the first after a change of one partition's in-sync set, and every later one; and of its
longest turn of the loop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TimestampMs, TopicId
from app.handlers.apis.metadata import handle
from app.handlers.base.request import Request
from app.handlers.state.metadata_cache import MetadataCache
from app.metadata.image.image import BrokerImage, ClusterImage, ControllerImage, PartitionImage, TopicImage
from app.metadata.image.records import Endpoint
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.framing import response_frame

VERSION: Final = 12
ROUNDS: Final = 15
SHAPES: Final = ((1_000, 10), (100, 100), (1, 10_000))
"""Topics, and partitions of each."""


def image_of(topics: int, partitions: int) -> ClusterImage:
    """Three brokers, and topics with three replicas."""
    replicas = (BrokerId(1), BrokerId(2), BrokerId(3))
    made = [
        TopicImage(
            TopicId(UUID(int=number + 1)),
            f"topic-{number}",
            tuple(
                PartitionImage(PartitionIndex(index), BrokerId(index % 3 + 1), LeaderEpoch(4), 9, replicas, replicas)
                for index in range(partitions)
            ),
            {},
            TimestampMs(0),
        )
        for number in range(topics)
    ]
    return ClusterImage(
        cluster_id="cluster",
        controller=ControllerImage(1, BrokerId(1), UUID(int=7)),
        topics_by_name={topic.name: topic for topic in made},
        topics_by_id={topic.topic_id: topic for topic in made},
        brokers={
            node_id: BrokerImage(
                node_id, UUID(int=node_id), UUID(int=node_id), node_id,
                (Endpoint("PLAINTEXT", f"broker-{node_id}", 9092, "PLAINTEXT"),), None, TimestampMs(0),
            )
            for node_id in replicas
        },
    )  # fmt: skip


def fenced_or_not(image: ClusterImage) -> ClusterImage:
    """The same with another map of brokers, as after a fence."""
    return ClusterImage(
        cluster_id=image.cluster_id,
        controller=image.controller,
        topics_by_name=image.topics_by_name,
        topics_by_id=image.topics_by_id,
        brokers=dict(image.brokers),
    )


def one_shrunk(image: ClusterImage) -> ClusterImage:
    """The same after a change of one partition's in-sync set."""
    first = next(iter(image.topics_by_name.values()))
    partition = first.partitions[0]._replace(partition_epoch=first.partitions[0].partition_epoch + 1)
    changed = TopicImage(first.topic_id, first.name, (partition, *first.partitions[1:]), {}, first.created_ms)
    return ClusterImage(
        cluster_id=image.cluster_id,
        controller=image.controller,
        topics_by_name={**image.topics_by_name, first.name: changed},
        topics_by_id={**image.topics_by_id, first.topic_id: changed},
        brokers=image.brokers,
    )


def main() -> None:
    for topics, partitions in SHAPES:
        image = image_of(topics, partitions)
        context: Any = SimpleNamespace(
            image=image,
            authorizer=None,
            metadata_cache=MetadataCache(),
            partitions=SimpleNamespace(offline={}, offline_changes=0),
            config=SimpleNamespace(auto_create_topics_enable=True, node_id=1),
        )
        request = Request(int(ApiKey.METADATA), VERSION, 1, "micro", None)  # type: ignore[arg-type] # nobody asks

        def ask(message: MetadataRequest, context: Any = context, request: Request = request) -> tuple[bytes, float]:
            """The response, and the CPU of its longest turn of the loop in milliseconds."""
            began_s, longest_ms = time.process_time_ns(), 0.0
            answer = handle(context, request, message)
            if isinstance(answer, Coroutine):
                try:
                    while True:
                        answer.send(None)
                        longest_ms = max(longest_ms, (time.process_time_ns() - began_s) / 1e6)
                        began_s = time.process_time_ns()
                except StopIteration as over:
                    answer = over.value
            frame = response_frame(ApiKey.METADATA, VERSION, 1, answer)
            return frame, max(longest_ms, (time.process_time_ns() - began_s) / 1e6)

        def change(to: Callable[[ClusterImage], ClusterImage], context: Any = context) -> None:
            context.image = to(context.image)

        everything = MetadataRequest(topics=None)
        one = MetadataRequest(topics=[MetadataRequestTopic(name="topic-0")])
        print(f"{topics:,} topics of {partitions:,} partitions: {len(ask(everything)[0]):,} bytes")
        cases: tuple[tuple[str, Callable[[], None], MetadataRequest], ...] = (
            ("all topics, a broker was fenced", lambda: change(fenced_or_not), everything),
            ("all topics, one in-sync set changed", lambda: change(one_shrunk), everything),
            ("all topics, nothing changed", lambda: None, everything),
            ("one topic, another image", lambda: change(one_shrunk), one),
            ("one topic, nothing changed", lambda: None, one),
        )
        for name, before, message in cases:
            taken, turns = [], []
            for _ in range(ROUNDS):
                before()
                began_s = time.process_time_ns()
                turns.append(ask(message)[1])
                taken.append((time.process_time_ns() - began_s) / 1e6)
            print(
                f"  {name:40}{statistics.median(taken):10.3f} ms{min(taken):10.3f} ms, turn"
                f"{statistics.median(turns):10.3f} ms"
            )


if __name__ == "__main__":
    main()
