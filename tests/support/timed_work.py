"""All work that waits for time: an entry for each function of a broker or of its HTTP process that does.

``functions_that_wait_for_time`` finds them in the source: those that set a timer, sleep, or wait with a limit within a loop. The
entry says how many elements one piece of work has, and so what bounds a turn. ``tests/broker/test_turns_of_timers.py`` measures it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import app
from tools.source_trees import tree_of

ONE: Final = "one thing: its own connection, request, partition, task or process"
FEW: Final = "as many as there are brokers, listeners, subjects of faults or counters, which have limits of their own"
SLICES: Final = "all of a kind, some at a time; the loop is given away in between"
PORTIONS: Final = "all of a kind, in portions of CPU time"
STORE: Final = "one page of a listing of the store at a time"
CONNECTIONS: Final = "all connections, 1 µs each; max.connections bounds them"
PARTITIONS: Final = "all partitions that have replicas elsewhere, 1 µs each"
FETCH: Final = "the partitions of one leader, as the Fetch that is walked"
TOKENS: Final = "delegation tokens, as many as one change of the cluster may name"

TIMED_WORK: Final[Mapping[str, str]] = {
    "broker/security/audit_log.py::_close_windows": FEW,
    "broker/security/audit_topic.py::TopicPlace._store": ONE,
    "schemas/follower.py::SchemaFollower.run": PORTIONS,
    "http/consumers/table.py::ConsumerInstances._sweep": PORTIONS,
    "machine/children.py::Child.watch": ONE,
    "http/server.py::Server._wait_tasks_to_complete": ONE,
    "http/processes/supervisor.py::Supervisor._tell_health": FEW,
    "http/processes/accepting.py::Accepting._accept": ONE,
    "http/keyed/producing.py::_Try._settle": ONE,
    "http/keyed/producing.py::_Try._settled": ONE,
    "http/keyed/producing.py::_Try._wait_decided": ONE,
    "http/keyed/producing.py::KeyedProducer._wake_when_due": FEW,
    "http/console/acts/following.py::_Following._send": PORTIONS,
    "exactly_once/coordinator.py::RequestCoordinator._repeat": PORTIONS,
    "broker/security/listener_doors.py::Doors._watch": FEW,
    "broker/write_ahead/switching.py::DurabilityChanges._refused": ONE,
    "broker/write_ahead/switching.py::DurabilityChanges._until": ONE,
    "broker/write_ahead/switching.py::DurabilityChanges.run": SLICES,
    "broker/replication/followers.py::_Fetcher.run": FETCH,
    "broker/replication/high_watermark_file.py::HighWatermarks.run": PARTITIONS,
    "broker/start/http_address.py::check_http_address": ONE,
    "broker/replication/in_sync_sets.py::InSyncSets._wait": ONE,
    "broker/replication/in_sync_sets.py::InSyncSets.run": SLICES,
    "broker/watching/room.py::DiskRoom.run": FEW,
    "broker/partitions/opening.py::Opening._agree": SLICES,
    "broker/partitions/reading.py::ManifestReading.attach_and_cache": SLICES,
    "broker/partitions/opener.py::Opener.bring_back_offline": SLICES,
    "broker/partitions/reading.py::ManifestReading.catch_up": SLICES,
    "broker/partitions/partitions.py::Partitions._make_missing": SLICES,
    "broker/partitions/opener.py::Opener.open_named": SLICES,
    "broker/partitions/start_report.py::StartReport.until_led": PORTIONS,
    "broker/start/process.py::Broker._await_store": ONE,
    "broker/start/process.py::Broker._tell_health": ONE,
    "broker/start/process.py::claim_when_free": ONE,
    "broker/quota_tokens.py::QuotaTokens.run": SLICES,
    "broker/start/service.py::ServiceManager.run": ONE,
    "broker/spending.py::Spending.run": SLICES,
    "broker/watching/spot_notice.py::SpotNotice.run": ONE,
    "broker/partitions/sweeping.py::Sweeping._delete_topics": STORE,
    "broker/partitions/sweeping.py::Sweeping._look_for_unknown_topics": STORE,
    "broker/partitions/sweeping.py::Sweeping._sweep_write_ahead_logs": STORE,
    "broker/partitions/tier_views.py::TierViews.run": SLICES,
    "broker/partitions/tier_views.py::_Asker._take": SLICES,
    "broker/partitions/tier_views.py::_Asker.run": SLICES,
    "broker/security/token_keys.py::TokenKeys.run": FEW,
    "broker/security/token_sweep.py::sweep_tokens": TOKENS,
    "broker/write_ahead/write_ahead.py::SealedLogs._forget_later": ONE,
    "broker/write_ahead/write_ahead.py::SealedLogs._until_quiet": ONE,
    "broker/write_ahead/write_ahead.py::WriteAhead._trim": PORTIONS,
    "broker/write_ahead/release.py::Balance.run": PORTIONS,
    "broker/write_ahead/release.py::Releases._followed": PORTIONS,
    "broker/write_ahead/release.py::Releases.give_up": PORTIONS,
    "broker/write_ahead/release.py::leave": PORTIONS,
    "coordinator/shell.py::Coordinator._arm": SLICES,
    "coordinator/shell.py::Coordinator._load_later.wait": ONE,
    "core/faults.py::Faults.run": FEW,
    "groups/share/share_leader.py::ShareLeader._arm": SLICES,
    "groups/share/share_leader.py::ShareLeader.send_to": PORTIONS,
    "groups/share/share_states.py::ShareStates.ask": PORTIONS,
    "handlers/state/acknowledging.py::AcknowledgementGate._look_forever": ONE,
    "handlers/state/acknowledging.py::AcknowledgementGate.keep_ticking": ONE,
    "handlers/clients/admission.py::ask_elsewhere": ONE,
    "handlers/clients/client.py::_Rest.__init__": ONE,
    "handlers/serving/dispatch.py::Apis.load_all": ONE,
    "handlers/serving/doors.py::_Late.__init__": ONE,
    "handlers/state/draining.py::Drain._finished": ONE,
    "handlers/state/draining.py::Drain.run": ONE,
    "handlers/fetch/parked.py::ParkedFetch.__init__": ONE,
    "handlers/fetch/parked.py::ParkedFetch._hurry": ONE,
    "handlers/fetch/fetch_long.py::serve_long": ONE,
    "handlers/produce/produce.py::PendingProduce.__init__": ONE,
    "handlers/state/producer_id_block.py::ProducerIds._new_block": ONE,
    "handlers/apis/share_fetch.py::_Fetching._look": ONE,
    "handlers/apis/share_fetch.py::_Fetching.run": ONE,
    "hot/cleaning/cleaner.py::LogCleaner._back_off": SLICES,
    "hot/freeing.py::_rest": ONE,
    "hot/manager.py::LogManager._free_deleted": SLICES,
    "hot/manager.py::LogManager._keep_house": SLICES,
    "http/bodies.py::body_chunks": ONE,
    "http/callers.py::Callers._arm": ONE,
    "http/connections.py::HttpConnection._await_head": ONE,
    "http/connections.py::HttpConnection.on_message_complete": ONE,
    "http/connections.py::HttpConnection.pause_writing": ONE,
    "http/connections.py::Lingering.close": ONE,
    "http/tls.py::HttpTls.run": ONE,
    "machine/web.py::fetch": ONE,
    "metadata/controller/desk.py::Desk._probe": ONE,
    "metadata/controller/log_ends.py::LogEnds._end": FEW,
    "metadata/manifest/manifest_listing.py::_list_run": ONE,
    "metadata/membership/member.py::ClusterMember._beat": FEW,
    "metadata/membership/member.py::ClusterMember._change": FEW,
    "metadata/membership/member.py::ClusterMember._find_wal_store": FEW,
    "metadata/membership/member.py::ClusterMember._follow_entries": FEW,
    "metadata/membership/member.py::ClusterMember._give_signs": FEW,
    "metadata/membership/member.py::ClusterMember._join": FEW,
    "metadata/membership/member.py::ClusterMember._stand": FEW,
    "metadata/membership/member.py::ClusterMember._take_place": FEW,
    "metadata/membership/member.py::ClusterMember._turn": ONE,
    "metadata/membership/member.py::ClusterMember._watch_isolation": FEW,
    "metadata/membership/member.py::ClusterMember.leave_in_order": FEW,
    "metadata/membership/member.py::ClusterMember.linger": FEW,
    "metadata/membership/member.py::ClusterMember.pass_on": FEW,
    "metadata/membership/membership.py::Membership.start": FEW,
    "metadata/membership/node_ids.py::NodeIds.obtain": ONE,
    "metadata/log/numbered_log.py::NumberedLog._pause": ONE,
    "metadata/log/numbered_log.py::NumberedLog._retried": ONE,
    "metadata/peers/pulses.py::PulseSender.run": FEW,
    "metadata/view/registration.py::Registration._patiently": FEW,
    "metadata/view/registration.py::Registration._tell_replaced": FEW,
    "metadata/view/registration.py::Registration.run": FEW,
    "objectstore/proxy.py::StoreProxy._look_later": ONE,
    "objectstore/s3.py::S3Store._request": ONE,
    "replication/commits.py::CommitQueue._wake_at": ONE,
    "tiering/read/chunk_cache.py::ChunkCache._arm_timer": ONE,
    "tiering/upload/copy_holds.py::HoldsOfLeaders._end": ONE,
    "tiering/upload/copy_holds.py::HoldsOfLeaders._tell": ONE,
    "tiering/repair/refilling.py::wait_quiet": ONE,
    "tiering/store/store_work.py::InlineStoreWork.attempt": ONE,
    "transactions/ending.py::Endings._pause": ONE,
    "transactions/recovery.py::Recovery.run": ONE,
    "transport/arrivals.py::Arrivals.begin": ONE,
    "transport/connection.py::Connection.send_on": ONE,
    "transport/listener.py::Listener._opened": ONE,
    "transport/replays.py::ReplayTurns._arm": ONE,
    "transport/server.py::Server._look_at_frames": CONNECTIONS,
    "transport/server.py::Server._regulate": ONE,
    "transport/server.py::Server._schedule_idle_check": CONNECTIONS,
    "transport/server.py::Server._turn_away": ONE,
    "transport/server.py::Server.claim": ONE,
    "wal/owner.py::WalOwner._make_durable": ONE,
    "wal/owner.py::WalOwner.run": ONE,
    "wal/taker.py::seal.until_known": ONE,
}

NOT_OF_THE_LOOP: Final = (
    "cli", "demo", "cost", "iam", "settings", "objectstore/memory.py", "machine/priority.py", "tiering/store/store_process.py",
    "hot/cleaning/process.py",
)  # fmt: skip
"""Commands, other processes, and what tests alone use."""
TIMERS: Final = frozenset({"call_later", "call_at"})
LIMITS: Final = frozenset({"timeout", "timeout_at"})


def functions_that_wait_for_time() -> set[str]:
    """``module.py::Class.function`` of each."""
    root = Path(app.__file__).parent
    found = set()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if not place.startswith(NOT_OF_THE_LOOP):
            found |= {f"{place}::{name}" for name in _waiting(tree_of(path), (), in_loop=False)}
    return found


def _waiting(node: ast.AST, names: tuple[str, ...], *, in_loop: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _waiting(child, (*names, child.name), in_loop=False)
        elif isinstance(child, ast.ClassDef):
            yield from _waiting(child, (*names, child.name), in_loop=in_loop)
        else:
            if isinstance(child, ast.Call) and _waits(child, in_loop=in_loop):
                yield ".".join(names)
            yield from _waiting(child, names, in_loop=in_loop or isinstance(child, ast.While))


def _waits(call: ast.Call, *, in_loop: bool) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "sleep":
        return not (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)
    return name in TIMERS or (in_loop and name in LIMITS)
