"""Flows of deployments: run the values of a form like the command line would.

A retried flow run resumes where the failed one stopped. Fields left empty use the values of the
experiment file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from prefect import flow
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError, concurrency

from flows import forms
from flows.experiment_flow import run_resolved
from flows.forms import LEFT_OUT, Form, describe, given, name_flow_run, tags_of
from flows.process.environment import log_to_prefect
from flows.process.flow_runs import record_location
from flows.process.heartbeats import END_HOOKS
from flows.process.messages import outlive_reader
from flows.runs.derived_runs import resolve_retest
from flows.runs.resolve import resolve_file
from flows.sweep_flow import run_members
from flows.sweeps.members import read_sweep_file, resolve_file_sweep
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import parse_overrides
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_folder import find_run

if TYPE_CHECKING:
    from flows.runs.resolve import ResolvedExperiment
    from flows.sweeps.members import ResolvedSweep
    from ratchet.analysis.results import AnalysisSummary

_Object: TypeAlias = dict[str, Any] | None
_Texts: TypeAlias = list[str] | None

_FILE = "Experiment file (YAML), relative to the folder where the deployment was registered."
_LIMIT = "A concurrency limit of the server (see Concurrency) in which the run occupies a slot."
_File = Annotated[str, Form(_FILE, forms.experiment_files)]
_Iterations = Annotated[
    int | None, Form("Number of training iterations: rl.num_iterations.", forms.integer(1))
]
_Budget = Annotated[
    float | None,
    Form(
        "Maximum cost of chat models, in the currency of the prices; the run stops there.",
        forms.amount,
    ),
]
_Hidden = Annotated[_Object, Form("Submitted by the form of one file.", None)]
_Overrides = Annotated[
    _Texts,
    Form("a.b=value, as on the command line; these override all other fields.", forms.assignments),
]
_Limit = Annotated[str | None, Form(_LIMIT, forms.text)]
_SEEDS = forms.list_of(forms.integer(0))
_PROTOCOLS = forms.list_of(forms.protocols)
_TRAINERS = forms.list_of(forms.trainers)
_ANALYSERS = forms.list_of(forms.analysers)
_VARIES = "Other values to try, a.b=VALUES, as in rl.lr=0.1,0.01 or seed=0..4."
_ROUNDS = "Rounds of each test: rl.num_test_iterations."
_SERVICE = 'URL of the model\'s service, or "embedded" (default: OpenAI).'
_KEY = "Environment variable that contains its API key, or prefect-secret:BLOCK."
_Run = Annotated[str, Form("Id of the run, or a prefix of it.", forms.runs)]


@flow(name="experiment-from-file", persist_result=False, validate_parameters=False, **END_HOOKS)
async def experiment_from_file(
    file: _File,
    seed: Annotated[int | None, Form("The seed.", forms.integer(0))] = LEFT_OUT,
    protocol: Annotated[str | None, Form("The interaction protocol.", forms.protocols)] = LEFT_OUT,
    trainer: Annotated[str | None, Form("The trainer.", forms.trainers)] = LEFT_OUT,
    iterations: _Iterations = LEFT_OUT,
    budget: _Budget = LEFT_OUT,
    sections: _Hidden = LEFT_OUT,
    settings: _Hidden = LEFT_OUT,
    overrides: _Overrides = LEFT_OUT,
    limit: _Limit = LEFT_OUT,
) -> dict[str, Any]:
    """Run or resume an experiment file; empty fields use the file's values."""
    top = {
        "seed": seed,
        "interaction_protocol": protocol,
        "trainer": trainer,
        forms.ITERATIONS: iterations,
        forms.BUDGET: budget,
    }
    chosen = forms.overrides(top, sections, settings, overrides)
    experiment = await asyncio.to_thread(resolve_file, file, chosen)
    await name_flow_run(
        describe(file, forms.overrides(top, sections, None, overrides)),
        tags_of(experiment.name, experiment.arms[MAIN_ARM]),
    )
    async with _prepared(limit):
        return await run_resolved(experiment)


@flow(name="sweep-from-file", persist_result=False, validate_parameters=False, **END_HOOKS)
async def sweep_from_file(
    file: _File,
    seeds: Annotated[list[int] | None, Form("Seeds to try.", _SEEDS)] = LEFT_OUT,
    protocols: Annotated[_Texts, Form("Protocols to try.", _PROTOCOLS)] = LEFT_OUT,
    trainers: Annotated[_Texts, Form("Trainers to try.", _TRAINERS)] = LEFT_OUT,
    varies: Annotated[_Texts, Form(_VARIES, forms.assignments)] = LEFT_OUT,
    parallel: Annotated[int, Form("Number of concurrent members.", forms.integer(1))] = 1,
    name: Annotated[str | None, Form("Name of the sweep.", forms.text)] = LEFT_OUT,
    iterations: _Iterations = LEFT_OUT,
    budget: _Budget = LEFT_OUT,
    sections: _Hidden = LEFT_OUT,
    settings: _Hidden = LEFT_OUT,
    overrides: _Overrides = LEFT_OUT,
    limit: _Limit = LEFT_OUT,
) -> list[dict[str, Any]]:
    """Run the members of a sweep; empty fields use the file's values and its section `sweep`."""
    grid = [
        *forms.values("seed", seeds),
        *forms.values("interaction_protocol", protocols),
        *forms.values("trainer", trainers),
        *given(varies, ()),
    ]
    top = {forms.ITERATIONS: iterations, forms.BUDGET: budget}
    chosen = forms.overrides(top, sections, settings, overrides)
    resolved = await asyncio.to_thread(_resolve_sweep, file, grid, chosen, given(name, None))
    await name_flow_run(
        describe(file, [*grid, *forms.overrides(top, sections, None, overrides)], "sweep"),
        tags_of(resolved.name, resolved.base, f"sweep:{resolved.sweep_id}"),
    )
    async with _prepared(limit):
        return await run_members(resolved, parallel)


@flow(name="retest", persist_result=False, validate_parameters=False, **END_HOOKS)
async def retest(
    run: _Run,
    rounds: Annotated[int | None, Form(_ROUNDS, forms.integer(1))] = LEFT_OUT,
    settings: _Hidden = LEFT_OUT,
    overrides: _Overrides = LEFT_OUT,
    limit: _Limit = LEFT_OUT,
) -> dict[str, Any]:
    """Test a run's saved states again, as a new run without training."""
    top = {"rl.num_test_iterations": rounds}
    changes = forms.overrides(top, settings=settings, others=overrides)
    experiment = await asyncio.to_thread(_resolve_retest, run, parse_overrides(changes))
    await name_flow_run(
        describe(run, changes, "retest"),
        tags_of(experiment.name, experiment.arms[MAIN_ARM], f"retest-of:{run}"),
    )
    async with _prepared(limit):
        return await run_resolved(experiment)


@flow(name="analysis", persist_result=False, validate_parameters=False, **END_HOOKS)
async def analysis(
    run: _Run,
    model: Annotated[str, Form("The model that judges.", forms.text)],
    analysers: Annotated[_Texts, Form("The analysers (default: all).", _ANALYSERS)] = LEFT_OUT,
    base_url: Annotated[str | None, Form(_SERVICE, forms.text)] = LEFT_OUT,
    api_key_name: Annotated[str | None, Form(_KEY, forms.text)] = LEFT_OUT,
    dry_run: Annotated[bool, Form("Only count calls and cost.", forms.yes_or_no)] = False,
    overwrite: Annotated[
        bool, Form("Judge messages again that have a verdict.", forms.yes_or_no)
    ] = False,
    limit: _Limit = LEFT_OUT,
) -> dict[str, Any]:
    """Judge each message of a run by a chat model; existing verdicts are reused."""
    await name_flow_run(describe(run, [model], "analysis"), [f"analysis-of:{run}"])
    async with _prepared(limit):
        summary = await asyncio.to_thread(
            _analyse, run, model, analysers, (base_url, api_key_name), (dry_run, overwrite)
        )
    return asdict(summary)


@asynccontextmanager
async def _prepared(limit: str | None) -> AsyncIterator[None]:
    """Log to Prefect, record the location, and occupy a slot of a limit within the context."""
    outlive_reader()
    log_to_prefect()
    await record_location()
    async with AsyncExitStack() as slots:
        if name := given(limit, ""):
            try:
                await slots.enter_async_context(concurrency(name, strict=True))
            except ConcurrencySlotAcquisitionError as error:
                raise ParameterError(
                    f"limit: got {limit!r}, expected a concurrency limit of the server ({error})."
                    " Create it in the UI (Concurrency), or with"
                    f" `prefect gcl create {limit} --limit 1`."
                ) from error
        yield


def _resolve_sweep(
    file: str, grid: Sequence[str], overrides: Sequence[str], name: str | None
) -> ResolvedSweep:
    experiment, spec, _ = read_sweep_file(file, grid, overrides)
    return resolve_file_sweep(experiment, spec, name)


def _resolve_retest(run: str, changes: dict[str, Any]) -> ResolvedExperiment:
    earlier = find_run(ExperimentSettings().runs, run).manifest.settings
    of_settings = [path for path in changes if path.startswith("settings.")]
    other = {path.removeprefix("settings."): changes.pop(path) for path in of_settings}
    return resolve_retest(run, changes, ExperimentSettings.from_dict({**earlier, **other}))


def _analyse(
    run: str,
    model: str,
    analysers: list[str] | None,
    service: tuple[str | None, str | None],
    ways: tuple[bool, bool],
) -> AnalysisSummary:
    from flows.runs.language_services import embedded_service, find_key
    from ratchet.analysis.base import analyser_names
    from ratchet.analysis.llm_judge import AnalysisModel
    from ratchet.analysis.run import analyse_run
    from ratchet.language_models.endpoints import Endpoint

    folder = find_run(ExperimentSettings().runs, run)
    endpoint = Endpoint(base_url=given(service[0], None), api_key_name=given(service[1], None))
    dry_run, overwrite = ways
    if not dry_run:
        find_key(endpoint.api_key_name)
    serves = endpoint.is_embedded and not dry_run
    with embedded_service(folder.home) if serves else nullcontext():
        return analyse_run(
            folder.path,
            given(analysers, []) or analyser_names(),
            model=AnalysisModel(model, endpoint),
            dry_run=dry_run,
            overwrite=overwrite,
        )
