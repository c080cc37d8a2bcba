"""``python -m tools.infra [check …]``: hold infra/ against Terraform, the AWS provider's schema, linters and the program."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tools.infra import checks
from tools.infra.findings import MODULES
from tools.infra.toolbox import ToolMissing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.infra", description=__doc__)
    parser.add_argument("check", nargs="*", help=f"all, unless named: {', '.join(checks.NAMES)}")
    parser.add_argument("--tree", type=Path, default=MODULES, help="folder of the root module")
    asked = parser.parse_args()
    unknown = set(asked.check) - set(checks.NAMES)
    if unknown:
        parser.error(f"no check is called {', '.join(sorted(unknown))}; there are {', '.join(checks.NAMES)}")
    if not any(asked.tree.glob("*.tf")):
        parser.error(f"{asked.tree} holds no Terraform module")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="firn-infra-") as scratch:
        bench = checks.Bench(asked.tree.resolve(), Path(scratch))
        for name in asked.check or checks.NAMES:
            begun_s = time.monotonic()
            try:
                found = checks.run(name, bench)
            except ToolMissing as missing:
                print(f"{name}: {missing}", file=sys.stderr)
                failed += 1
                continue
            for each in found:
                print(each)
            print(
                f"{name}: {f'{len(found)} findings' if found else 'ok'} ({time.monotonic() - begun_s:.1f} s)",
                flush=True,
            )
            failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
