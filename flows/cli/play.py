"""``ratchet play``: a person plays against trained agents."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from flows.cli.runs import DEFAULT_RUNS, RunName, RunsFolder
from flows.process.messages import print_plain


def play(
    run: RunName,
    seat: Annotated[str, typer.Option("--seat", help="Seat that you take, e.g. player_0.")],
    arm: Annotated[str, typer.Option("--arm", help="Arm whose agents you meet.")] = "main",
    matches: Annotated[
        int | None,
        typer.Option("--matches", min=1, help="Number of matches (default: until Ctrl-C)."),
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Play a run's game against its trained agents, by typing actions.

    Finished matches are recorded in the run's folder, in matches_with_people.jsonl, which no
    training reads.
    """
    from flows.process.environment import prepare_environment
    from flows.runs.played_matches import play_matches
    from flows.runs.resolve import resolve_run
    from ratchet.tracking.run_folder import find_run

    experiment = resolve_run(run, None, runs)
    prepare_environment(experiment.settings.home, experiment.settings.num_threads)
    played = play_matches(experiment, find_run(runs, run), arm, seat, print_plain, _read)
    try:
        for match in islice(played, matches):
            rewards = ", ".join(f"{name} {value:g}" for name, value in match.rewards.items())
            print_plain(f"Match {match.match + 1}: {rewards}")
    except KeyboardInterrupt:
        print_plain("\nThe match ends without a record.")


def _read(prompt: str) -> str:
    """Read a line; the end of the input interrupts the match as Ctrl-C does."""
    try:
        return input(prompt)
    except EOFError:
        raise KeyboardInterrupt from None
