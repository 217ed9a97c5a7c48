"""Overhead of the stage store: claim and commit, cache hit, listing, code fingerprint.

Run it with ``python benchmarks/store_overhead.py [--folder FOLDER]``. Plain writes of the same
bytes, flushed and not flushed, show the cost of the disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.store.fingerprint import Fingerprint, code_fingerprint
from ratchet.store.keys import stage_key
from ratchet.store.stage_index import StageIndex
from ratchet.store.store import StageStore

MEGABYTE = os.urandom(2**20)
ROUNDS = 40
LISTED = 1000


def describe(number: int) -> dict[str, Any]:
    """Build a key's inputs, about as large as in a real experiment."""
    sections = {f"section_{i}": {f"value_{j}": i * j / 7 for j in range(12)} for i in range(15)}
    modules = {f"trainers.module_{i}": f"{i:064x}" for i in range(60)}
    return {
        "stage": "train",
        "iteration": 10,
        "parameters": {"seed": number, **sections},
        "inputs": {"base": "ab" * 32},
        "fingerprint": Fingerprint.from_modules(modules),
    }


def key_of(described: dict[str, Any]) -> str:
    """Compute the key of the inputs built by :func:`describe`."""
    return stage_key(**{**described, "fingerprint": described["fingerprint"].digest})


def make(store: StageStore, number: int, content: bytes) -> str:
    """Claim a stage and commit one file."""
    described = describe(number)
    key = key_of(described)
    with store.claim(key) as claim:
        if claim.existing is None:
            (claim.workdir / "state.bin").write_bytes(content)
            claim.commit(**described)
    return key


def plain_write(path: Path, *, flush: bool) -> None:
    """Write one megabyte without a store."""
    with open(path, "wb") as file:
        file.write(MEGABYTE)
        if flush:
            file.flush()
            os.fsync(file.fileno())


def measure(name: str, action: Callable[[int], object], rounds: int = ROUNDS) -> None:
    """Print the median and maximum time of an action and its CPU time, in milliseconds."""
    times, used = [], []
    for number in range(rounds):
        start, start_used = time.perf_counter(), time.process_time()
        action(number)
        times.append(1000 * (time.perf_counter() - start))
        used.append(1000 * (time.process_time() - start_used))
    row = (statistics.median(times), max(times), statistics.median(used))
    print(f"{name:<44}" + "".join(f"{value:>10.2f}" for value in row))


def run(folder: Path) -> None:
    """Measure everything in an empty folder."""
    print(f"{'ms':<44}{'median':>10}{'slowest':>10}{'CPU':>10}")
    measure("write 1 MB, not flushed", lambda i: plain_write(folder / f"a{i}", flush=False))
    measure("write 1 MB, flushed", lambda i: plain_write(folder / f"b{i}", flush=True))
    store = StageStore(folder / "store")
    measure("claim + commit of a 1 MB stage", lambda i: make(store, i, MEGABYTE))
    measure("hit, already verified in this process", lambda i: make(store, i, MEGABYTE))
    keys = [key_of(describe(i)) for i in range(ROUNDS)]
    measure("  of which: find", lambda i: store.find(keys[i]))
    fresh = StageStore(folder / "store")
    measure("first hit in this process (1 MB hashed)", lambda i: make(fresh, i, MEGABYTE))
    measure("key of a stage", lambda i: key_of(describe(i)))
    many = StageStore(folder / "many")
    for number in range(LISTED):
        make(many, number, b"x")
    miss = {**describe(-1), "inputs": {"base": "cd" * 32}}
    measure(
        f"explain a miss among {LISTED}, first", lambda _: StageIndex(many).explain_miss(**miss), 1
    )
    measure(
        f"explain a miss among {LISTED}, again", lambda _: StageIndex(many).explain_miss(**miss), 5
    )
    other = StageStore(folder / "many")
    measure(f"list {LISTED} manifests, first", lambda _: list(other.iterate()), 1)
    measure(f"list {LISTED} manifests, again", lambda _: list(other.iterate()), 5)
    measure("code fingerprint of the store, first", lambda _: code_fingerprint(StageStore), 1)
    measure("code fingerprint of the store, again", lambda _: code_fingerprint(StageStore))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="parent of the temporary folder")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as folder:
        run(Path(folder))


if __name__ == "__main__":
    main()
