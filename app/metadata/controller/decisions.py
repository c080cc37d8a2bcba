"""The controller's decisions: which waiting changes become the next entry of the cluster log, and their answers. Pure.

One entry is under way at a time. ``begin`` starts a draft of the next image, and ``plan`` plans the waiting changes on it, one
after another. The owner appends ``entry`` and reports the outcome. ``durable`` returns the answers, also the refusals: a refusal
follows from the contents of the draft, so it counts only when the draft does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from app.core.errors import ErrorCode, FirnError, RequestRejected, without_frames
from app.core.limits import LOG_ENTRY_BYTES_MAX
from app.core.turns import Steps, slices, whole
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage
from app.metadata.log.log_format import KeyValue, encoded_bytes_max

PENDING_CHANGES_MAX: Final = 10_000
"""Maximum number of waiting changes."""

GROUP_BYTES_MAX: Final = LOG_ENTRY_BYTES_MAX // 8
"""Maximum records of an entry of several changes: about as many as a topic of 10,000 partitions has. One change may have more."""

GROUP_CHANGES_MAX: Final = 200
"""Maximum changes of one entry, so that adding them to the image does not delay the event loop."""

Plan = Callable[[ImageDraft, PlanInputs], Planned[Any] | Steps[Planned[Any]]]
"""A change: from a draft to its records, at once or in steps. It may be called again, on a newer image. Raises: RequestRejected."""

COUNTED_AT_ONCE: Final = 1_000
"""Records whose bytes are counted in one step."""


class _Change(NamedTuple):
    number: int
    plan: Plan
    validate_only: bool


class Answer(NamedTuple):
    """The result of a change."""

    number: int
    value: Any
    error: FirnError | None
    """Why it was not made, or may not have been made; ``value`` is None then."""


class Decisions:
    """The waiting changes, and the entry under way."""

    def __init__(self) -> None:
        self._waiting: deque[_Change] = deque()
        self._next_number = 0
        self._draft: ImageDraft | None = None
        self._around: PlanInputs | None = None
        self._planned: list[tuple[_Change, Answer]] = []
        self._records: list[KeyValue] = []
        self._size_bytes = 0

    @property
    def waiting(self) -> int:
        """How many changes wait."""
        return len(self._waiting)

    def submit(self, plan: Plan, *, validate_only: bool = False) -> int:
        """Let a change wait. ``validate_only``: it is planned, but not made. Returns: the number of its answer.

        Raises: RequestRejected THROTTLING_QUOTA_EXCEEDED.
        """
        if len(self._waiting) >= PENDING_CHANGES_MAX:
            raise RequestRejected(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{PENDING_CHANGES_MAX} changes of the cluster wait already."
            )
        number = self._next_number
        self._next_number += 1
        self._waiting.append(_Change(number, plan, validate_only))
        return number

    # --- an entry -----------------------------------------------------------------------------------------------------

    def begin(self, image: ClusterImage, around: PlanInputs, first: Sequence[KeyValue] = ()) -> None:
        """Begin an entry after ``image``, with the records ``first``."""
        assert not self._planned, "one entry is under way at a time"
        self._draft, self._around = ImageDraft(image), around
        self._records = list(first)
        self._size_bytes = 0

    def plan(self, at_most: int) -> bool:
        """As ``planning``, at once."""
        return whole(self.planning(at_most))

    def planning(self, at_most: int) -> Steps[bool]:
        """Plan up to ``at_most`` waiting changes, in steps. Returns: whether to call again, because more changes wait and may fit.

        Between two steps changes may be submitted, and those that wait may be refused. The change that is being planned does not
        wait any more. Nothing else may be called before the end. If the steps are given up, call ``overtaken`` or ``undecided``.
        """
        draft, around = self._draft, self._around
        assert draft is not None
        assert around is not None
        for _ in range(at_most):
            if not self._waiting or len(self._planned) >= GROUP_CHANGES_MAX:
                return False
            change = self._waiting.popleft()
            self._planned.append((change, Answer(change.number, None, None)))
            try:
                made = change.plan(draft, around)
                planned = made if isinstance(made, Planned) else (yield from made)
            except RequestRejected as error:
                answer = Answer(change.number, None, without_frames(error))
            else:
                answer = Answer(change.number, planned.answer, None)
                if planned.records and not change.validate_only:
                    more_bytes = 0
                    for some in slices(planned.records, COUNTED_AT_ONCE):
                        more_bytes += encoded_bytes_max(some)
                        yield
                    if self._records and self._size_bytes + more_bytes > GROUP_BYTES_MAX:
                        del self._planned[-1]
                        self._waiting.appendleft(change)
                        return False
                    yield from draft.applying(planned.records)
                    self._records += planned.records
                    self._size_bytes += more_bytes
            self._planned[-1] = (change, answer)
            yield
        return bool(self._waiting)

    @property
    def entry(self) -> Sequence[KeyValue]:
        """The records of the entry under way. If there are none, it is durable as it is."""
        return self._records

    def durable(self) -> list[Answer]:
        """The entry is durable. Returns: the answers."""
        answers = [answer for _, answer in self._planned]
        self._end()
        return answers

    def overtaken(self) -> None:
        """Another writer was first. The changes wait again, in the same order, to be planned on a newer image."""
        self._waiting.extendleft(change for change, _ in reversed(self._planned))
        self._end()

    def undecided(self, error: FirnError) -> list[Answer]:
        """It is not known whether the entry is durable. Returns: the answers."""
        answers = [Answer(change.number, None, error) for change, _ in self._planned]
        self._end()
        return answers

    def refuse_waiting(self, error: FirnError) -> list[Answer]:
        """Refuse all changes that wait. Returns: the answers."""
        answers = [Answer(change.number, None, error) for change in self._waiting]
        self._waiting.clear()
        return answers

    def _end(self) -> None:
        self._draft = self._around = None
        self._planned = []
        self._records = []
