"""How late acknowledged writes and delivered records are, at shares of what the slower system can take."""

from __future__ import annotations

from loadtests.lab import NOT_TIERED, Lab
from loadtests.measuring import generate, make_topic
from loadtests.results import Case
from loadtests.workloads.produce import options_of

SHARES = (0.1, 0.5, 0.8)
SHARES_QUICK = (0.5,)
SIZE = "produce 16 KB"


def shares(lab: Lab) -> list[Case]:
    """16 KB requests, acks=all, one partition, with a consumer at the end of the log, at 10, 50 and 80 % of the rate that the
    slower system reached flat out; then each at 80 % of its own. A latency counts from when a request was due."""
    cases = []
    options = options_of(SIZE)
    with lab.systems() as systems:
        capacity: dict[str, float] = {}
        for system, peer in systems.items():
            make_topic(peer, "late", **NOT_TIERED.get(system, {}))
            lab.warm_up(peer, "produce", "late", options)
            found = generate(peer, "produce", "late", seconds=lab.effort.seconds, warm_up=0, **options)
            capacity[system] = found["requests_per_s"]
            print(f"flat out {system:<6} {capacity[system]:,.0f} requests/s", flush=True)
        slower = min(capacity.values())
        paced = {key: value for key, value in options.items() if key != "pipeline"}
        for peer in systems.values():
            # Producing is warm: what the consumer needs is left. Held to a rate a whole warm-up would take minutes.
            lab.warm_up(peer, "end-to-end", "late", paced | {"rate": slower * SHARES[-1]}, brief=True)
        for share in SHARES_QUICK if lab.quick else SHARES:
            cases.append(
                lab.compare(
                    f"acknowledged at {share * 100:.0f} %",
                    systems,
                    "end-to-end",
                    "late",
                    parameters={"share_of_capacity": share, "capacity_requests_per_s": slower},
                    variant=lab.quick,
                    warm=False,
                    rate=slower * share,
                    **paced,
                )
            )
        cases.append(
            lab.compare(
                "acknowledged at 80 % of its own",
                systems,
                "end-to-end",
                "late",
                variant=True,
                warm=False,
                by_system={system: {"rate": own * SHARES[-1]} for system, own in capacity.items()},
                **paced,
            )
        )
    return cases
