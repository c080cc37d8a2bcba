"""What it costs to ask who may do what: ``python -m loadtests.micro_rights``.

The authorizer alone: a decision that was made before, the first decision, and the rules of a changed image. Then the handlers of
1 KB Produce requests on a connection without a socket, without an authorizer and with one, in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

from app.handlers.base.authorising import may
from app.handlers.policy.callers import Caller, Rights
from app.security.acls import Acls, Operation, Pattern, PatternType, Permission, ResourceType, Rule
from app.security.authorizer import Authorizer

ROUNDS: Final = 9
DECISIONS: Final = 20_000
HOST: Final = "10.0.0.1"
USERS: Final = 1_000


def rules_of(count: int) -> Acls:
    """So many rules, half of them for prefixes, each for one of a thousand users."""
    found: dict[Pattern, dict[str, tuple[Rule, ...]]] = {}
    for number in range(count):
        kind = PatternType.PREFIXED if number % 2 else PatternType.LITERAL
        principal = f"User:{number % USERS}"
        pattern = Pattern(ResourceType.TOPIC, kind, f"team-{number}.events")
        found[pattern] = {principal: (Rule(principal, "*", Operation.READ, Permission.ALLOW),)}
    return found


def nanoseconds(work: Callable[[], object], repeats: int) -> float:
    """The median cost of ``work``, which does ``repeats`` things."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        work()
        taken.append((time.process_time_ns() - began) / repeats)
    return statistics.median(taken)


class _Context:
    """As much of a broker as a question needs."""

    def __init__(self, authorizer: Authorizer | None) -> None:
        self.authorizer = authorizer


def main() -> None:
    print("rules    again    first    a change of rules")
    for count in (10, 1_000, 100_000):
        authorizer = Authorizer()
        acls = rules_of(count)
        authorizer.follow(acls)
        names = [f"team-{number}.events" for number in range(DECISIONS)]

        def first(authorizer: Authorizer = authorizer, acls: Acls = acls, names: list[str] = names) -> None:
            authorizer.follow(dict(acls))
            for name in names:
                authorizer.allows("User:7", HOST, Operation.READ, ResourceType.TOPIC, name)

        def again(authorizer: Authorizer = authorizer) -> None:
            allows = authorizer.allows
            for _ in range(DECISIONS):
                allows("User:7", HOST, Operation.READ, ResourceType.TOPIC, "team-7.events")

        def change(authorizer: Authorizer = authorizer, acls: Acls = acls) -> None:
            authorizer.follow(dict(acls))

        print(
            f"{count:>6} {nanoseconds(again, DECISIONS) / 1e3:>6.2f} µs {nanoseconds(first, DECISIONS) / 1e3:>6.2f} µs "
            f"{nanoseconds(change, 1) / 1e6:>8.2f} ms"
        )
    authorizer = Authorizer()
    authorizer.follow(rules_of(1_000))
    caller = Caller(Rights("User:7"), host=HOST)
    for name, context in (("without an authorizer", _Context(None)), ("with one", _Context(authorizer))):

        def ask(context: _Context = context) -> None:
            for _ in range(DECISIONS):
                may(context, caller, Operation.READ, ResourceType.TOPIC, "team-7.events")

        print(f"a handler's question {name}: {nanoseconds(ask, DECISIONS) / 1e3:.2f} µs")


if __name__ == "__main__":
    main()
