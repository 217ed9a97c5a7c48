"""``ratchet export`` and ``import``: a run as one file, for another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.runs import DEFAULT_RUNS, RunName, RunsFolder
from flows.process.messages import print_plain, print_table, print_warning


def export(
    run: RunName,
    file: Annotated[
        Path | None, typer.Argument(help="Where to; RUN.ratchet.zip if not given.")
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Pack a run into one file: its folder, all stages that it needs, and what it ran on."""
    from flows.cli.collecting import write_size
    from flows.runs.exporting import export_run
    from ratchet.errors import ParameterError
    from ratchet.tracking.run_folder import find_run

    path = file or Path(f"{find_run(runs, run).run_id}.ratchet.zip")
    if path.exists() and not force:
        raise ParameterError(f"export: {path} is there. Name another file, or use --force.")
    done = export_run(run, path, runs)
    size = write_size(done.size)
    print_plain(f"{done.path}: run {done.run_id}, {done.num_stages} stages, {size}.")
    print_plain(f"Elsewhere: ratchet import {done.path.name}")


def import_(
    file: Annotated[Path, typer.Argument(help="What `ratchet export` has written.")],
    runs: RunsFolder = DEFAULT_RUNS,
    home: Annotated[str, typer.Option(help="Ratchet's own folder.")] = ".ratchet",
    store: Annotated[
        str | None, typer.Option(help="The store's folder or URL; that of the home if not given.")
    ] = None,
    base_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where files are that the run's parameters name; else those it has.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Unpack a run: its stages into the store, its folder among the runs. Checked before."""
    from flows.runs.importing import import_run
    from flows.runs.resolving import absolute_settings
    from ratchet.errors import ParameterError
    from ratchet.parameters.settings import ExperimentSettings

    if not file.is_file():
        raise ParameterError(f"import: got {file}, expected a file that `ratchet export` wrote.")
    settings = absolute_settings(ExperimentSettings(home=home, runs=runs, store=store))
    done = import_run(file, settings, None if base_dir is None else base_dir.resolve())
    run_id = done.folder.run_id
    print_plain(f"Run {run_id}: {done.new} stages are new here, {done.found} were there.")
    if done.other_bytes:
        print_warning(
            f"{len(done.other_bytes)} stages were here with other files than in the archive; they"
            " are kept, and the run's numbers may differ from them."
        )
    if done.environment:
        rows = [(each.name, each.there or "–", each.here or "–") for each in done.environment]
        print_table("Otherwise than where it was made", ("what", "there", "here"), rows)
    if done.has_code:
        print_plain(f"Code came with it, which runs when a stage is made: {done.folder.path}/code")
    print_plain(f"Make a stage again and compare: ratchet verify {run_id}")
