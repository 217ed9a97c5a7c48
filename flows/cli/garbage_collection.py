"""``ratchet gc``: remove unused stages. Lists them unless ``--delete`` is given."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.process.messages import print_plain, print_table

if TYPE_CHECKING:
    from flows.runs.garbage_collection import GarbageCollector
    from ratchet.store.garbage_collection import GarbageItem

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


def read_size(text: str) -> int:
    """Parse "500MB", "20 GiB" or plain bytes; ParameterError otherwise."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from ratchet.errors import ParameterError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text.strip()))
    except ValidationError as error:
        raise ParameterError(
            f"size: got {text!r}, expected a number of bytes, 500MB or 20GiB."
        ) from error


def read_age(text: str) -> float:
    """Parse "90s", "12h", "30d" or "2w" as seconds; ParameterError otherwise."""
    from ratchet.errors import ParameterError

    if text.strip() == "0":
        return 0.0
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ParameterError(f"age: got {text!r}, expected 0, or 90s, 30m, 12h, 30d or 2w.")
    return float(match[1]) * _SECONDS[match[2]]


def write_size(size: float) -> str:
    """Format bytes as "1.5 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


MaxSize = Annotated[
    str | None,
    typer.Option("--max-size", help="Delete until the stages' total size is at most this."),
]
IncludeUnfinished = Annotated[
    bool,
    typer.Option(
        "--include-unfinished",
        help="Also delete data of unfinished stages: paid API responses, intermediate states.",
    ),
]
Unregistered = Annotated[
    list[str] | None,
    typer.Option(
        "--unregister", help="Runs folder to unregister from the store because it was deleted."
    ),
]


def gc(
    older_than: Annotated[
        str, typer.Option(help="Keep stages used within this period, e.g. 12h, 30d, 2w.")
    ] = "1d",
    run: Annotated[
        str | None, typer.Option(help="Only stages computed by this run, which may be deleted.")
    ] = None,
    free: Annotated[
        str | None, typer.Option(help="Space to free, least recently used first: 500MB, 20GiB.")
    ] = None,
    down_to: MaxSize = None,
    unfinished: IncludeUnfinished = False,
    delete: Annotated[
        bool,
        typer.Option("--delete", "--yes", help="Delete; otherwise only list unused stages."),
    ] = False,
    runs: Annotated[
        list[str] | None,
        typer.Option("--runs-dir", help="Additional runs folder, not yet registered in the store."),
    ] = None,
    forget: Unregistered = None,
    home: Annotated[str, typer.Option(help="Ratchet's home folder.")] = ".ratchet",
    store: Annotated[
        str | None, typer.Option(help="Folder or URL of the store (default: in the home).")
    ] = None,
) -> None:
    """Remove unused stages and leftovers of killed runs.

    Safe while other runs are active.
    """
    from flows.runs.garbage_collection import GarbageCollector, RetentionLimits
    from ratchet.store.store import StageStore

    limits = RetentionLimits(
        older_than=read_age(older_than),
        run=run,
        free=None if free is None else read_size(free),
        down_to=None if down_to is None else read_size(down_to),
        unfinished=unfinished,
    )
    folders = [Path(each) for each in runs or ()]
    stage_store = StageStore(store or Path(home) / "store")
    collector = GarbageCollector(stage_store, Path(home), folders, limits, forget=forget or [])
    _collect(collector, delete=delete)


def _collect(collector: GarbageCollector, *, delete: bool) -> None:
    """List unused stages, or remove them and list the removed ones."""
    plan = collector.plan()
    searched = ", ".join(map(str, plan.folders))
    print_plain(f"{plan.num_runs} runs in {searched} need {plan.num_needed} stages; these stay.")
    if not delete:
        _show("To remove", plan.leftovers)
        if plan.leftovers:
            print_plain("No files are removed yet. To remove them, add --delete.")
        return
    removed = collector.remove(plan)
    _show("Removed", removed)
    if len(removed) < len(plan.leftovers):
        print_plain(f"{len(plan.leftovers) - len(removed)} are in use again and stay.")


def _show(title: str, leftovers: Sequence[GarbageItem]) -> None:
    """Show garbage as sums by kind and run; JSON contains every item."""
    sums: dict[tuple[str, str], list[GarbageItem]] = {}
    for each in leftovers:
        sums.setdefault((each.kind, each.run_id or ""), []).append(each)
    rows = [
        (
            kind,
            run,
            str(len(group)),
            write_size(sum(each.size for each in group)),
            _date(max(each.last_used for each in group)),
        )
        for (kind, run), group in sums.items()
    ]
    records = [
        {
            "kind": str(each.kind),
            "name": each.name,
            "bytes": each.size,
            "last_used": each.last_used,
            "run": each.run_id,
        }
        for each in leftovers
    ]
    if leftovers:
        print_table(title, ("kind", "run", "number", "size", "last used"), rows, records)
    size = write_size(sum(each.size for each in leftovers))
    print_plain(f"{title}: {len(leftovers)} items, {size}.")


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
