"""``ratchet plan``: which stages an experiment has, which are stored, and why not the others."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.running import Budget, ExperimentPath, Overrides
from flows.process.messages import print_plain, print_table, print_warning

if TYPE_CHECKING:
    from flows.planning.plan import PlannedStage
    from ratchet.language_models.estimates import StageEstimate

_ASKED = ("calls", "tokens", "cost")
_WRITTEN = ("answers", "tokens at most")


def plan(
    file: ExperimentPath,
    overrides: Overrides = None,
    keys: Annotated[bool, typer.Option("--keys", help="Show the stages' keys too.")] = False,
    budget: Budget = None,
) -> None:
    """Say which stages `run` would find in the store and which it would make, and why.

    Of chat models also what they would ask for: games that go to their last round, messages to
    their limit. If that and what the run was billed is more than the budget, it is an error; if
    only replies that are asked for again could make it more, it is said. Of language models that
    learn from their tokens, how much they would play at most. What would keep `run` from beginning
    on this machine is an error, too; what would run and is seldom meant, a warning.
    """
    from flows.planning.estimates import check_plan, remaining
    from flows.planning.plan import describe_rounds
    from flows.planning.plan import plan as plan_stages
    from flows.runs.preflight import check_devices, check_experiment
    from flows.runs.resolving import resolve_file
    from ratchet.language_models.ledger import Ledger
    from trainers.cautions import find_cautions

    experiment = resolve_file(file, overrides or [])
    check_experiment(experiment.with_settings(device="cpu"))  # a plan needs no other
    stages = plan_stages(experiment)
    asks = any(stage.estimate for stage in stages)
    writes = any(stage.tokens for stage in stages)
    more = (*(_ASKED if asks else ()), *(_WRITTEN if writes else ()))
    columns = ["arm", "stage", "iterations", "state", *more, "why"]
    rows = [
        [
            *_row(stage),
            *(_asked(stage) if asks else ()),
            *(_written(stage) if writes else ()),
            stage.reason,
        ]
        for stage in stages
    ]
    if keys:
        columns.append("key")
        rows = [[*row, stage.key] for row, stage in zip(rows, stages, strict=True)]
    records = [asdict(stage) for stage in stages]
    print_table(f"Plan of {experiment.run_id}", columns, rows, records)
    print_plain(_summary(stages))
    for text in describe_rounds(experiment):
        print_plain(text)
    if writes:
        print_plain(_tokens(stages))
    total = remaining(stages)
    if total is not None:
        print_plain(_total(total))
    for caution in find_cautions(experiment.arms, experiment.settings.base_dir):
        print_warning(caution)
    check_devices(experiment)
    limit = budget if budget is not None else experiment.settings.budget
    ledger = experiment.run_path / "ledger.jsonl"
    billed = Ledger(path=ledger).billed.at_most if ledger.exists() else 0.0
    risk = check_plan(stages, limit, billed)
    if risk:
        print_plain(risk)


def _row(stage: PlannedStage) -> tuple[str, str, str, str]:
    from ratchet.tracking.manifest import ITERATION_STAGES

    span = f"{stage.start} → {stage.iteration}" if stage.stage == "train" else ""
    if stage.stage in (*ITERATION_STAGES, "rollouts"):
        span = str(stage.iteration)
    return stage.arm, stage.stage, span, "stored" if stage.hit else "to do"


def _asked(stage: PlannedStage) -> tuple[str, str, str]:
    """Write what a stage that is to do asks for: calls, thousands of tokens, money."""
    estimate = stage.estimate
    if estimate is None or stage.hit:
        return "", "", ""
    if not estimate.is_known:
        return "not known", "", ""
    tokens = estimate.prompt_tokens + estimate.completion_tokens + estimate.training_tokens
    cost = "?" if estimate.unpriced_models else f"{estimate.cost:.2f}"
    return f"{estimate.calls:,}", f"{tokens / 1000:,.0f}k", cost


def _written(stage: PlannedStage) -> tuple[str, str]:
    """Write what a language model plays in a stage that is to do: answers, tokens."""
    if stage.tokens is None or stage.hit:
        return "", ""
    return f"{stage.tokens.answers:,}", f"{stage.tokens.together or stage.tokens.written:,}"


def _tokens(stages: list[PlannedStage]) -> str:
    """Sum up what language models play; what arms share counts once."""
    todo = {stage.key: stage.tokens for stage in stages if stage.tokens and not stage.hit}.values()
    answers, written = (sum(getattr(one, n) for one in todo) for n in ("answers", "written"))
    text = f"Language models write at most {answers:,} answers of {written:,} tokens together"
    together = [one.together for one in todo]
    if None in together:
        return f"{text}; their prompts come on top, which only the models bound."
    total = sum(each for each in together if each is not None)
    return f"{text}; with their prompts at most {total:,}."


def _total(total: StageEstimate) -> str:
    from flows.planning.estimates import NOT_KNOWN
    from flows.process.progress import format_seconds

    if not total.is_known:
        return f"{NOT_KNOWN[0].upper()}{NOT_KNOWN[1:]}."
    text = (
        f"Replies that can be read: {total.calls:,} calls, {total.prompt_tokens:,} prompt,"
        f" {total.completion_tokens:,} completion and {total.training_tokens:,} training tokens,"
        f" {total.cost:.2f} in money, about {format_seconds(total.seconds)}. At most"
        f" {total.most_calls:,} calls and {total.most_cost:.2f} in money, where every reply is"
        " requested again as often as num_invalid_generation_retries allows. Answers that get lost"
        " on the way, and jobs that are cancelled, come on top; a budget counts each with the"
        " most that it can have cost."
    )
    if total.unpriced_models:
        text += f" Without the price of {', '.join(total.unpriced_models)}, which is not known."
    return text


def _summary(stages: list[PlannedStage]) -> str:
    from flows.process.progress import format_seconds

    stored = [stage for stage in stages if stage.hit]
    saved = sum({stage.key: stage.seconds or 0.0 for stage in stored}.values())  # arms share
    text = f"{len(stages)} stages: {len(stored)} stored, {len(stages) - len(stored)} to do."
    return f"{text} What is stored took {format_seconds(saved)}." if stored else text
