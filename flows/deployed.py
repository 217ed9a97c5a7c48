"""The flows of deployments: what a form asks for is run as the command line would.

Each goes on under a worker: a flow run that is retried goes on where the failed one stopped. What
is left empty in a form is as in the experiment file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from prefect import flow
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError, concurrency

from flows.experiment_flow import play_experiment
from flows.forms import changes as sent
from flows.forms import fields, sections
from flows.forms.changes import LEFT_OUT, given
from flows.forms.fields import Form
from flows.forms.naming import describe, name_flow_run, tags_of
from flows.process.environment import log_to_prefect
from flows.runs.resolving import resolve_file
from flows.runs.retesting import resolve_retest
from flows.sweep_flow import play_sweep
from flows.sweeps.files import read_sweep_file
from flows.sweeps.members import resolve_sweep
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import parse_overrides
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_folder import find_run

if TYPE_CHECKING:
    from flows.runs.resolving import ResolvedExperiment
    from flows.sweeps.members import ResolvedSweep
    from ratchet.analysis.summary import AnalysisSummary

_Object: TypeAlias = dict[str, Any] | None
_Texts: TypeAlias = list[str] | None

_FILE = "The experiment: a YAML file, from the folder in which the deployment was registered."
_PLACES = "Where and how it runs; changes no result."
_LIMIT = "A concurrency limit of the server (see Concurrency) of which the run holds a slot."
_File = Annotated[str, Form(_FILE, fields.experiment_files)]
_Iterations = Annotated[
    int | None, Form("How many iterations are trained: rl.num_iterations.", fields.integer(1))
]
_Budget = Annotated[
    float | None,
    Form("What chat models may cost, in the prices' currency: it stops there.", fields.amount),
]
_Sections = Annotated[_Object, Form("Any other parameter, by section.", sections.sections)]
_Agents = Annotated[
    _Object,
    Form('Agents by name, as in {"prover": {"d_gnn": 8}}; _default: all.', fields.any_object),
]
_Settings = Annotated[_Object, Form(_PLACES, sections.settings)]
_Overrides = Annotated[
    _Texts, Form("a.b=value, as on the command line; these count most.", fields.assignments)
]
_Limit = Annotated[str | None, Form(_LIMIT, fields.text)]
_SEEDS = fields.list_of(fields.integer(0))
_PROTOCOLS = fields.list_of(fields.protocols)
_TRAINERS = fields.list_of(fields.trainers)
_ANALYSERS = fields.list_of(fields.analysers)
_VARIES = "Other values to try, a.b=VALUES, as in rl.lr=0.1,0.01 or seed=0..4."
_ROUNDS = "How often each test is played: rl.num_test_iterations."
_SERVICE = 'The model\'s service, or "embedded"; OpenAI when left empty.'
_KEY = "The environment variable that holds its key, or prefect-secret:BLOCK."
_Run = Annotated[str, Form("The run: its id, or the beginning of it.", fields.runs)]


@flow(name="experiment-from-file", persist_result=False, validate_parameters=False)
async def experiment_from_file(
    file: _File,
    seed: Annotated[int | None, Form("The seed.", fields.integer(0))] = LEFT_OUT,
    protocol: Annotated[str | None, Form("Who speaks when.", fields.protocols)] = LEFT_OUT,
    trainer: Annotated[str | None, Form("How it learns.", fields.trainers)] = LEFT_OUT,
    iterations: _Iterations = LEFT_OUT,
    budget: _Budget = LEFT_OUT,
    sections: _Sections = LEFT_OUT,
    agents: _Agents = LEFT_OUT,
    settings: _Settings = LEFT_OUT,
    overrides: _Overrides = LEFT_OUT,
    limit: _Limit = LEFT_OUT,
) -> dict[str, Any]:
    """Run an experiment file from wherever it stands; what is left empty is as in the file."""
    top = {
        "seed": seed,
        "interaction_protocol": protocol,
        "trainer": trainer,
        sent.ITERATIONS: iterations,
        sent.BUDGET: budget,
    }
    chosen = sent.overrides(top, sections, settings, agents, overrides)
    experiment = await asyncio.to_thread(resolve_file, file, chosen)
    await name_flow_run(
        describe(file, sent.overrides(top, sections, None, agents, overrides)),
        tags_of(experiment.name, experiment.arms[MAIN_ARM]),
    )
    async with _prepared(limit):
        return await play_experiment(experiment)


@flow(name="sweep-from-file", persist_result=False, validate_parameters=False)
async def sweep_from_file(
    file: _File,
    seeds: Annotated[list[int] | None, Form("Seeds to try.", _SEEDS)] = LEFT_OUT,
    protocols: Annotated[_Texts, Form("Protocols to try.", _PROTOCOLS)] = LEFT_OUT,
    trainers: Annotated[_Texts, Form("Trainers to try.", _TRAINERS)] = LEFT_OUT,
    varies: Annotated[_Texts, Form(_VARIES, fields.assignments)] = LEFT_OUT,
    parallel: Annotated[int, Form("How many members run at a time.", fields.integer(1))] = 1,
    name: Annotated[str | None, Form("The sweep's own name.", fields.text)] = LEFT_OUT,
    iterations: _Iterations = LEFT_OUT,
    budget: _Budget = LEFT_OUT,
    sections: _Sections = LEFT_OUT,
    agents: _Agents = LEFT_OUT,
    settings: _Settings = LEFT_OUT,
    overrides: _Overrides = LEFT_OUT,
    limit: _Limit = LEFT_OUT,
) -> list[dict[str, Any]]:
    """Run the members of a sweep; what is left empty is as in the file, and its section `sweep`."""
    grid = [
        *sent.values("seed", seeds),
        *sent.values("interaction_protocol", protocols),
        *sent.values("trainer", trainers),
        *given(varies, ()),
    ]
    top = {sent.ITERATIONS: iterations, sent.BUDGET: budget}
    chosen = sent.overrides(top, sections, settings, agents, overrides)
    resolved = await asyncio.to_thread(_resolve_sweep, file, grid, chosen, given(name, None))
    await name_flow_run(
        describe(file, [*grid, *sent.overrides(top, sections, None, agents, overrides)], "sweep"),
        tags_of(resolved.name, resolved.base, f"sweep:{resolved.sweep_id}"),
    )
    async with _prepared(limit):
        return await play_sweep(resolved, parallel)


@flow(name="retest", persist_result=False, validate_parameters=False)
async def retest(
    run: _Run,
    rounds: Annotated[int | None, Form(_ROUNDS, fields.integer(1))] = LEFT_OUT,
    settings: _Settings = LEFT_OUT,
    overrides: _Overrides = LEFT_OUT,
    limit: _Limit = LEFT_OUT,
) -> dict[str, Any]:
    """Test a run's saved states again: a new run that trains nothing."""
    top = {"rl.num_test_iterations": rounds}
    experiment = await asyncio.to_thread(
        _resolve_retest, run, sent.overrides(top, others=overrides), settings
    )
    await name_flow_run(
        describe(run, sent.overrides(top, others=overrides), "retest"),
        tags_of(experiment.name, experiment.arms[MAIN_ARM], f"retest-of:{run}"),
    )
    async with _prepared(limit):
        return await play_experiment(experiment)


@flow(name="analysis", persist_result=False, validate_parameters=False)
async def analysis(
    run: _Run,
    model: Annotated[str, Form("The model that judges.", fields.text)],
    analysers: Annotated[_Texts, Form("Who judges; all if none.", _ANALYSERS)] = LEFT_OUT,
    base_url: Annotated[str | None, Form(_SERVICE, fields.text)] = LEFT_OUT,
    api_key_name: Annotated[str | None, Form(_KEY, fields.text)] = LEFT_OUT,
    dry_run: Annotated[bool, Form("Only count calls and cost.", fields.yes_or_no)] = False,
    overwrite: Annotated[bool, Form("Judge anew what has a verdict.", fields.yes_or_no)] = False,
    limit: _Limit = LEFT_OUT,
) -> dict[str, Any]:
    """Let a chat model judge each message of a run; what has a verdict keeps it."""
    await name_flow_run(describe(run, [model], "analysis"), [f"analysis-of:{run}"])
    async with _prepared(limit):
        summary = await asyncio.to_thread(
            _analyse, run, model, analysers, (base_url, api_key_name), (dry_run, overwrite)
        )
    return asdict(summary)


@asynccontextmanager
async def _prepared(limit: str | None) -> AsyncIterator[None]:
    """Log to Prefect, and hold a slot of a concurrency limit meanwhile.

    Raises
    ------
    ParameterError
        If the server has no such limit: a run that was to wait for others would not.
    """
    log_to_prefect()
    async with AsyncExitStack() as held:
        if name := given(limit, ""):
            try:
                await held.enter_async_context(concurrency(name, strict=True))
            except ConcurrencySlotAcquisitionError as error:
                raise ParameterError(
                    f"limit: got {limit!r}, expected a concurrency limit of the server ({error})."
                    " Make one in the UI (Concurrency), or with"
                    f" `prefect gcl create {limit} --limit 1`."
                ) from error
        yield


def _resolve_sweep(
    file: str, grid: Sequence[str], overrides: Sequence[str], name: str | None
) -> ResolvedSweep:
    experiment, spec, settings = read_sweep_file(file, grid, overrides)
    return resolve_sweep(
        experiment.hyper_params,
        spec,
        settings,
        experiment.arm_changes,
        name=experiment.name,
        sweep_name=name,
    )


def _resolve_retest(
    run: str, overrides: Sequence[str], settings: dict[str, Any] | None
) -> ResolvedExperiment:
    earlier = find_run(ExperimentSettings().runs, run).manifest.settings
    other = {name: value for name, value in given(settings, {}).items() if value is not None}
    chosen = ExperimentSettings.from_dict({**earlier, **other})
    return resolve_retest(run, parse_overrides(overrides), chosen)


def _analyse(
    run: str,
    model: str,
    analysers: list[str] | None,
    service: tuple[str | None, str | None],
    ways: tuple[bool, bool],
) -> AnalysisSummary:
    from flows.runs.language_services import embedded_service, find_key
    from ratchet.analysis.judging import AnalysisModel
    from ratchet.analysis.registry import analyser_names
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
