"""Planned stages are the executed ones, for every shipped experiment, with empty stages.

The flow, the plan, the store and the run folder are real.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from flows.planning.plan import plan, remaining_steps
from flows.runs.resolve import resolve_file, resolve_run
from ratchet.experiment_files.loading import load_experiment
from ratchet.scenarios.registry import build_scenario
from ratchet.store.manifest import IterationMetrics
from ratchet.tracking.run_folder import RunFolder
from tasks import build_scenario as data_stages
from tasks.language import stages as language_stages
from tasks.stages.decorator import Stage, make_stage
from tasks.stages.files import DATASETS_FILE, DATASETS_FOLDER, STATE_FOLDER
from tasks.tensordict import stages as network_stages
from tasks.tensordict.stages import HISTORY_FILE
from tasks.text import stages as text_stages

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SLOW = (
    *("cartpole_dqn", "cartpole_ppo", "library_ppo", "pendulum_sac", "text_malt", "text_demo"),
    *("graph_isomorphism_help", "graph_isomorphism_help_variants", "binary_erasure_channel_proof"),
    *("code_validation_token_grpo", "code_validation_credit", "debaters"),
)
SHIPPED = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
    for path in sorted(EXPERIMENTS.glob("*.yaml"))
]
WITHOUT_ITERATIONS = ("self_proving_sum_check",)
"""Experiments whose agents learn before the first iteration only."""
NEEDS_A_RUN = {"binary_erasure_channel_attack": "binary_erasure_channel"}


def pretend(call, folder, session):
    """Write only the files that the flow and the recorder read."""
    if call.stage == "build_scenario":
        names = ["train", *session.keys.scenario.test_sets(session.keys.hyper_params)]
        for name in names:
            (folder / DATASETS_FOLDER / name).mkdir(parents=True)
            (folder / DATASETS_FOLDER / name / "data").write_text(name)
        (folder / DATASETS_FILE).write_text(json.dumps(dict.fromkeys(names, "")))
        return [
            IterationMetrics(
                iteration=0, values={f"num_datapoints/{name}": 400.0 for name in names}
            )
        ]
    (folder / HISTORY_FILE).write_text("[]")
    (folder / STATE_FOLDER).mkdir()
    (folder / STATE_FOLDER / "state").write_text(call.label)
    return []


@pytest.fixture
def executed(monkeypatch):
    """Return the stages that the flow requests, in order, without Prefect tasks."""
    calls = []

    async def ask(stage, call, session, force):
        calls.append(call)
        return make_stage(stage, call, session, force=force)

    async def save(*_):
        pass

    monkeypatch.setattr("flows.experiment_flow.execute_as_task", ask)
    for module in (data_stages, network_stages, text_stages, language_stages):
        for stage in vars(module).values():
            if isinstance(stage, Stage):
                monkeypatch.setattr(stage, "work", pretend)
    monkeypatch.setattr("flows.experiment_flow.save_as_task", save)
    return calls


def resolve(path, folder, *overrides):
    places = [f"settings.home={folder}/home", f"settings.runs={folder}/runs"]
    return resolve_file(str(path), [*places, "settings.tracking=false", *overrides])


def with_few_arms(experiment):
    """Keep at most ten arms, evenly spread; arms of a study with many differ little."""
    names = list(experiment.arms)[:: 1 + len(experiment.arms) // 10]
    return replace(experiment, arms={name: experiment.arms[name] for name in names})


def play(experiment):
    from flows.experiment_flow import experiment as flow

    return asyncio.run(flow.fn(**experiment.flow_parameters()))


def places(stages):
    return [(each.arm, each.stage, each.iteration, each.start, each.key) for each in stages]


def asked(calls):
    return [(c.arm, c.name, c.iteration, c.start_iteration, c.key) for c in calls]


@pytest.mark.slow
@pytest.mark.in_turn(4)
@pytest.mark.parametrize("path", SHIPPED)
def test_the_planned_stages_of_a_shipped_experiment_are_the_executed_ones(path, tmp_path, executed):
    overrides = []
    if path.stem in NEEDS_A_RUN:
        base = resolve(path.with_stem(NEEDS_A_RUN[path.stem]), tmp_path)
        play(base)
        executed.clear()
        overrides = [f"agents.verifier.checkpoint_run_id={base.run_id}"]
    experiment = with_few_arms(resolve(path, tmp_path, *overrides))
    planned = plan(experiment)
    assert (remaining_steps(experiment).total() > 0) == (path.stem not in WITHOUT_ITERATIONS)
    result = play(experiment)
    found = asked(executed)
    assert sorted(found) == sorted(places(planned))
    done, keys = set(), {each.key for each in planned}
    for call in executed:
        assert keys & set(call.inputs.values()) <= done, "an input is computed later"
        done.add(call.key)
    if not any(call.stage == "sample_rollouts" for call in executed):
        assert found == places(planned), "without overlapped stages, the order is that of the plan"
    recorded = RunFolder(result["folder"]).manifest.stages
    assert {(r.arm, r.stage, r.iteration, r.start_iteration, r.key) for r in recorded} == set(found)

    executed.clear()
    again = resolve_run(result["run_id"], None, str(Path(result["folder"]).parent))
    assert all(stage.hit for stage in plan(again))
    assert remaining_steps(again).total() == 0
    assert play(again)["computed"] == 0
    assert asked(executed) == found or sorted(asked(executed)) == sorted(found)


SMALL = {
    "binary_erasure_channel": ["binary_erasure_channel.num_datapoints=60"],
    "cartpole": [],
    "demo": [
        "graph_isomorphism.num_pairs=40",
        "graph_isomorphism.extra_test_sets.wl2.num_pairs=20",
    ],
    "digits": [],
    "text_demo": ["code_validation.num_train=4", "code_validation.num_test=4"],
}


@pytest.mark.parametrize("name", SMALL)
def test_a_scenario_declares_its_test_sets(name):
    hyper_params = load_experiment(EXPERIMENTS / f"{name}.yaml", SMALL[name]).hyper_params
    scenario = build_scenario(hyper_params.scenario)
    made = scenario.build_datasets(hyper_params)
    assert {"train", *scenario.test_sets(hyper_params)} == set(made)
