"""The steps of one keyed request in an HTTP process (ADR 0043, EO1 to EO6, EO19). Pure.

::

    LOOK ──known, equal──────────────────────────────────────► the stored response
     │ └───known, other body / open / reserved / refused─────► 422, 409, 429 …
     │ unknown, and reserved for this try
     ▼
    WRITE the records ──a record failed──► ABORT ──► the record's error
     │ each has an offset
     ▼
    RESULT: the conditional append ──refused──► ABORT ──► LOOK, for the response of the other try
     │ accepted; a lost answer repeats it with the same try id
     ▼
    COMMIT ──any answer but success──► SETTLE: look until the result is known, or is gone
     │
     ▼
    the response

One broker may take all steps of a try by itself (EO19). It answers how far it came, and the attempt goes on from there. Without an
answer, the broker may still commit: the transaction is aborted, which fences a commit that comes later. A try that the broker has
given up for a reason that may pass goes the same way, because another try follows::

    LOOK ──the broker's answer is lost──► ABORT ──success──► SETTLE ──the result is gone──► aborted
                                            └──any other answer──► SETTLE ──no result──► not known

A caller asks ``step`` for the next step, takes it, and reports the outcome. An attempt is for one try: the response of a try that
did not commit says that nothing was written, and the next try has another id.

Tests: ``tests/exactly_once/test_attempt.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from app.exactly_once.records import Result


class Step(Enum):
    """The next thing to do."""

    LOOK = "look"
    """Look the key up, and reserve it if it has no result."""
    WRITE = "write"
    """Write the records in a transaction."""
    RESULT = "result"
    """Append the result in the same transaction."""
    COMMIT = "commit"
    """End the transaction with a commit."""
    ABORT = "abort"
    """End the transaction with an abort. Every answer leads on."""
    SETTLE = "settle"
    """Look the key up after a pause, until its result is committed or gone."""
    DONE = "done"
    """``outcome`` has the response."""


class Known(NamedTuple):
    """The key has a committed result."""

    result: Result


class Busy(NamedTuple):
    """The key has an open result, or is reserved for another try."""

    try_id: bytes
    """The try that has it; empty if that is not known."""


class Unknown(NamedTuple):
    """The key has no result. A look-up of the first step has reserved it for this try."""


class Refused(NamedTuple):
    """The request was refused, with nothing written."""

    error: Exception


Found = Known | Busy | Unknown | Refused


class Stored(NamedTuple):
    """The records are committed."""

    result: Result


class OtherBody(NamedTuple):
    """Another request had this key: 422."""


class InProgress(NamedTuple):
    """Another try has this key now: 409."""


class Aborted(NamedTuple):
    """This try wrote nothing, and the key is free: 503, or the error that a record met."""

    error: Exception | None


class Undecided(NamedTuple):
    """Whether the records are committed is not known yet: 503. A retry with the same key learns it."""


Outcome = Stored | OtherBody | InProgress | Aborted | Undecided


@dataclass(slots=True)
class Attempt:
    """One try of a keyed request."""

    try_id: bytes
    digest: bytes
    step: Step = Step.LOOK
    outcome: Outcome | None = None
    result: Result | None = None
    """The result that this try appends."""
    wrote: bool = False
    """Whether this try has begun a transaction."""
    lost: bool = False
    """Whether a broker that was to take all steps has not answered, or could not take one for now. In the first case it may still
    take them, until the transaction is aborted."""
    _error: Exception | None = None
    _fenced: bool = False
    """Whether the transaction was aborted, so that no commit of it can come any more."""

    def found(self, found: Found) -> None:
        """A look-up of LOOK or SETTLE was answered."""
        assert self.step in (Step.LOOK, Step.SETTLE), self.step
        match found:
            case Known(result):
                self._done(Stored(result) if result.digest == self.digest else OtherBody())
            case Busy(try_id):
                if self.step is Step.LOOK:
                    self._done(InProgress())
                else:
                    assert try_id or self.wrote  # this try's own result: its transaction is being ended
            case Refused(error):
                if self.step is Step.LOOK:
                    self._done(Aborted(error))
            case Unknown():
                if self.lost and not self._fenced:
                    self._done(Undecided())
                elif self.step is Step.SETTLE or self.wrote:
                    self._done(Aborted(self._error))
                else:
                    self.step = Step.WRITE

    def began(self) -> None:
        """A transaction may have records of this try from now on."""
        assert self.step is Step.WRITE
        self.wrote = True

    def written(self, result: Result) -> None:
        """Each record has an offset."""
        assert self.step is Step.WRITE
        assert result.try_id == self.try_id
        self.result = result
        self.step = Step.RESULT

    def failed(self, error: Exception) -> None:
        """A record has no offset, or the transaction could not begin (EO4)."""
        assert self.step is Step.WRITE
        self._error = error
        if self.wrote:
            self.step = Step.ABORT
        else:
            self._done(Aborted(error))

    def accepted(self) -> None:
        """The conditional append was answered: the result is in the log."""
        assert self.step is Step.RESULT
        self.step = Step.COMMIT

    def refused(self, error: Exception | None) -> None:
        """The conditional append was refused for good. ``error`` is None if the key has another result."""
        assert self.step is Step.RESULT
        self._error = error
        self.step = Step.ABORT

    def unanswered(self, error: Exception) -> None:
        """A broker that was to take all steps by itself has not answered, or has given the try up for a reason that may pass
        (EO19)."""
        assert self.step is Step.LOOK
        self._error = error
        self.wrote = self.lost = True
        self.step = Step.ABORT

    def ended(self, *, success: bool) -> None:
        """EndTxn was answered, or its last try was not. Only a success of a commit is believed (EO5)."""
        match self.step:
            case Step.COMMIT if success:
                assert self.result is not None
                self._done(Stored(self.result))
            case Step.COMMIT:
                self.step = Step.SETTLE
            case Step.ABORT if self.lost:
                self._fenced = success
                self.step = Step.SETTLE
            case Step.ABORT if self.result is not None and self._error is None:
                self.step = Step.LOOK  # another try has the key: its response is the response
            case Step.ABORT:
                self._done(Aborted(self._error))
            case step:
                raise AssertionError(step)

    def gave_up(self) -> None:
        """Time is up in LOOK or SETTLE."""
        assert self.step in (Step.LOOK, Step.SETTLE), self.step
        self._done(Undecided() if self.wrote else Aborted(None))

    def _done(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.step = Step.DONE
