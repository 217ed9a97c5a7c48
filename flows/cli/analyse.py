"""``ratchet analyse``: let a chat model judge the messages of a finished run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.runs import DEFAULT_RUNS, RunName, RunsFolder
from flows.process.messages import print_plain, print_table

if TYPE_CHECKING:
    from ratchet.analysis.results import AnalyserSummary, AnalysisSummary
    from ratchet.language_models.endpoints import Endpoint


def analyse(
    run: RunName,
    model: Annotated[str, typer.Option("--model", help="Name of the chat model.")],
    analyser: Annotated[
        list[str] | None,
        typer.Option("--analyser", help="Name or file.py:Class (default: all)."),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="URL of the service, or `embedded` (default: OpenAI).")
    ] = None,
    api_key_name: Annotated[
        str | None, typer.Option(help="Environment variable with the API key.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count calls, tokens and cost.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing verdicts.")
    ] = False,
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Let a chat model judge each message of a run.

    Existing verdicts are kept.
    """
    from ratchet.analysis.base import analyser_names
    from ratchet.analysis.llm_judge import AnalysisModel
    from ratchet.analysis.run import analyse_run
    from ratchet.language_models.endpoints import Endpoint
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    endpoint = Endpoint(base_url=base_url, api_key_name=api_key_name)
    home = folder.home
    with nullcontext() if dry_run else _ready(endpoint, home):
        summary = analyse_run(
            folder.path,
            analyser or analyser_names(),
            model=AnalysisModel(model, endpoint),
            dry_run=dry_run,
            overwrite=overwrite,
        )
    _show(summary)


def _ready(endpoint: Endpoint, home: Path) -> AbstractContextManager[object]:
    """Look up the service's key, and run the embedded service while it is needed."""
    from flows.process.environment import prepare_environment
    from flows.runs.language_services import embedded_service, find_key

    prepare_environment(home)
    find_key(endpoint.api_key_name)
    return embedded_service(home) if endpoint.is_embedded else nullcontext()


def _show(summary: AnalysisSummary) -> None:
    columns = ("analyser", "messages", "existing", "calls", "tokens", "cost", "verdicts")
    print_table(f"Analysis by {summary.model}", columns, [_row(a) for a in summary.analysers])
    cost = "?" if summary.cost is None else f"{summary.cost:.4f}"
    prefix = "Dry run: " if summary.is_dry_run else ""
    print_plain(f"{prefix}{summary.num_calls:,} calls, cost {cost}.")
    if summary.num_too_long:
        print_plain(
            f"{summary.num_too_long:,} messages were skipped: with the preceding messages they"
            " exceed the model's context. To judge only these, run the same command with a model"
            " that has a longer context."
        )


def _row(analyser: AnalyserSummary) -> tuple[str, ...]:
    tokens = analyser.prompt_tokens + analyser.completion_tokens
    return (
        analyser.name,
        f"{analyser.num_messages:,}",
        f"{analyser.num_kept:,}",
        f"{analyser.num_calls:,}",
        f"{tokens:,}",
        "?" if analyser.cost is None else f"{analyser.cost:.4f}",
        ", ".join(f"{name} {count}" for name, count in sorted(analyser.verdicts.items())),
    )
