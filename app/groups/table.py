"""The groups of a shard by id, and the exact memory of the classic ones. Pure."""

from __future__ import annotations

from app.groups.classic.classic import ClassicGroup
from app.groups.group import Group
from app.groups.memory import Account


class GroupTable(dict[str, Group]):
    """Groups are set and deleted by ``table[group_id]`` only: other ways would not be counted."""

    __slots__ = ("account",)

    def __init__(self) -> None:
        super().__init__()
        self.account = Account()
        """The memory of the groups that are in the table now."""

    def __setitem__(self, group_id: str, group: Group) -> None:
        self._release(self.get(group_id))
        super().__setitem__(group_id, group)
        if isinstance(group, ClassicGroup):
            group.count_in(self.account)

    def __delitem__(self, group_id: str) -> None:
        self._release(self.get(group_id))
        super().__delitem__(group_id)

    @staticmethod
    def _release(group: Group | None) -> None:
        if isinstance(group, ClassicGroup):
            group.count_in(None)
