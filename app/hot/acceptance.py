"""Which work a log accepts now. Pure.

A log refuses work for one of five reasons. Each reason refuses some kinds of work. The first reason of this table that refuses a
kind says with which error:

| reason | until | access | follow | lead | begin |
|---|---|---|---|---|---|
| refusal: closed, deleted or offline | for ever | no | no | no | no |
| not led by this broker | the next leadership | yes | yes | no | no |
| sealed | for ever | yes | no | no | no |
| paused | ``go_on``, or the next leadership | yes | yes | no | no |
| settling | ``go_on``, or the next leadership | yes | yes | yes | no |

Two more states refuse nothing, but an append has to do other work first: a failed write has to be cut off (``torn``), and the
journal of a leadership has to admit the batch (``journaled``).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from app.core.errors import ErrorCode, FirnError, RequestRejected, copy_of
from app.core.units import PartitionIndex

if TYPE_CHECKING:
    from app.hot.journal import JournaledEnd


class LogWork(Enum):
    """Kinds of work on a log, as far as a log may refuse them. Each kind but the first is an append."""

    ACCESS = auto()
    """Read, roll, truncate, or change the log in another way than by an append."""
    FOLLOW = auto()
    """Append batches that have offsets."""
    LEAD = auto()
    """Append batches of clients or of this broker, as the partition's leader."""
    BEGIN = auto()
    """As ``LEAD``, for a batch that begins a transaction."""


class Acceptance:
    """Whether one log accepts appends and other work. It belongs to the log, which alone may change it."""

    __slots__ = (
        "_partition",
        "_topic",
        "guarded",
        "journaled",
        "led",
        "paused",
        "refusal",
        "sealed",
        "settling",
        "takes_runs",
        "torn",
    )

    def __init__(self, topic: str, partition: PartitionIndex) -> None:
        """The state of a log that was just opened: it accepts all work."""
        self._topic = topic
        self._partition = partition
        self.refusal: FirnError | None = None
        self.sealed: FirnError | None = None
        self.paused: FirnError | None = None
        self.settling: FirnError | None = None
        self.led = True
        """Whether this broker leads the log and so appends its own records."""
        self.journaled: JournaledEnd | None = None
        """While this broker leads a partition whose records count as stored when a journal has them."""
        self.torn = False
        """Whether a failed write may have left bytes that must be cut off before the next write."""
        self.guarded = False
        """Whether an append must call ``check`` first, or do other work. It is False for nearly all appends, which then ask for
        nothing else."""
        self.takes_runs = True
        """Whether several batches may be appended by one write: nothing is refused or has to be cut off. A journal has to admit
        them together."""

    def check(self, work: LogWork) -> None:
        """Raises: a copy of the error of the first reason that refuses ``work``; RequestRejected NOT_LEADER_OR_FOLLOWER if another
        broker leads the log."""
        if self.refusal is not None:
            raise copy_of(self.refusal)
        if work is LogWork.ACCESS:
            return
        leads = work is not LogWork.FOLLOW
        if leads and not self.led:
            raise RequestRejected(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"This broker does not lead {self._topic}-{self._partition}."
            )
        if self.sealed is not None:
            raise copy_of(self.sealed)
        if leads and self.paused is not None:
            raise copy_of(self.paused)
        if work is LogWork.BEGIN and self.settling is not None:
            raise copy_of(self.settling)

    # --- changes ----------------------------------------------------------------------------------------------------

    def refuse(self, error: FirnError) -> None:
        """Refuse all work with ``error`` for ever. A later error replaces it."""
        self.refusal = copy_of(error)
        self._changed()

    def seal(self, error: FirnError) -> None:
        """Refuse all appends with ``error`` for ever. A later error replaces it."""
        self.sealed = copy_of(error)
        self._changed()

    def pause(self, error: FirnError) -> None:
        """Refuse appends of the leader with ``error`` until ``go_on`` or ``lead``."""
        self.paused = copy_of(error)
        self._changed()

    def settle(self, error: FirnError) -> None:
        """Refuse the first batches of transactions with ``error`` until ``go_on`` or ``lead``."""
        self.settling = copy_of(error)

    def go_on(self) -> None:
        """End ``pause`` and ``settle``."""
        self.paused = self.settling = None
        self._changed()

    def lead(self) -> None:
        """A leadership of this broker begins."""
        self.led = True
        self.go_on()

    def resign(self) -> None:
        """No leadership of this broker is left. A journal of it may go on until ``leave_journal``."""
        self.led = False
        self._changed()

    def begin_journal(self, journaled: JournaledEnd) -> None:
        """Records count as stored when a journal has them. It must admit each append."""
        self.journaled = journaled
        self._changed()

    def leave_journal(self) -> None:
        """Records count as stored by the topic's other durability."""
        self.journaled = None
        self._changed()

    def tear(self) -> None:
        """A failed write could not be cut off."""
        self.torn = True
        self._changed()

    def mend(self) -> None:
        """The bytes of the failed write were cut off."""
        self.torn = False
        self._changed()

    def _changed(self) -> None:
        self.takes_runs = (
            self.led and not self.torn and self.refusal is None and self.sealed is None and self.paused is None
        )
        self.guarded = not self.takes_runs or self.journaled is not None
