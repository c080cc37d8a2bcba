"""The rights that each API needs, and the form of a refusal: as in Apache Kafka (ADR 0030).

``TABLE`` is the one place that names the rights. An API without an entry is not served (``dispatch.py``). Most entries are applied
before the handler is called (``guarded``). They refuse the whole request, or take out the resources that the caller may not touch.
Each of these is answered with an error beside the rest. ``HandlerRight`` entries are applied by the handler, because only
the handler knows the names.

Without an authorizer every caller has all rights, and a check costs one comparison.

Tests: ``tests/broker/test_authorisation.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.configs import BrokerConfig
from app.coordinator.topics import HTTP_REQUESTS
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import STRIDE, Steps, run, slices, whole
from app.core.units import NO_TOPIC_ID
from app.exactly_once.transactional_ids import is_of_requests, may_use
from app.handlers.base.api import Api
from app.handlers.base.portions import Handle, as_coroutine
from app.security.acls import CLUSTER_NAME, Acls, Operation, ResourceType
from app.security.authorizer import Authorizer, split_super_users
from app.security.noting import note
from app.wire.apikeys import ApiKey

if TYPE_CHECKING:
    from uuid import UUID

    from app.handlers.base.context import Context
    from app.handlers.base.request import Request
    from app.handlers.base.views import ImageView, RightsView
    from app.handlers.policy.callers import Caller

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
)  # fmt: skip
CLUSTER_ACTION, IDEMPOTENT_WRITE = Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
KEYED: Final = HTTP_REQUESTS.name
DELEGATION_TOKEN, USER = ResourceType.DELEGATION_TOKEN, ResourceType.USER

FAILED: Final[Mapping[int, ErrorCode]] = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error of a missing right, by the type of resource."""

# The operations that each type of resource has, as the bit field of ``authorized_operations`` in responses (KIP-430). Without an
# authorizer a caller may do all of them.
NOT_ASKED: Final = -(1 << 31)
"""In place of authorized operations that the client did not ask for."""
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""

JUDGED_FROM: Final = 500
"""Resources of a request from which on a ``judge`` is worth its look at all rules. A request may name 50,000."""

STEPS_AT_ONCE: Final = 64
"""Steps of the checks of a request that are done at once, of ``STRIDE`` names each: about 1 ms. The others are done in portions."""

Finish = Callable[[Any], Iterable[None]]
"""Completes a handler's response with the items that were taken out of the request, in steps."""


class _Answered(Exception):
    """No resource of a request is left for the handler."""

    def __init__(self, response: Any) -> None:
        self.response = response


def new_authorizer(config: BrokerConfig) -> Authorizer | None:
    """The authorizer of a broker's settings; None if all callers have all rights."""
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        split_super_users(config.super_users),
        allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found,
    )


# --- asking ---------------------------------------------------------------------------------------------------------


def may(
    context: RightsView, caller: Caller, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME
) -> bool:
    """Whether the caller has the right to ``operation``. Without an authorizer every caller has all rights."""
    authorizer = context.authorizer
    if authorizer is None:
        return True
    principal = caller.rights.principal
    if kind is TRANSACTIONAL_ID and is_of_requests(name):
        if may_use(principal, name):
            return True
        if operation is not DESCRIBE:
            return False  # it is another principal's (ADR 0043, EO8)
    elif name == KEYED and operation is READ:
        # Records of all callers: a rule for all topics does not give them away (ADR 0043, EO13).
        return authorizer.allows_by_name(principal, caller.host, operation, kind, name) or authorizer.allows(
            principal, caller.host, CLUSTER_ACTION, CLUSTER, CLUSTER_NAME
        )
    return authorizer.allows(principal, caller.host, operation, kind, name)


def judge(context: RightsView, caller: Caller, operation: Operation, kind: ResourceType) -> Callable[[str], bool]:
    """``may`` for many names. To be used at once: it does not see a change of the rules."""
    authorizer = context.authorizer
    if authorizer is None:
        return lambda _: True
    if kind is TRANSACTIONAL_ID:
        return partial(may, context, caller, operation, kind)
    found = authorizer.judge(caller.rights.principal, caller.host, operation, kind)
    if operation is not READ:
        return found
    return lambda name: may(context, caller, operation, kind, name) if name == KEYED else found(name)


def denial(caller: Caller, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> RequestRejected:
    """The error for a caller that lacks the right to ``operation``."""
    what = "the cluster" if kind is CLUSTER else f"{kind.name.lower().replace('_', ' ')} '{name}'"
    return RequestRejected(FAILED[kind], f"{caller.principal} is not allowed to {operation.name} {what}.")


def refuse(request: Request, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> RequestRejected:
    """As ``denial``. Notes the refusal for the audit log."""
    note(request, operation, kind, name)
    return denial(request.caller, operation, kind, name)


def require(
    context: RightsView, request: Request, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME
) -> None:
    """Raises: RequestRejected with the code of the type of resource."""
    if not may(context, request.caller, operation, kind, name):
        raise refuse(request, operation, kind, name)


def cluster_operations(context: RightsView, caller: Caller, everything: int) -> int:
    """The operations that a caller may do with the cluster, as bits; none if it may not describe the cluster."""
    authorizer = context.authorizer
    if authorizer is None:
        return everything
    if not may(context, caller, DESCRIBE, CLUSTER):
        return 0
    return authorizer.operations(caller.principal, caller.host, CLUSTER, CLUSTER_NAME)


def operations(context: RightsView, caller: Caller, kind: ResourceType, name: str, everything: int) -> int:
    """The operations that a caller may do with a resource, as bits; ``everything`` without an authorizer."""
    authorizer = context.authorizer
    return everything if authorizer is None else authorizer.operations(caller.principal, caller.host, kind, name)


# --- the entries of the table ---------------------------------------------------------------------------------------


class Whole(NamedTuple):
    """A right for the request as a whole."""

    operation: Operation
    kind: ResourceType = CLUSTER
    name: str = ""
    """Field of the request that names the resource; for the cluster none."""
    instead: Operation | None = None
    """Another operation on the cluster that is enough."""
    versions: tuple[int, int] = (0, 99)

    def steps(self, asking: _Asking) -> Iterable[None]:
        """Raises: RequestRejected."""
        self.apply(asking)
        return ()

    def apply(self, asking: _Asking) -> None:
        """Raises: RequestRejected."""
        if not self.versions[0] <= asking.request.api_version <= self.versions[1]:
            return
        name = getattr(asking.message, self.name) if self.name else CLUSTER_NAME
        if name is None:
            return
        if self.instead is not None and asking.may(self.instead, CLUSTER):
            return
        if not asking.may(self.operation, self.kind, name):
            raise refuse(asking.request, self.operation, self.kind, name)


class Each(NamedTuple):
    """A right for each of the resources that a request lists. Resources without it are refused, and the others are served."""

    operation: Operation
    kind: ResourceType
    items: str
    """Field of the request with the list."""
    into: str
    """Field of the response with the list of results."""
    name: str = ""
    """Field of an item with the name; empty if the item is the name."""
    by_id: str = ""
    """Field of an item with the topic's id, for items without a name."""
    instead: Operation | None = None
    """An operation on the cluster that is enough for all."""

    def steps(self, asking: _Asking) -> Steps[None]:
        """Raises: _Answered."""
        items: Sequence[Any] | None = getattr(asking.message, self.items)
        if not items or (self.instead is not None and asking.may(self.instead, CLUSTER)):
            return
        allowed: list[Any] = []
        denied: list[Any] = []
        many = len(items) > JUDGED_FROM
        allows: Callable[[str], bool] = partial(asking.may, self.operation, self.kind)
        for number, item in enumerate(items):
            if many and number % STRIDE == 0:
                yield
                # The rules may have changed meanwhile.
                allows = judge(asking.context, asking.request.caller, self.operation, self.kind)
            name = self._name_of(asking.context, item)
            if name is None or allows(name):
                allowed.append(item)
            else:
                denied.append(item)
                asking.note(self.operation, self.kind, name)
        if denied:
            yield from asking.take_out(self.items, allowed, denied, self.into, FAILED[self.kind], self.operation)

    def _name_of(self, context: ImageView, item: Any) -> str | None:
        """The name of an item; None if it is unknown: then the caller is told that there is no such id."""
        if not self.name:
            return str(item)
        if self.by_id:
            topic_id: UUID = getattr(item, self.by_id)
            if topic_id != NO_TOPIC_ID:
                topic = context.image.topic_by_id(topic_id)
                return None if topic is None else topic.name
        return str(getattr(item, self.name))


class Listed(NamedTuple):
    """A right for each resource that a response lists. Resources without it are left out."""

    operation: Operation
    kind: ResourceType
    items: str
    """Field of the response."""
    name: str
    """Field of an item."""
    instead: Operation | None = None
    """An operation on the cluster that is enough for all."""

    def steps(self, asking: _Asking) -> Iterable[None]:
        if self.instead is not None and asking.may(self.instead, CLUSTER):
            return ()

        def leave_out(response: Any) -> Steps[None]:
            kept: list[Any] = []
            for some in slices(getattr(response, self.items), JUDGED_FROM):
                allows = judge(asking.context, asking.request.caller, self.operation, self.kind)
                kept += [one for one in some if allows(getattr(one, self.name))]
                yield
            setattr(response, self.items, kept)

        asking.finishes.append(leave_out)
        return ()


class Special(NamedTuple):
    """A check that needs a function of its own."""

    gate: Callable[[_Asking], Iterable[None]]
    asks: tuple[tuple[Operation, ResourceType], ...]
    """All rights that it may ask for."""

    def steps(self, asking: _Asking) -> Iterable[None]:
        """Raises: RequestRejected, _Answered."""
        return self.gate(asking)


class HandlerRight(NamedTuple):
    """A right that the handler itself checks."""

    operation: Operation
    kind: ResourceType
    names: str
    """Which resources, in words."""

    def steps(self, asking: _Asking) -> Iterable[None]:
        del asking
        return ()


Entry = Whole | Each | Listed | Special | HandlerRight


class _Asking:
    """One request on its way through the entries of its API."""

    __slots__ = ("api", "asked", "context", "finishes", "message", "request")

    def __init__(self, context: Context, request: Request, api: Api, message: Any) -> None:
        self.context = context
        self.request = request
        self.api = api
        self.asked = message
        """The request as it came."""
        self.message = message
        """The request without the items that were taken out. It is a copy: if the whole request fails, the response names all items
        of the original."""
        self.finishes: list[Finish] = []

    def may(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        return may(self.context, self.request.caller, operation, kind, name)

    def note(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Note a refusal for the audit log."""
        note(self.request, operation, kind, name)

    def take_out(
        self, field: str, allowed: list[Any], denied: list[Any], into: str, code: ErrorCode, operation: Operation
    ) -> Steps[None]:
        """Go on with ``allowed`` alone, and answer ``denied`` with ``code``. Raises: _Answered if nothing is left."""
        refuse = self.api.refuse_each or self.api.refuse
        sentence = f"{self.request.caller.principal} is not allowed to {operation.name} it."
        refused: Any = None
        for some in slices(denied, JUDGED_FROM):
            more = refuse(self.request, replace(self.message, **{field: some}), code, sentence)
            if refused is None:
                refused = more
            else:
                getattr(refused, into).extend(getattr(more, into))
            yield
        if not allowed:
            yield from self.finish(refused)
            raise _Answered(refused)
        self.message = replace(self.message, **{field: allowed})
        self.finishes.append(lambda response: _join(getattr(response, into), getattr(refused, into)))

    def checks(self, entries: Iterable[Entry]) -> Steps[None]:
        """Ask for all rights. Raises: RequestRejected, _Answered."""
        for entry in entries:
            yield from entry.steps(self)

    def finish(self, response: Any) -> Steps[None]:
        """Complete the handler's response with the items that were taken out of the request."""
        for finish in self.finishes:
            yield from finish(response)

    def finished(self, response: Any) -> Any:
        """As ``finish``, at once. Returns: the response."""
        whole(self.finish(response))
        return response

    def refused(self, error: RequestRejected) -> Any:
        """The response when the handler refuses the rest of the request. If one error stands for the whole response, the items that
        were taken out need none of their own."""
        response = self.api.refuse(self.request, self.message, error.code, str(error))
        return response if getattr(response, "error_code", 0) else self.finished(response)


def guarded(key: int, api: Api) -> Api:
    """``api`` with the checks of its entries before its handler. Raises: KeyError for an API without an entry."""
    entries = tuple([entry for entry in TABLE[ApiKey(key)] if not isinstance(entry, HandlerRight)])
    if not entries:
        return api
    handle = api.handle

    in_pieces = api.split is not None
    """The request comes here in short pieces."""

    def ask_first(context: Context, request: Request, message: Any) -> Any | Awaitable[Any]:
        authorizer = context.authorizer
        if authorizer is None:
            return handle(context, request, message)
        acls = authorizer.acls
        asking = _Asking(context, request, api, message)
        checks = asking.checks(entries)
        try:
            if in_pieces:
                whole(checks)
            else:
                for _ in range(STEPS_AT_ONCE):
                    next(checks)
                return _ask_on(asking, checks, entries, acls, handle)
        except StopIteration:
            pass
        except _Answered as answered:
            return answered.response
        if not asking.finishes:
            return handle(context, request, asking.message)
        try:
            answer = handle(context, request, asking.message)
        except RequestRejected as error:
            return asking.refused(error)
        return _finished(asking, answer) if isinstance(answer, Coroutine) else asking.finished(answer)

    return api._replace(handle=ask_first)


async def _ask_on(asking: _Asking, checks: Steps[None], entries: Sequence[Entry], acls: Acls, handle: Handle) -> Any:
    """Ask for the other rights of a long request in portions, and serve it. Rules that are not ``acls`` any more decide anew."""
    authorizer = asking.context.authorizer
    try:
        await run(checks)
        while authorizer is not None and authorizer.acls is not acls:
            acls = authorizer.acls
            asking = _Asking(asking.context, asking.request, asking.api, asking.asked)
            await run(asking.checks(entries))
    except _Answered as answered:
        return answered.response
    try:
        answer = handle(asking.context, asking.request, asking.message)
    except RequestRejected as error:
        return asking.refused(error)
    return await _finished(asking, as_coroutine(answer))


async def _finished(asking: _Asking, work: Coroutine[Any, Any, Any]) -> Any:
    try:
        response = await work
    except RequestRejected as error:
        return asking.refused(error)
    await run(asking.finish(response))
    return response


def _join(results: list[Any], more: Sequence[Any]) -> Iterable[None]:
    results.extend(more)
    return ()


# --- special checks -------------------------------------------------------------------------------------------------

_COORDINATED: Final = {0: GROUP, 1: TRANSACTIONAL_ID}
KEYS_IN_A_LIST_FROM: Final = 4


def _find_coordinator(asking: _Asking) -> Iterable[None]:
    kind = _COORDINATED.get(asking.message.key_type)
    if kind is None:
        # A share-partition, which only brokers ask for. The handler refuses every other type of key.
        return Whole(CLUSTER_ACTION).steps(asking)
    if asking.request.api_version < KEYS_IN_A_LIST_FROM:
        return Whole(DESCRIBE, kind, "key").steps(asking)
    return Each(DESCRIBE, kind, "coordinator_keys", "coordinators").steps(asking)


def _init_producer_id(asking: _Asking) -> Iterable[None]:
    message, caller = asking.message, asking.request.caller
    if message.transactional_id is not None:
        return Whole(WRITE, TRANSACTIONAL_ID, "transactional_id").steps(asking)
    authorizer = asking.context.authorizer
    if (
        authorizer is not None
        and not asking.may(IDEMPOTENT_WRITE, CLUSTER)
        and not authorizer.allows_any(caller.principal, caller.host, WRITE, TOPIC)
    ):
        raise refuse(asking.request, IDEMPOTENT_WRITE, CLUSTER)
    return ()


def _create_topics(asking: _Asking) -> Steps[None]:
    yield from Each(CREATE, TOPIC, "topics", "topics", "name", instead=CREATE).steps(asking)

    def hide(response: Any) -> Steps[None]:
        """Remove the settings of topics whose settings the caller may not describe."""
        for number, one in enumerate(response.topics):
            if number % STRIDE == 0:
                yield
            if not one.error_code and not asking.may(DESCRIBE_CONFIGS, TOPIC, one.name):
                one.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                one.configs, one.num_partitions, one.replication_factor = None, -1, -1

    asking.finishes.append(hide)


TOPIC_STATES_FROM: Final = 6


def _delete_topics(asking: _Asking) -> Steps[None]:
    if not asking.context.config.delete_topic_enable or asking.may(DELETE, CLUSTER):
        return
    image = asking.context.image
    field = "topics" if asking.request.api_version >= TOPIC_STATES_FROM else "topic_names"
    allowed: list[Any] = []
    denied: list[Any] = []
    for number, state in enumerate(getattr(asking.message, field)):
        if number % STRIDE == 0:
            yield
        named = state if isinstance(state, str) else state.name
        topic = image.topic(named) if named is not None else image.topic_by_id(state.topic_id)
        name = named if topic is None else topic.name
        if name is None or asking.may(DELETE, TOPIC, name):
            allowed.append(state)  # the handler says if there is no such id
        elif topic is None and asking.may(DESCRIBE, TOPIC, name):
            allowed.append(state)  # a caller that may see the topic may know that it does not exist
        else:
            told = named is None and asking.may(DESCRIBE, TOPIC, name)
            denied.append(replace(state, name=name) if told else state)
            asking.note(DELETE, TOPIC, name)
    if denied:
        yield from asking.take_out(field, allowed, denied, "responses", ErrorCode.TOPIC_AUTHORIZATION_FAILED, DELETE)


_CONFIGURED: Final = {2: TOPIC, 32: GROUP, 4: CLUSTER, 8: CLUSTER, 16: CLUSTER}
"""Kinds of config resource, and the kind of resource whose rights they need."""


def _configs(operation: Operation, into: str) -> Callable[[_Asking], Steps[None]]:
    def steps(asking: _Asking) -> Steps[None]:
        for kind in (TOPIC, GROUP, CLUSTER):
            allowed: list[Any] = []
            denied: list[Any] = []
            for number, one in enumerate(asking.message.resources):
                if number % STRIDE == 0:
                    yield
                name = CLUSTER_NAME if kind is CLUSTER else one.resource_name
                if _CONFIGURED.get(one.resource_type) is not kind or asking.may(operation, kind, name):
                    allowed.append(one)
                else:
                    denied.append(one)
                    asking.note(operation, kind, name)
            if denied:
                yield from asking.take_out("resources", allowed, denied, into, FAILED[kind], operation)

    return steps


def _subscribe(asking: _Asking) -> Steps[None]:
    """A member must be allowed to see all topics to which it subscribes."""
    names = asking.message.subscribed_topic_names
    for number, name in enumerate(names or ()):
        if number % STRIDE == 0:
            yield
        if not asking.may(DESCRIBE, TOPIC, name):
            raise refuse(asking.request, DESCRIBE, TOPIC, name)


def _describe_members(asking: _Asking) -> Iterable[None]:
    """A caller must be allowed to see the topics that members are assigned. Otherwise the group is not described."""

    def hide(response: Any) -> Steps[None]:
        for group in response.groups:
            names: set[str] = set()
            for member in group.members:
                for assignment in (member.assignment, getattr(member, "target_assignment", member.assignment)):
                    names.update([topic.topic_name for topic in assignment.topic_partitions])
                yield
            seen = True
            for number, name in enumerate(sorted(names)):
                if number % STRIDE == 0:
                    yield
                if not asking.may(DESCRIBE, TOPIC, name):
                    seen = False
                    asking.note(DESCRIBE, TOPIC, name)
            if seen:
                continue
            blank = type(group)(group_id=group.group_id)
            for field in blank.__slots__:
                setattr(group, field, getattr(blank, field))
            group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.error_message = "The group has described topic(s) that the client is not authorized to describe."

    asking.finishes.append(hide)
    return ()


def _described_transactions(asking: _Asking) -> Iterable[None]:
    def hide(response: Any) -> Steps[None]:
        for one in response.transaction_states:
            kept: list[Any] = []
            for some in slices(one.topics, STRIDE):
                kept += [topic for topic in some if asking.may(DESCRIBE, TOPIC, topic.topic)]
                yield
            one.topics = kept

    asking.finishes.append(hide)
    return ()


# --- the table ------------------------------------------------------------------------------------------------------

NOTHING: Final[tuple[Entry, ...]] = ()
_GROUP_READ: Final = Whole(READ, GROUP, "group_id")
_GROUP_DELETE: Final = Whole(DELETE, GROUP, "group_id")
_TRANSACTIONAL: Final = Whole(WRITE, TRANSACTIONAL_ID, "transactional_id")
_MEMBERS: Final = Special(_describe_members, ((DESCRIBE, TOPIC),))
_BETWEEN_BROKERS: Final[tuple[Entry, ...]] = (Whole(CLUSTER_ACTION),)
_ADMINISTERS: Final[tuple[Entry, ...]] = (Whole(ALTER),)
_LOOKS: Final[tuple[Entry, ...]] = (Whole(DESCRIBE),)

TABLE: Final[Mapping[ApiKey, tuple[Entry, ...]]] = {
    ApiKey.API_VERSIONS: NOTHING,
    ApiKey.SASL_HANDSHAKE: NOTHING,
    ApiKey.SASL_AUTHENTICATE: NOTHING,
    # Records.
    ApiKey.PRODUCE: (
        HandlerRight(WRITE, TRANSACTIONAL_ID, "the transactional id, if there is one"),
        HandlerRight(WRITE, TOPIC, "each topic"),
    ),
    ApiKey.FETCH: (
        HandlerRight(READ, TOPIC, "each topic of the request or session, at each look"),
        HandlerRight(CLUSTER_ACTION, CLUSTER, "instead, for replicas"),
    ),
    ApiKey.LIST_OFFSETS: (Each(DESCRIBE, TOPIC, "topics", "topics", "name"),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (Each(DESCRIBE, TOPIC, "topics", "topics", "topic", instead=CLUSTER_ACTION),),
    ApiKey.DELETE_RECORDS: (Each(DELETE, TOPIC, "topics", "topics", "name"),),
    # Topics.
    ApiKey.METADATA: (
        HandlerRight(DESCRIBE, TOPIC, "each topic"),
        HandlerRight(CREATE, CLUSTER, "if topics are to be created; or CREATE of each of them"),
        HandlerRight(CREATE, TOPIC, "each topic that is to be created"),
        HandlerRight(DESCRIBE, CLUSTER, "for the authorized operations of the cluster"),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (HandlerRight(DESCRIBE, TOPIC, "each topic"),),
    ApiKey.CREATE_TOPICS: (Special(_create_topics, ((CREATE, CLUSTER), (CREATE, TOPIC), (DESCRIBE_CONFIGS, TOPIC))),),
    ApiKey.DELETE_TOPICS: (Special(_delete_topics, ((DELETE, CLUSTER), (DELETE, TOPIC), (DESCRIBE, TOPIC))),),
    ApiKey.CREATE_PARTITIONS: (Each(ALTER, TOPIC, "topics", "results", "name"),),
    ApiKey.ELECT_LEADERS: _ADMINISTERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _ADMINISTERS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _LOOKS,
    # Groups.
    ApiKey.FIND_COORDINATOR: (
        Special(_find_coordinator, ((DESCRIBE, GROUP), (DESCRIBE, TRANSACTIONAL_ID), (CLUSTER_ACTION, CLUSTER))),
    ),
    ApiKey.JOIN_GROUP: (_GROUP_READ,),
    ApiKey.HEARTBEAT: (_GROUP_READ,),
    ApiKey.LEAVE_GROUP: (_GROUP_READ,),
    ApiKey.SYNC_GROUP: (_GROUP_READ,),
    ApiKey.OFFSET_COMMIT: (_GROUP_READ, Each(READ, TOPIC, "topics", "topics", "name", "topic_id")),
    ApiKey.OFFSET_FETCH: (
        HandlerRight(DESCRIBE, GROUP, "each group"),
        HandlerRight(DESCRIBE, TOPIC, "each topic of a group"),
    ),
    ApiKey.OFFSET_DELETE: (_GROUP_DELETE, Each(READ, TOPIC, "topics", "topics", "name")),
    ApiKey.DESCRIBE_GROUPS: (Each(DESCRIBE, GROUP, "groups", "groups"),),
    ApiKey.LIST_GROUPS: (Listed(DESCRIBE, GROUP, "groups", "group_id", instead=DESCRIBE),),
    ApiKey.DELETE_GROUPS: (Each(DELETE, GROUP, "groups_names", "results"),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        _GROUP_READ,
        Special(_subscribe, ((DESCRIBE, TOPIC),)),
        HandlerRight(DESCRIBE, TOPIC, "topics that a regular expression matches: the others are left out"),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (Each(DESCRIBE, GROUP, "group_ids", "groups"), _MEMBERS),
    ApiKey.SHARE_GROUP_HEARTBEAT: (_GROUP_READ, Special(_subscribe, ((DESCRIBE, TOPIC),))),
    ApiKey.SHARE_GROUP_DESCRIBE: (Each(DESCRIBE, GROUP, "group_ids", "groups"), _MEMBERS),
    ApiKey.SHARE_FETCH: (
        _GROUP_READ,
        HandlerRight(READ, TOPIC, "each topic of the session, at each look"),
    ),
    ApiKey.SHARE_ACKNOWLEDGE: (_GROUP_READ, HandlerRight(READ, TOPIC, "each topic")),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        Each(DESCRIBE, GROUP, "groups", "groups", "group_id"),
        HandlerRight(DESCRIBE, TOPIC, "each topic of a group"),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (_GROUP_READ, Each(READ, TOPIC, "topics", "responses", "topic_name")),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (_GROUP_DELETE, Each(READ, TOPIC, "topics", "responses", "topic_name")),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _BETWEEN_BROKERS,
    ApiKey.READ_SHARE_GROUP_STATE: _BETWEEN_BROKERS,
    ApiKey.WRITE_SHARE_GROUP_STATE: _BETWEEN_BROKERS,
    ApiKey.DELETE_SHARE_GROUP_STATE: _BETWEEN_BROKERS,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _BETWEEN_BROKERS,
    # Transactions.
    ApiKey.INIT_PRODUCER_ID: (
        Special(_init_producer_id, ((WRITE, TRANSACTIONAL_ID), (IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC))),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Whole(WRITE, TRANSACTIONAL_ID, "v3_and_below_transactional_id", versions=(0, 3)),
        HandlerRight(WRITE, TOPIC, "each topic, up to version 3"),
        Whole(CLUSTER_ACTION, versions=(4, 99)),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (_TRANSACTIONAL, _GROUP_READ),
    ApiKey.END_TXN: (_TRANSACTIONAL,),
    ApiKey.TXN_OFFSET_COMMIT: (
        _TRANSACTIONAL,
        _GROUP_READ,
        Each(READ, TOPIC, "topics", "topics", "name"),
    ),
    ApiKey.WRITE_TXN_MARKERS: (Whole(CLUSTER_ACTION, instead=ALTER),),
    ApiKey.DESCRIBE_PRODUCERS: (Each(READ, TOPIC, "topics", "topics", "name"),),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        Each(DESCRIBE, TRANSACTIONAL_ID, "transactional_ids", "transaction_states"),
        Special(_described_transactions, ((DESCRIBE, TOPIC),)),
    ),
    ApiKey.LIST_TRANSACTIONS: (Listed(DESCRIBE, TRANSACTIONAL_ID, "transaction_states", "transactional_id"),),
    # The cluster.
    ApiKey.DESCRIBE_CLUSTER: (HandlerRight(DESCRIBE, CLUSTER, "for the authorized operations of the cluster"),),
    ApiKey.DESCRIBE_QUORUM: _LOOKS,
    ApiKey.UNREGISTER_BROKER: _ADMINISTERS,
    ApiKey.UPDATE_FEATURES: _ADMINISTERS,
    ApiKey.DESCRIBE_LOG_DIRS: _LOOKS,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _ADMINISTERS,
    ApiKey.DESCRIBE_CONFIGS: (
        Special(
            _configs(DESCRIBE_CONFIGS, "results"),
            ((DESCRIBE_CONFIGS, TOPIC), (DESCRIBE_CONFIGS, GROUP), (DESCRIBE_CONFIGS, CLUSTER)),
        ),
    ),
    ApiKey.ALTER_CONFIGS: (
        Special(
            _configs(ALTER_CONFIGS, "responses"),
            ((ALTER_CONFIGS, TOPIC), (ALTER_CONFIGS, GROUP), (ALTER_CONFIGS, CLUSTER)),
        ),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Special(
            _configs(ALTER_CONFIGS, "responses"),
            ((ALTER_CONFIGS, TOPIC), (ALTER_CONFIGS, GROUP), (ALTER_CONFIGS, CLUSTER)),
        ),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (Whole(DESCRIBE_CONFIGS),),
    # Every client may push its metrics, as in Kafka. Subscriptions are settings.
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: NOTHING,
    ApiKey.PUSH_TELEMETRY: NOTHING,
    # Security.
    ApiKey.DESCRIBE_ACLS: _LOOKS,
    ApiKey.CREATE_ACLS: _ADMINISTERS,
    ApiKey.DELETE_ACLS: _ADMINISTERS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _LOOKS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _ADMINISTERS,
    ApiKey.CREATE_DELEGATION_TOKEN: (
        HandlerRight(Operation.CREATE_TOKENS, USER, "the owner, unless it is the caller"),
    ),
    # Its owner and its renewers may do this. No rule of access decides.
    ApiKey.RENEW_DELEGATION_TOKEN: NOTHING,
    ApiKey.EXPIRE_DELEGATION_TOKEN: NOTHING,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        HandlerRight(DESCRIBE, DELEGATION_TOKEN, "each token of others: those that may not be described are left out"),
        HandlerRight(Operation.DESCRIBE_TOKENS, USER, "or of its owner"),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (Whole(DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CLIENT_QUOTAS: (Whole(ALTER_CONFIGS),),
    # Between brokers.
    ApiKey.ALTER_PARTITION: _BETWEEN_BROKERS,
    ApiKey.BROKER_HEARTBEAT: _BETWEEN_BROKERS,
    ApiKey.ENVELOPE: _BETWEEN_BROKERS,
    ApiKey.FIRN_ENTRIES: _BETWEEN_BROKERS,
    ApiKey.FIRN_MEMBERS: _BETWEEN_BROKERS,
    ApiKey.FIRN_REGISTER: _BETWEEN_BROKERS,
    ApiKey.FIRN_CHANGE: _BETWEEN_BROKERS,
    ApiKey.FIRN_MANIFESTS: _BETWEEN_BROKERS,
    ApiKey.FIRN_TRANSACTIONS: _BETWEEN_BROKERS,
    ApiKey.FIRN_HOLD: _BETWEEN_BROKERS,
    ApiKey.FIRN_PULSE: _BETWEEN_BROKERS,
    ApiKey.FIRN_PLACE: (HandlerRight(CLUSTER_ACTION, CLUSTER, "to tell a broker that it was replaced"),),
    # Firn's own.
    ApiKey.FIRN_METRICS: _LOOKS,
    ApiKey.FIRN_CLUSTER: _LOOKS,
    ApiKey.FIRN_TOPICS: (HandlerRight(DESCRIBE, TOPIC, "each topic: the others are left out"),),
    ApiKey.FIRN_TOPIC_LAGS: (
        HandlerRight(DESCRIBE, TOPIC, "each topic: the others are left out"),
        HandlerRight(DESCRIBE, GROUP, "each group: the others count for nothing"),
    ),
    ApiKey.FIRN_TIER_STATUS: (HandlerRight(DESCRIBE, TOPIC, "each topic: the others are left out"),),
    ApiKey.FIRN_TIER_SEGMENTS: (HandlerRight(DESCRIBE, TOPIC, "the topic"),),
    ApiKey.FIRN_TIER_REPLACE: (Whole(CLUSTER_ACTION), HandlerRight(ALTER, TOPIC, "the topic")),
    ApiKey.FIRN_DRAIN: _ADMINISTERS,
    ApiKey.FIRN_SCHEMAS: (
        HandlerRight(WRITE, TOPIC, "the topic that the subject names, to register a schema"),
        HandlerRight(DELETE, TOPIC, "the topic that the subject names, to delete a schema"),
        HandlerRight(ALTER, CLUSTER, "instead, and for all other subjects, configs and modes"),
        HandlerRight(DESCRIBE, TOPIC, "the topic that a subject names, to read its schemas: others are left out"),
        HandlerRight(READ, TOPIC, "or _schemas, to read all of them"),
        HandlerRight(DESCRIBE, CLUSTER, "instead, to read all of them"),
        HandlerRight(CLUSTER_ACTION, CLUSTER, "instead, for brokers that check schemas of records"),
    ),
    ApiKey.FIRN_REQUESTS: (
        HandlerRight(WRITE, TOPIC, "each topic that a request with a new key writes to"),
        HandlerRight(CLUSTER_ACTION, CLUSTER, "for the fate of a record, which brokers ask for"),
    ),
    ApiKey.FIRN_APPEND: (
        HandlerRight(WRITE, TOPIC, "the topic of an append"),
        HandlerRight(WRITE, TRANSACTIONAL_ID, "the id of its transaction, if it has one"),
        HandlerRight(DESCRIBE, TOPIC, "the topic whose end is asked for"),
    ),
    ApiKey.FIRN_KEYED: (HandlerRight(WRITE, TOPIC, "each topic that a request with a new key writes to"),),
    # It comes before the login, and only from few addresses (ADR 0034, HF1). No rule of access decides.
    ApiKey.FIRN_FORWARDED: NOTHING,
}
"""The checks of each API, in the order in which they are made."""
