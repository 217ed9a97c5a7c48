"""Add an earlier release's code with equal results to the table of equivalents.

    python tools/equivalents.py EARLIER_TREE [EXPERIMENT …] [--table FILE]

Runs the golden experiments with the code in EARLIER_TREE, such as a worktree of its tag, and with
this code, in the same environment. Each stage with bit-identical outputs yields a row: this code's
digest → the digest of the oldest equivalent code. Fails if a code digest has stages with equal and
with different outputs, or is equivalent to two earlier ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ratchet.store.fingerprint import (  # noqa: E402 -- importable after the line above
    TABLE,
    code_digest,
    read_equivalents,
)


def golden_stages(tree: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Run the golden experiments with the code in a folder; return their stages by name."""
    script = Path(__file__).with_name("golden_stages.py")
    command = [sys.executable, str(script), str(tree), *names]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    records = json.loads(done.stdout.splitlines()[-1])
    return {record["stage"]: record for record in records}


def new_rows(
    earlier: dict[str, dict[str, Any]], here: dict[str, dict[str, Any]], table: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return rows for stages with equal outputs, and the stages whose outputs differ."""
    rows: dict[str, str] = {}
    changed, refused = [], set()
    for name in sorted(earlier.keys() & here.keys()):
        old, new = code_digest(earlier[name]["modules"]), code_digest(here[name]["modules"])
        if earlier[name]["outputs"] != here[name]["outputs"]:
            changed.append(name)
            refused.add(new)
            if old == new:
                raise SystemExit(f"{name}: not deterministic: equal code, different outputs.")
        elif old != new:
            oldest = table.get(old, old)
            if rows.setdefault(new, oldest) != oldest:
                raise SystemExit(f"{name}: equivalent to two earlier code digests; compare them.")
    return {new: old for new, old in rows.items() if new not in refused}, changed


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("experiments", nargs="*")
    parser.add_argument("--table", type=Path, default=TABLE)
    arguments = parser.parse_args()
    table = read_equivalents(arguments.table)
    earlier = golden_stages(arguments.tree.resolve(), arguments.experiments)
    current = golden_stages(ROOT, arguments.experiments)
    rows, changed = new_rows(earlier, current, table)
    content = {"code": dict(sorted({**table, **rows}.items()))}
    arguments.table.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{len(rows)} kinds of stages are equivalent; changed: {', '.join(changed) or 'none'}.")  # noqa: T201


if __name__ == "__main__":
    main()
