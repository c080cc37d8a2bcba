"""The registry's client of confluent-kafka, and its serialisers and deserialisers, over a broker with its HTTP process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tests.interop.serving import Served, create_topic, firn_serving
from tests.support.ports import free_port
from tests.support.waiting import block_until

pytest.importorskip("authlib", reason="authlib is not here")
registry = pytest.importorskip("confluent_kafka.schema_registry", reason="confluent-kafka is not here")

from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: E402
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer  # noqa: E402
from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: E402
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer  # noqa: E402
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

pytestmark = pytest.mark.interop

TIMEOUT_S: Final = 60
PLACE_AVRO: Final = json.dumps({"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]})
PERSON_AVRO: Final = json.dumps(
    {
        "type": "record",
        "name": "Person",
        "fields": [{"name": "name", "type": "string"}, {"name": "home", "type": "Place"}],
    }
)
PLACE_JSON: Final = json.dumps(
    {
        "$id": "http://firn/place.json",
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }
)
PERSON_JSON: Final = json.dumps(
    {
        "title": "Person",
        "type": "object",
        "properties": {"name": {"type": "string"}, "home": {"$ref": "http://firn/place.json"}},
    }
)
PERSON: Final = {"name": "Ada", "home": {"city": "London"}}


class Sides:
    """A broker, its registry, and a client of each."""

    def __init__(self, firn: Served, port: int) -> None:
        self.firn = firn
        self.url = f"http://127.0.0.1:{port}"
        self.clients = ExitStack()
        self.client = self.another_client()

    def another_client(self) -> Any:
        """A client that knows no schemas yet."""
        return self.clients.enter_context(registry.SchemaRegistryClient({"url": self.url}))

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def there_and_back(self, topic: str, value: bytes) -> bytes:
        """A value as a consumer reads it from a new topic."""
        create_topic(self.firn.port, topic)
        producer = Producer({"bootstrap.servers": self.firn.bootstrap})
        producer.produce(topic, value)
        assert producer.flush(TIMEOUT_S) == 0
        return self.consumed(topic)

    def produced(self, topic: str, record: Any) -> Any:
        """The receipt of a record that is produced by REST v3."""
        with urllib.request.urlopen(f"{self.url}/v3/clusters", timeout=TIMEOUT_S) as answer:
            cluster_id = json.load(answer)["data"][0]["cluster_id"]
        url = f"{self.url}/v3/clusters/{cluster_id}/topics/{topic}/records"
        sent = urllib.request.Request(url, json.dumps(record).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(sent, timeout=TIMEOUT_S) as answer:
            return json.load(answer)

    def consumed(self, topic: str) -> bytes:
        """The first value of a topic, as a consumer reads it."""
        consumer = Consumer({"bootstrap.servers": self.firn.bootstrap, "group.id": topic})
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            found = message.value()
            assert isinstance(found, bytes)
            return found
        finally:
            consumer.close()


@pytest.fixture(scope="module", name="sides")
def _sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    port = free_port()
    with firn_serving(tmp_path_factory.mktemp("firn"), "--http", f"127.0.0.1:{port}") as firn:
        sides = Sides(firn, port)
        block_until(sides.is_ready, "HTTP is ready")
        with sides.clients:
            yield sides


def reference(name: str, subject: str) -> Any:
    return registry.SchemaReference(name, subject, 1)


def of(topic: str) -> Any:
    return SerializationContext(topic, MessageField.VALUE)


def test_avro_with_a_reference(sides: Sides) -> None:
    sides.client.register_schema("avro-place", registry.Schema(PLACE_AVRO, "AVRO"))
    schema = registry.Schema(PERSON_AVRO, "AVRO", [reference("Place", "avro-place")])
    value = AvroSerializer(sides.client, schema)(PERSON, of("avro"))
    fresh = sides.another_client()
    assert AvroDeserializer(fresh)(sides.there_and_back("avro", value), of("avro")) == PERSON
    assert fresh.get_latest_version("avro-value").schema.references == schema.references


def test_a_schema_that_a_serialiser_registers_has_its_guid_in_a_header(sides: Sides) -> None:
    serializer = AvroSerializer(
        sides.client, PLACE_AVRO, conf={"schema.id.serializer": registry.header_schema_id_serializer}
    )
    headers: list[tuple[str, bytes]] = []
    place = {"city": "London"}
    value = serializer(place, SerializationContext("guids", MessageField.VALUE, headers))
    assert [(name, id[:1], len(id)) for name, id in headers] == [("__value_schema_id", b"\x01", 17)]
    deserializer = AvroDeserializer(
        sides.another_client(), conf={"schema.id.deserializer": registry.dual_schema_id_deserializer}
    )
    assert deserializer(value, SerializationContext("guids", MessageField.VALUE, headers)) == place


def test_json_schema_with_a_reference(sides: Sides) -> None:
    sides.client.register_schema("json-place", registry.Schema(PLACE_JSON, "JSON"))
    schema = registry.Schema(PERSON_JSON, "JSON", [reference("http://firn/place.json", "json-place")])
    serializer = JSONSerializer(schema, sides.client)
    value = serializer(PERSON, of("json"))
    fresh = sides.another_client()
    deserializer = JSONDeserializer(None, schema_registry_client=fresh)
    assert deserializer(sides.there_and_back("json", value), of("json")) == PERSON
    with pytest.raises(Exception, match="city"):
        serializer({"name": "Ada", "home": {}}, of("json"))


def person_classes() -> Any:
    """The class of a message in a file that imports another one."""
    pool = DescriptorPool()
    place = FileDescriptorProto(name="place.proto", package="firn.places", syntax="proto3")
    place.message_type.add(name="Place").field.add(name="city", number=1, label=1, type=9)
    person = FileDescriptorProto(name="person.proto", package="firn", syntax="proto3", dependency=["place.proto"])
    message = person.message_type.add(name="Person")
    message.field.add(name="name", number=1, label=1, type=FieldDescriptorProto.TYPE_STRING)
    message.field.add(name="home", number=2, label=1, type=11, type_name=".firn.places.Place")
    pool.AddSerializedFile(place.SerializeToString())
    pool.AddSerializedFile(person.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("firn.Person"))


def test_protobuf_with_an_import(sides: Sides) -> None:
    kind = person_classes()
    value = ProtobufSerializer(kind, sides.client)(kind(**PERSON), of("protobuf"))
    fresh = sides.another_client()
    read = ProtobufDeserializer(kind, {}, fresh)(sides.there_and_back("protobuf", value), of("protobuf"))
    assert read == kind(**PERSON)
    stored = fresh.get_latest_version("protobuf-value").schema
    assert stored.references == [reference("place.proto", "place.proto")]
    assert "message Person {\n  string name = 1;\n  .firn.places.Place home = 2;\n}" in stored.schema_str
    # A serialiser of a text finds the id of the descriptor's schema.
    again = registry.Schema(stored.schema_str, "PROTOBUF", stored.references)
    assert fresh.lookup_schema("protobuf-value", again).version == 1


@pytest.mark.parametrize("kind", ["AVRO", "JSONSCHEMA", "PROTOBUF"])
def test_records_of_rest_v3_are_read_with_references(sides: Sides, kind: str) -> None:
    topic = f"rest-{kind.lower()}"
    client, message = sides.client, person_classes()
    match kind:
        case "AVRO":
            client.register_schema("avro-place", registry.Schema(PLACE_AVRO, "AVRO"))
            schema = registry.Schema(PERSON_AVRO, "AVRO", [reference("Place", "avro-place")])
        case "JSONSCHEMA":
            client.register_schema("json-place", registry.Schema(PLACE_JSON, "JSON"))
            schema = registry.Schema(PERSON_JSON, "JSON", [reference("http://firn/place.json", "json-place")])
        case _:
            ProtobufSerializer(message, client)(message(**PERSON), of(topic))
            schema = client.get_latest_version(f"{topic}-value").schema
    if kind != "PROTOBUF":
        client.register_schema(f"{topic}-value", schema)
    create_topic(sides.firn.port, topic)
    receipt = sides.produced(topic, {"value": {"type": kind, "data": PERSON}})
    assert (receipt["error_code"], receipt["value"]["subject"]) == (200, f"{topic}-value")
    fresh = sides.another_client()
    value = sides.consumed(topic)
    match kind:
        case "AVRO":
            assert AvroDeserializer(fresh)(value, of(topic)) == PERSON
        case "JSONSCHEMA":
            assert JSONDeserializer(None, schema_registry_client=fresh)(value, of(topic)) == PERSON
        case _:
            assert ProtobufDeserializer(message, {}, fresh)(value, of(topic)) == message(**PERSON)


def test_the_client_lists_compares_configures_and_deletes(sides: Sides) -> None:
    client = sides.client
    client.set_compatibility("subject", "FORWARD")
    assert client.get_compatibility("subject") == "FORWARD"
    number = client.register_schema("subject", registry.Schema(PLACE_AVRO, "AVRO"))
    assert client.get_schema(number).schema_str == json.dumps(json.loads(PLACE_AVRO), separators=(",", ":"))
    assert client.get_versions("subject") == [1]
    assert "subject" in client.get_subjects()
    assert client.test_compatibility("subject", registry.Schema('"string"', "AVRO")) is False
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("subject", registry.Schema('"string"', "AVRO"))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert client.delete_subject("subject") == [1]
    assert client.delete_subject("subject", permanent=True) == [1]
    with pytest.raises(SchemaRegistryError) as missing:
        client.get_latest_version("subject")
    assert (missing.value.http_status_code, missing.value.error_code) == (404, 40401)
