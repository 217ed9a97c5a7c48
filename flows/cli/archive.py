"""``ratchet export``, ``import`` and ``save-model``: runs and their models on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.runs import DEFAULT_RUNS, RunName, RunsFolder
from flows.process.messages import print_plain, print_table, print_warning


def export(
    run: RunName,
    file: Annotated[
        Path | None, typer.Argument(help="File to write (default: RUN.ratchet.zip).")
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Pack a run's folder, stages and environment into one file."""
    from flows.cli.garbage_collection import write_size
    from flows.runs.export import export_run
    from ratchet.errors import ParameterError
    from ratchet.tracking.run_folder import find_run

    path = file or Path(f"{find_run(runs, run).run_id}.ratchet.zip")
    if path.exists() and not force:
        raise ParameterError(f"export: {path} already exists. Choose another file or pass --force.")
    done = export_run(run, path, runs)
    size = write_size(done.size)
    print_plain(f"{done.path}: run {done.run_id}, {done.num_stages} stages, {size}.")
    for text in done.removed:
        print_warning(f"Not in the file: {text}")
    print_plain(f"On the other machine: ratchet import {done.path.name}")


def import_(
    file: Annotated[Path, typer.Argument(help="File written by `ratchet export`.")],
    runs: RunsFolder = DEFAULT_RUNS,
    home: Annotated[str, typer.Option(help="Ratchet's home folder.")] = ".ratchet",
    store: Annotated[
        str | None, typer.Option(help="Folder or URL of the store (default: in the home).")
    ] = None,
    base_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of files named in the run's parameters (default: packed copies).",
            exists=True,
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Check and unpack a run packed by `ratchet export`."""
    from flows.runs.import_run import import_run
    from flows.runs.resolve import absolute_settings
    from ratchet.errors import ParameterError
    from ratchet.parameters.settings import ExperimentSettings

    if not file.is_file():
        raise ParameterError(
            f"import: {file}: no such file. Expected a file written by `ratchet export`."
        )
    settings = absolute_settings(ExperimentSettings(home=home, runs=runs, store=store))
    done = import_run(file, settings, None if base_dir is None else base_dir.resolve())
    run_id = done.folder.run_id
    print_plain(f"Run {run_id}: {done.new} stages imported, {done.num_present} existed already.")
    if done.other_bytes:
        print_warning(
            f"{len(done.other_bytes)} stages existed with files different from the archive's; they"
            " are not replaced, and the run's numbers may differ from them."
        )
    if done.environment:
        rows = [(each.name, each.there or "–", each.here or "–") for each in done.environment]
        print_table("Differences between the machines", ("item", "original", "here"), rows)
    if done.has_code:
        print_plain(f"The archive's code is executed to compute stages: {done.folder.path}/code")
    print_plain(f"Recompute a stage and compare: ratchet verify {run_id}")


def save_models(
    run: RunName,
    folder: Annotated[
        Path | None, typer.Argument(help="New folder to write (default: RUN-models).")
    ] = None,
    arm: Annotated[str, typer.Option("--arm", help="Arm whose models are written.")] = "main",
    iteration: Annotated[
        int | None,
        typer.Option(metavar="K", help="Iterations that led to the state (default: the last one)."),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Merge adapters into their base models, rounded to its type."),
    ] = False,
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Write a run's trained language models in Hugging Face's layout."""
    from flows.process.environment import prepare_environment
    from flows.runs.resolve import resolve_run
    from flows.runs.saved_models import save_models
    from ratchet.errors import ParameterError

    experiment = resolve_run(run, None, runs)
    prepare_environment(experiment.settings.home, experiment.settings.num_threads)
    target = (folder or Path(f"{experiment.run_id}-models")).resolve()
    if target.exists():
        raise ParameterError(f"save-model: {target} already exists. Choose another folder.")
    iterations, models = save_models(experiment, target, arm, iteration, merges=merge)
    for model in models:
        print_plain(f"{model}: after {iterations} iterations")
