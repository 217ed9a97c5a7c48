"""``ratchet plan``: the stages of an experiment, cached or missing, with reasons and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.garbage_collection import write_size
from flows.cli.run import ExperimentPath, Overrides
from flows.process.messages import print_plain, print_table, print_warning

if TYPE_CHECKING:
    from flows.planning.plan import PlannedStage
    from flows.runs.resolve import ResolvedExperiment
    from ratchet.language_models.estimates import StageEstimate

_CALLS = ("calls", "tokens", "cost")
_TOKENS = ("answers", "tokens at most")


def plan(
    file: ExperimentPath,
    overrides: Overrides = None,
    keys: Annotated[bool, typer.Option("--show-keys", help="Show the stages' keys.")] = False,
    budget: Annotated[
        float | None, typer.Option(help="Fail if chat models may cost more than this.")
    ] = None,
) -> None:
    """List an experiment's stages: stored or to do, and why.

    For chat models, also print the maximum calls, tokens and cost: every episode reaches its last
    round, every message its length limit. The plan fails if this exceeds the budget left by earlier
    bills, and notes if retries of invalid replies could. For token-level language models, also
    print an upper bound on sampled tokens, and the disk space of states if the model's files or
    stored states give their size. Problems that would prevent the run on this machine are errors,
    suspicious parameters are warnings.
    """
    from flows.planning.plan import check_plan, describe_rounds, remaining
    from flows.planning.plan import plan as plan_stages
    from flows.runs.changed_defaults import stages_with_old_defaults
    from flows.runs.preflight import check_devices, check_experiment
    from flows.runs.removed_states import check_states
    from flows.runs.resolve import resolve_file
    from flows.runs.unseen_inputs import unseen_inputs
    from ratchet.language_models.ledger import Ledger
    from trainers.config_warnings import find_config_warnings

    experiment = resolve_file(file, overrides or [])
    check_experiment(experiment.with_settings(device="cpu"))  # a plan needs no device
    stages = plan_stages(experiment)
    has_tokens = any(stage.tokens for stage in stages)
    columns, rows = _table(stages, has_tokens=has_tokens, has_keys=keys)
    records = [asdict(stage) for stage in stages]
    print_table(f"Plan of {experiment.run_id}", columns, rows, records)
    print_plain(_summary(stages))
    _show_space(experiment)
    for stored in stages_with_old_defaults(experiment, experiment.named):
        print_warning(str(stored))
    for text in unseen_inputs(experiment, (stage.key for stage in stages if stage.hit)):
        print_warning(text)
    for text in describe_rounds(experiment):
        print_plain(text)
    if any(stage.tokens and not stage.hit for stage in stages):
        print_plain(_total_tokens(stages))
    total = remaining(stages)
    if total is not None:
        print_plain(_total_calls(total))
    check_states(experiment.store, experiment.settings, experiment.keys)
    check_devices(experiment)
    settings = experiment.settings
    for caution in find_config_warnings(experiment.arms, settings.base_dir, settings.device):
        print_warning(caution)
    limit = budget if budget is not None else experiment.settings.budget
    ledger = experiment.run_path / "ledger.jsonl"
    billed = Ledger(path=ledger).billed.at_most if ledger.exists() else 0.0
    risk = check_plan(stages, limit, billed)
    if risk:
        print_plain(risk)


def _show_space(experiment: ResolvedExperiment) -> None:
    """Print the disk space of states to compute, and warn of too little space or memory."""
    from flows.planning.space import estimate_disk, memory_warnings

    disk = estimate_disk(experiment)
    if disk is None:
        return
    columns = ("states", "size of each", "in total", "free", "location")
    sizes = (write_size(size) for size in (disk.state_bytes, disk.required, disk.free))
    rows = [(str(disk.num_states), *sizes, disk.location)]
    print_table("Disk space for states to compute", columns, rows, [asdict(disk)])
    for text in (*disk.warnings, *memory_warnings(experiment)):
        print_warning(text)


def _table(
    stages: Sequence[PlannedStage], *, has_tokens: bool, has_keys: bool
) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the stages; calls only if stages have estimates of them."""
    has_calls = any(stage.estimate for stage in stages)
    more = (*(_CALLS if has_calls else ()), *(_TOKENS if has_tokens else ()))
    columns = ["arm", "stage", "iterations", "state", *more, "why", *(["key"] if has_keys else ())]
    rows = [
        [
            *_row(stage),
            *(_calls(stage) if has_calls else ()),
            *(_tokens(stage) if has_tokens else ()),
            stage.reason,
            *([stage.key] if has_keys else ()),
        ]
        for stage in stages
    ]
    return columns, rows


def _row(stage: PlannedStage) -> tuple[str, str, str, str]:
    from ratchet.tracking.stage_kinds import kind_of

    texts = {"iterations": f"{stage.start} → {stage.iteration}", "iteration": str(stage.iteration)}
    span = texts.get(kind_of(stage.stage).span, "")
    return stage.arm, stage.stage, span, "stored" if stage.hit else "to do"


def _calls(stage: PlannedStage) -> tuple[str, str, str]:
    """Return a missing stage's calls, thousands of tokens and cost as text."""
    estimate = stage.estimate
    if estimate is None or stage.hit:
        return "", "", ""
    if not estimate.is_known:
        return "unknown", "", ""
    tokens = estimate.prompt_tokens + estimate.completion_tokens + estimate.training_tokens
    cost = "?" if estimate.unpriced_models else f"{estimate.cost:.2f}"
    return f"{estimate.calls:,}", f"{tokens / 1000:,.0f}k", cost


def _tokens(stage: PlannedStage) -> tuple[str, str]:
    """Return a missing stage's completions and tokens of a language model as text."""
    if stage.tokens is None or stage.hit:
        return "", ""
    return f"{stage.tokens.answers:,}", f"{stage.tokens.together or stage.tokens.written:,}"


def _total_tokens(stages: list[PlannedStage]) -> str:
    """Describe the total tokens of language models; shared stages count once."""
    bounds = {s.key: s.tokens for s in stages if s.tokens and not s.hit}.values()
    answers, written = (sum(getattr(one, n) for one in bounds) for n in ("answers", "written"))
    text = f"Language models write at most {answers:,} answers with {written:,} tokens in total"
    together = [one.together for one in bounds]
    if None in together:
        return f"{text}, plus their prompts, which only the models limit."
    total = sum(each for each in together if each is not None)
    return f"{text}, at most {total:,} with their prompts."


def _total_calls(total: StageEstimate) -> str:
    from flows.planning.estimates import NOT_KNOWN
    from flows.process.progress import format_seconds

    if not total.is_known:
        return f"{NOT_KNOWN[0].upper()}{NOT_KNOWN[1:]}."
    text = (
        f"If all replies are valid: {total.calls:,} calls, {total.prompt_tokens:,} prompt,"
        f" {total.completion_tokens:,} completion and {total.training_tokens:,} training tokens,"
        f" cost {total.cost:.2f}, about {format_seconds(total.seconds)}. At most"
        f" {total.most_calls:,} calls and cost {total.most_cost:.2f}, if every reply is retried"
        " num_invalid_generation_retries times. Lost responses and cancelled jobs are not included;"
        " a budget counts each with its maximum cost."
    )
    if total.unpriced_models:
        text += f" Excludes {', '.join(total.unpriced_models)}, which have no price."
    return text


def _summary(stages: list[PlannedStage]) -> str:
    from flows.process.progress import format_seconds

    stored = [stage for stage in stages if stage.hit]
    saved = sum({stage.key: stage.seconds or 0.0 for stage in stored}.values())  # arms share
    text = f"{len(stages)} stages: {len(stored)} stored, {len(stages) - len(stored)} to do."
    return f"{text} The stored stages took {format_seconds(saved)}." if stored else text
