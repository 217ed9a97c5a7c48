"""``ratchet gc``: remove what no run needs. Says what would go, unless told to do it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.process.messages import print_plain, print_table

if TYPE_CHECKING:
    from flows.runs.collecting import Collection, Collector
    from ratchet.store.collecting import Leftover

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


def read_size(text: str) -> int:
    """Read "500MB", "20 GiB" or plain bytes; ParameterError for anything else."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from ratchet.errors import ParameterError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text.strip()))
    except ValidationError as error:
        raise ParameterError(
            f"size: got {text!r}, expected a number of bytes, 500MB or 20GiB."
        ) from error


def read_age(text: str) -> float:
    """Read "90s", "12h", "30d" or "2w" as seconds; ParameterError for anything else."""
    from ratchet.errors import ParameterError

    if text.strip() == "0":
        return 0.0
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ParameterError(f"age: got {text!r}, expected 0, or 90s, 30m, 12h, 30d or 2w.")
    return float(match[1]) * _SECONDS[match[2]]


def write_size(size: float) -> str:
    """Write bytes as "1.5 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def gc(
    older_than: Annotated[
        str, typer.Option(help="What was used more recently stays: 12h, 30d, 2w.")
    ] = "1d",
    run: Annotated[
        str | None, typer.Option(help="Only stages that this run made, which may be deleted.")
    ] = None,
    free: Annotated[
        str | None, typer.Option(help="Free so much, longest unused first: 500MB, 20GiB.")
    ] = None,
    down_to: Annotated[
        str | None, typer.Option(help="Until the stages take no more than this.")
    ] = None,
    unfinished: Annotated[
        bool,
        typer.Option(
            "--unfinished",
            help="Also what unfinished stages keep: answers paid for, states on the way.",
        ),
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", "--yes", help="Do it; without this it only says what.")
    ] = False,
    runs: Annotated[
        list[str] | None,
        typer.Option("--runs", help="A runs folder besides those that the store knows."),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(help="A runs folder that is gone, though the store knows it."),
    ] = None,
    home: Annotated[str, typer.Option(help="Ratchet's own folder.")] = ".ratchet",
    store: Annotated[
        str | None, typer.Option(help="The store's folder or URL; that of the home if not given.")
    ] = None,
) -> None:
    """Remove stages that no run needs, and what killed runs have left; safe beside running ones."""
    from flows.runs.collecting import Collector, Limits
    from ratchet.store.store import StageStore

    limits = Limits(
        older_than=read_age(older_than),
        run=run,
        free=None if free is None else read_size(free),
        down_to=None if down_to is None else read_size(down_to),
        unfinished=unfinished,
    )
    folders = [Path(each) for each in runs or ()]
    place = StageStore(store or Path(home) / "store")
    collector = Collector(place, Path(home), folders, limits, forget=forget or [])
    _collect(collector, delete=delete)


def _collect(collector: Collector, *, delete: bool) -> None:
    """Say what would go; or remove it, and say what has gone."""
    found = collector.look()
    _say_what_was_looked_at(found)
    if not delete:
        _show("To remove", found.leftovers)
        if found.leftovers:
            print_plain("Nothing is removed yet. To do it: the same command with --delete")
        return
    removed = collector.remove(found)
    _show("Removed", removed)
    if len(removed) < len(found.leftovers):
        print_plain(f"{len(found.leftovers) - len(removed)} stay: they are wanted by now.")


def _say_what_was_looked_at(found: Collection) -> None:
    folders = ", ".join(map(str, found.folders))
    print_plain(f"{found.num_runs} runs in {folders} need {found.num_needed} stages; these stay.")


def _show(title: str, leftovers: Sequence[Leftover]) -> None:
    """Show what goes, summed by kind and run; JSON has each."""
    sums: dict[tuple[str, str], list[Leftover]] = {}
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
        print_table(title, ("what", "made by", "number", "size", "last used"), rows, records)
    size = write_size(sum(each.size for each in leftovers))
    print_plain(f"{title}: {len(leftovers)} things, {size}.")


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
