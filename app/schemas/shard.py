"""The state machine of `_schemas`-0 on the broker that leads it (ADR 0041). Pure.

It knows the ids and keys of the log: the schema that an id stands for, the greatest id of each context, and the forms in which a
key is present. It admits an append only if the log still ends where the caller has read to, and if the records keep the rules that
a replay can check. Only hashes of schemas and keys are kept.

An append is checked in steps that other requests may come between. The state depends on the log alone. So a check holds while the
log ends at the same offset, which the turn of the append looks at again. Tests: ``tests/schemas/test_shard.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import Steps
from app.core.units import Offset
from app.registry.ownership import OWNER_KEY, Ownership, encode_ownership, ownership_of
from app.schemas.records import ID_MAX, SCHEMA, Meaning, RawRecord, meaning_of

if TYPE_CHECKING:
    from app.coordinator.partition import ReplayedBatch
    from app.coordinator.shell import Turn

IDS_MAX: Final = 200_000
"""Ids and keys that are kept: 25 MB and 30 MB."""
KEYS_MAX: Final = 400_000
CONTEXTS_MAX: Final = 250
"""Each record of the greatest ids names all of them: 70 KB at most."""
SKIPPED: Final = 1_000
"""Ids that are never given after the log may have lost its end, for each leader epoch since the last loss that the log knows: a
second loss may take the record of the first (SR4)."""
SKIPPED_EPOCHS_MAX: Final = 100
RETRY_MS: Final = 1_000
"""Pause before the skip of ids is written again."""
CHECKED_AT_ONCE: Final = 64
"""Records of one step: about 0.3 ms."""


class _Skip(NamedTuple):
    """The key of the timer that writes a skip of ids."""


class Admitted(NamedTuple):
    """An append that was written, or that was refused because the log ends elsewhere."""

    end: Offset
    """The end of the log."""
    moved: bool
    """Whether nothing was appended, because the log did not end where the caller expected it."""


class SchemaShard:
    """The ids and keys of the log."""

    __slots__ = (
        "_digests",
        "_floor",
        "_forms",
        "_greatest",
        "_ids",
        "_skipped",
        "end",
        "foreign",
        "owned",
        "unclean_epoch",
    )

    def __init__(self) -> None:
        self.end = Offset(0)
        """The offset up to which the log has been read."""
        self.owned = False
        """Whether the log has a record of Firn's own. From then on, clients cannot produce to it."""
        self.foreign = False
        """Whether another registry has written to the log before Firn did."""
        self.unclean_epoch = -1
        """The leader epoch of the last unclean election of the partition. The log may lack its end since then."""
        self._skipped = -1
        """The one after which ids were skipped, as the log says."""
        self._digests: dict[str, dict[int, int]] = {}
        """By context and id: the hash of the schema."""
        self._ids = 0
        """Ids in ``_digests``."""
        self._greatest: dict[str, int] = {}
        self._floor = 0
        self._forms: dict[int, int | tuple[int, ...]] = {}
        """By the hash of the members of a key: the hashes of the keys that are present, one in most cases."""

    @property
    def lost_end(self) -> bool:
        """Whether ids have to be skipped because the log may lack its end, and the log does not say that they were (SR4)."""
        return self.unclean_epoch > self._skipped

    @property
    def key_count(self) -> int:
        """Keys that are present, however many forms each has."""
        return len(self._forms)

    @property
    def id_count(self) -> int:
        """Ids whose schemas are known."""
        return self._ids

    def greatest(self, context: str) -> int:
        """The greatest id that may have been given in a context."""
        return max(self._greatest.get(context, 0), self._floor)

    # --- replay -------------------------------------------------------------------------------------------------------

    def load(self, batch: ReplayedBatch) -> None:
        """Take in records of the log. Records that cannot be read are skipped."""
        for key, value in batch.records:
            self._take(key, value)
        self.end = batch.end_offset

    def _take(self, key: bytes, value: bytes | None) -> None:
        ownership = ownership_of(key, value)
        if ownership is not None:
            self.owned = self.owned or ownership.owns
            self._floor = max(self._floor, ownership.floor)
            self._skipped = max(self._skipped, ownership.skipped)
            for context, greatest in ownership.greatest.items():
                self._greatest[context] = max(self._greatest.get(context, 0), greatest)
            return
        meaning = meaning_of(key, value)
        if key == OWNER_KEY or meaning is None:
            return
        if not self.owned:
            self.foreign = True
        self._apply(meaning)

    def _apply(self, meaning: Meaning) -> None:
        present = self._forms_of(meaning.name)
        if meaning.exists and meaning.form not in present:
            present = (*present, meaning.form)
        elif not meaning.exists and meaning.form in present:
            present = tuple([one for one in present if one != meaning.form])
        if len(present) > 1:
            self._forms[meaning.name] = present
        elif present:
            self._forms[meaning.name] = present[0]
        else:
            self._forms.pop(meaning.name, None)
        if meaning.kind == SCHEMA and meaning.exists and 1 <= meaning.schema_id <= ID_MAX:
            context = meaning.context
            known = self._digests.setdefault(context, {})
            if meaning.schema_id not in known:
                known[meaning.schema_id] = meaning.digest
                self._ids += 1
            self._greatest[context] = max(self._greatest.get(context, 0), meaning.schema_id)

    def _forms_of(self, name: int) -> tuple[int, ...]:
        found = self._forms.get(name, ())
        return found if isinstance(found, tuple) else (found,)

    # --- the life of a shard ------------------------------------------------------------------------------------------

    def loaded(self, turn: Turn) -> None:
        """All records are loaded. If the log may lack its end, ids are skipped now, before any id is given."""
        if self.lost_end:
            skip = SKIPPED * min(self.unclean_epoch - self._skipped, SKIPPED_EPOCHS_MAX)
            self._greatest = {context: min(greatest + skip, ID_MAX) for context, greatest in self._greatest.items()}
            self._floor = min(self._floor + skip, ID_MAX)
            self.due(turn, _Skip())

    def due(self, turn: Turn, key: Any) -> None:
        """Write the skip of ids, so that the next leader knows of it. A log of another registry gets it with Firn's first write."""
        del key
        if not self.lost_end or (self.foreign and not self.owned):
            return
        try:
            ownership = Ownership(self._greatest, self._floor, self.owned, self.unclean_epoch)
            self.end = turn.append([(OWNER_KEY, encode_ownership(ownership))])
            self._skipped = self.unclean_epoch
        except RequestRejected:
            turn.set_timer(_Skip(), RETRY_MS)

    def unloaded(self, turn: Turn) -> None:
        """No request waits in a shard."""

    # --- appends ------------------------------------------------------------------------------------------------------

    def check(self, asked: Sequence[Meaning], *, is_operator: bool) -> Steps[None]:
        """Check an append against the state, with a yield after every few records. ``is_operator``: whether the caller may alter
        the cluster.

        Raises: RequestRejected INVALID_RECORD, POLICY_VIOLATION.
        """
        if self.foreign and not self.owned and not (is_operator and any(one.kind == "MODE" for one in asked)):
            raise RequestRejected(
                ErrorCode.POLICY_VIOLATION,
                "Another registry has written the topic _schemas, so this registry is read-only. An operator switches it with"
                " PUT /mode, after the other registry was stopped.",
            )
        removed: dict[int, set[int]] = {}
        new_ids: dict[tuple[str, int], int] = {}
        new_names: set[int] = set()
        for place, one in enumerate(asked):
            if place % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
                yield
            if not one.exists:
                removed.setdefault(one.name, set()).add(one.form)
            elif one.name not in self._forms:
                new_names.add(one.name)
            if one.kind == SCHEMA and one.exists:
                self._check_id(place, one, new_ids, is_operator)
        for name, forms in removed.items():
            if not forms.issuperset(self._forms_of(name)):
                raise RequestRejected(
                    ErrorCode.INVALID_RECORD,
                    "A key of the request is present in several forms, and the request deletes only some of them. Delete each form"
                    " that is in the topic.",
                )
        if self._ids + len(new_ids) > IDS_MAX or len(self._forms) + len(new_names) > KEYS_MAX:
            raise RequestRejected(
                ErrorCode.POLICY_VIOLATION,
                f"The registry holds {IDS_MAX} schemas and {KEYS_MAX} versions at most. Delete some that are not needed.",
            )
        contexts = self._greatest.keys() | {context for context, _ in new_ids}
        if len(contexts) > CONTEXTS_MAX:
            raise RequestRejected(ErrorCode.POLICY_VIOLATION, f"The registry has {CONTEXTS_MAX} contexts at most.")

    def _check_id(self, place: int, one: Meaning, new_ids: dict[tuple[str, int], int], is_operator: bool) -> None:
        """Raises: RequestRejected INVALID_RECORD, unless the id is new or stands for the same schema (SR2)."""
        context, schema_id = one.context, one.schema_id
        known = self._digests.get(context, {}).get(schema_id, new_ids.get((context, schema_id)))
        if known is None:
            if schema_id <= self.greatest(context) and not is_operator:
                raise RequestRejected(
                    ErrorCode.INVALID_RECORD,
                    f"Record {place} of the request gives the id {schema_id} again, which may have been another schema's. The next"
                    f" id is {self.greatest(context) + 1}.",
                )
            new_ids[context, schema_id] = one.digest
        elif known != one.digest:
            raise RequestRejected(
                ErrorCode.INVALID_RECORD,
                f"Record {place} of the request gives the id {schema_id} to another schema than the one that has it.",
            )

    def append(self, turn: Turn, expected_end: int, records: Sequence[RawRecord], asked: Sequence[Meaning]) -> Admitted:
        """Append records that were checked, if the log still ends at ``expected_end``, which is where they were checked (SR1).

        Raises: RequestRejected, with nothing written.
        """
        if expected_end != self.end:
            return Admitted(self.end, moved=True)
        after = dict(self._greatest)
        gives_ids = False
        for one in asked:
            if one.kind == SCHEMA and one.exists and one.schema_id > after.get(one.context, 0):
                after[one.context] = one.schema_id
                gives_ids = True
        written = list(records)
        if gives_ids or not self.owned or self.lost_end:
            skipped = max(self._skipped, self.unclean_epoch)
            written.append((OWNER_KEY, encode_ownership(Ownership(after, self._floor, True, skipped))))
            self.end = turn.append(written)
            self.owned, self._skipped = True, skipped
        else:
            self.end = turn.append(written)
        for one in asked:
            self._apply(one)
        return Admitted(self.end, moved=False)
