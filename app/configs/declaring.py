"""Declares a setting where its field is: ``setting`` gives a field its default, and everything else that is known of it.

``definitions_of`` (``defining.py``) makes the table of definitions from the fields of ``BrokerConfig`` or ``TopicConfig``. It is
apart because child processes and Spark's tasks start without the table.

Tests: ``tests/test_declaring.py``.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeVar

from app.configs.kinds import ConfigType

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from app.configs.kinds import Importance, Synonym, Update

    class _More(TypedDict, total=False):
        """As in ``Definition``."""

        importance: Importance
        minimum: float | None
        maximum: float | None
        choices: tuple[str, ...]
        any_case: bool
        ordered: bool
        replicas: bool
        kafka_default: str | None
        update: Update
        idle: str
        of_topic_alone: bool


T = TypeVar("T")

DECLARED: Final = "declared"
"""In the metadata of a field: its type, documentation, synonyms, name and the rest."""


def setting(
    default: T, kind: ConfigType, documentation: str, *synonyms: str | Synonym, name: str = "", **more: Unpack[_More]
) -> T:
    """A field of a class of settings.

    ``name``: Kafka's, if it is not the field's with dots. ``synonyms``: broker-wide names of a topic setting, if there are
    others than ``name``; with ``of_topic_alone`` there is none.
    The choices of a ``StrEnum`` are its members. A password is not in the ``repr`` of the settings.
    """
    declared = (kind, documentation, synonyms, name, more)
    return field(default=default, repr=kind is not ConfigType.PASSWORD, metadata={DECLARED: declared})
