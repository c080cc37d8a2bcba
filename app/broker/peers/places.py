"""Asking and telling another broker over Kafka's protocol; see ``app/metadata/peers/place.py``.

Tests: ``tests/broker/test_cluster_refusals.py``.
"""

from __future__ import annotations

from uuid import UUID

from app.client.connection import Dialer, dial_tcp, open_connection
from app.configs.listeners import SecurityProtocol
from app.core.errors import BrokerUnavailable, NotTrusted, ProtocolError, RequestRejected
from app.metadata.image.records import Endpoint
from app.metadata.peers.place import ASK_S, Holder, Stranger
from app.wire.apikeys import ApiKey
from app.wire.private import PlaceRequest, PlaceResponse, pack, unpack

TIMEOUT_MS = int(ASK_S * 1000)


class KafkaPlaces:
    """Over TCP."""

    def __init__(self, *, dial: Dialer = dial_tcp) -> None:
        self._dial = dial
        self._secure = hasattr(dial, "login")

    async def ask(
        self, endpoint: Endpoint, *, cluster_id: str, node_id: int, directory_id: UUID, replaced_by: str = ""
    ) -> Holder | Stranger | None:
        # A plain listener is asked plainly, also by a broker that has none any more: it is told no secret.
        dial = dial_tcp if endpoint.protocol == SecurityProtocol.PLAINTEXT and self._secure else self._dial
        try:
            connection = await open_connection(
                endpoint.host, endpoint.port, client_id="firn-place", timeout_ms=TIMEOUT_MS, dial=dial
            )
        except (NotTrusted, RequestRejected) as error:
            return Stranger(str(error))
        except BrokerUnavailable:
            return None
        try:
            asked = PlaceRequest(cluster_id, node_id, directory_id, replaced_by)
            answer = await connection.request(ApiKey.FIRN_PLACE, pack(asked), timeout_ms=TIMEOUT_MS)
            return holder(unpack(PlaceResponse, answer))
        except (BrokerUnavailable, RequestRejected, ProtocolError):
            return None
        finally:
            await connection.close()


def holder(answer: PlaceResponse) -> Holder:
    return Holder(
        answer.cluster_id,
        answer.node_id,
        answer.directory_id,
        answer.looks,
        answer.untiered_bytes,
        answer.untiered_partitions,
    )
