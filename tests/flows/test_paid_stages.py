"""Stages that cost money are not recomputed after a code change without consent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.planning.plan import plan
from flows.runs.changed_defaults import _is_named
from flows.runs.resolve import ResolvedExperiment, resolve, resolve_file, resolve_parameters
from flows.sweeps.members import sweep_members
from ratchet.errors import ChangedCodeError, ChangedDefaultError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.keys import stage_key
from tasks.stages.sequence import StoredStageLayout, flatten_steps

AGENTS = ("prover", "verifier")
PARAMETERS = {
    "scenario": "code_validation",
    "dataset": "generated",
    "trainer": "pure_text_ei",
    "rl": {"num_iterations": 2, "rollouts_per_iteration": 4},
    "code_validation": {"num_train": 4, "num_test": 4},
    "agents": {"_default": {"model_name": "gpt-4o-mini-2024-07-18", "base_url": None}},
}


CUSTOM = {
    "scenario": "graph_isomorphism",
    "dataset": "generated",
    "trainer": {"module_path": "tiny_text_trainer.py", "class_name": "TinyTextTrainer"},
    "pretrain_agents": False,
    "rl": {"num_iterations": 2},
    "graph_isomorphism": {"num_pairs": 20},
}
"""A custom trainer of chat models whose agents' parameters are of networks."""


def experiment(tmp_path, policy="stop", **agent) -> ResolvedExperiment:
    settings = ExperimentSettings(
        home=str(tmp_path / "home"), runs=str(tmp_path / "runs"), paid_code_changes=policy
    )
    parameters = PARAMETERS | {"agents": {"_default": PARAMETERS["agents"]["_default"] | agent}}
    return resolve(parameters, settings)


def store_first_stages(found: ResolvedExperiment, module: str = "") -> None:
    """Store data, initial state and rollouts, as if computed with a different module."""
    (keys,) = found.keys
    for call in flatten_steps(keys.stages(StoredStageLayout(found.store, found.settings))):
        modules = dict(call.fingerprint.modules)
        if module in modules:
            modules[module] = "0" * 64
        code = Fingerprint.from_modules(modules)
        content = (call.stage, call.iteration, call.parameters, call.inputs)
        key = stage_key(*content, code.digest)
        if found.store.peek(key) is not None:
            continue
        with found.store.claim(key) as claim:
            sizes = {"num_datapoints/train": 4.0, "num_datapoints/test": 4.0}
            manifest = claim.commit(
                stage=call.stage,
                iteration=call.iteration,
                parameters=call.parameters,
                inputs=call.inputs,
                fingerprint=code,
                metrics=[{"iteration": 0, "values": sizes}],
            )
        keys.pin(call, manifest.key)
        if call.stage == "sample_rollouts":
            return


MODULE = "ratchet.scenarios.pure_text.rollout"
"""Module in the code of the rollouts, but not of the data."""


TEXT_TASKS = "tasks.text.stages"
"""Module in the code of the initial state and the rollouts."""


@pytest.fixture(autouse=True)
def _with_a_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")


def states(found: ResolvedExperiment) -> dict[str, str]:
    return {stage.stage: stage.reason for stage in plan(found)[:3] if stage.hit}


def test_a_run_stops_before_paying_again_and_reports_modules_and_costs(tmp_path):
    store_first_stages(experiment(tmp_path), MODULE)
    with pytest.raises(ChangedCodeError) as caught:
        experiment(tmp_path).check_stored_stages()
    text = str(caught.value)
    assert text.startswith("1 stages that cost money (sample_rollouts) are stored")
    assert f"{MODULE} changed" in text
    assert "--keep" in text
    assert "--recompute-paid" in text
    cost = float(text.partition("cost up to ")[2].partition(". Keep")[0])
    planned = next(s for s in plan(experiment(tmp_path)) if s.stage == "sample_rollouts")
    assert cost == pytest.approx(planned.estimate.cost, abs=0.005)


def test_kept_stages_are_cache_hits_with_all_their_inputs(tmp_path):
    store_first_stages(experiment(tmp_path), MODULE)
    keeping = experiment(tmp_path, "keep")
    keeping.check_stored_stages()
    kept = "kept from an earlier run"
    assert states(keeping) == {
        "build_scenario": "stored",
        "initial_state": kept,
        "sample_rollouts": kept,
    }


def test_stages_are_recomputed_on_request(tmp_path):
    store_first_stages(experiment(tmp_path), MODULE)
    again = experiment(tmp_path, "recompute")
    again.check_stored_stages()
    assert states(again) == {"build_scenario": "stored"}


def test_free_and_unchanged_stages_do_not_stop_a_run(tmp_path):
    experiment(tmp_path).check_stored_stages()
    store_first_stages(experiment(tmp_path))
    experiment(tmp_path).check_stored_stages()
    free = experiment(tmp_path / "free", use_dummy_api=True)
    store_first_stages(free, MODULE)
    experiment(tmp_path / "free", use_dummy_api=True).check_stored_stages()


def test_unknown_costs_of_a_custom_trainer_stop_a_run_only_before_stages_that_call_models(tmp_path):
    def custom() -> ResolvedExperiment:
        settings = {"home": str(tmp_path / "home"), "runs": str(tmp_path / "runs")}
        folder = str(Path(__file__).parent)
        return resolve(CUSTOM, ExperimentSettings(**settings, base_dir=folder))

    custom().check_stored_stages()
    store_first_stages(custom(), TEXT_TASKS)
    with pytest.raises(ChangedCodeError) as caught:
        custom().check_stored_stages()
    assert "1 stages that cost money (sample_rollouts)" in str(caught.value)
    assert "without a price" in str(caught.value)


FIELD = "num_invalid_generation_retries"
PATH = f"agents._default.{FIELD}"


def with_old_default(tmp_path) -> None:
    """Store stages as of before the default of retries changed, with other code."""
    store_first_stages(experiment(tmp_path, **{FIELD: 20}), MODULE)


def test_a_run_stops_before_paying_for_a_changed_default(tmp_path):
    with_old_default(tmp_path)
    for policy in ("stop", "keep"):
        with pytest.raises(ChangedDefaultError) as caught:
            experiment(tmp_path, policy).check_stored_stages()
        assert str(caught.value) == (
            f"the default of {PATH} changed from 20 to 3 in 0.1.0: set {PATH}=20 to keep 1 stored"
            " stages that cost money (0 calls), or pass --recompute-paid"
            " (settings.paid_code_changes=recompute)."
        )
    experiment(tmp_path, "recompute").check_stored_stages()
    kept = experiment(tmp_path, "keep", **{FIELD: 20})
    kept.check_stored_stages()
    assert "sample_rollouts" in states(kept)


def test_a_value_that_the_user_names_is_no_default(tmp_path):
    with_old_default(tmp_path)
    experiment(tmp_path, **{FIELD: 3}).check_stored_stages()
    experiment(tmp_path, **{FIELD: 4}).check_stored_stages()
    file = tmp_path / "experiment.yaml"
    settings = {"home": str(tmp_path / "home"), "runs": str(tmp_path / "runs")}
    file.write_text(json.dumps({**PARAMETERS, "settings": settings}))
    with pytest.raises(ChangedDefaultError):
        resolve_file(str(file)).check_stored_stages()
    resolve_file(str(file), [f"{PATH}=3"]).check_stored_stages()
    named = {"arms": {"other": {"seed": 1}}, "settings": settings}
    file.write_text(json.dumps(PARAMETERS | named))
    with pytest.raises(ChangedDefaultError):
        resolve_file(str(file)).check_stored_stages()
    resolve_file(str(file), [f"agents.{name}.{FIELD}=3" for name in AGENTS]).check_stored_stages()


def test_complete_parameters_count_as_not_named(tmp_path):
    """A form of Prefect sends every value."""
    with_old_default(tmp_path)
    parameters = experiment(tmp_path).flow_parameters()
    with pytest.raises(ChangedDefaultError):
        resolve_parameters(**parameters).check_stored_stages()
    members = {"name": "experiment", "settings": experiment(tmp_path).settings}
    base = HyperParameters.from_dict(PARAMETERS)
    (member,) = sweep_members(base, [{"seed": base.seed}], None, **members)
    with pytest.raises(ChangedDefaultError):
        member.experiment.check_stored_stages()
    (member,) = sweep_members(base, [{PATH: 3}], None, **members)
    member.experiment.check_stored_stages()


def test_stages_with_the_current_default_do_not_stop_a_run(tmp_path):
    with_old_default(tmp_path)
    store_first_stages(experiment(tmp_path))
    experiment(tmp_path).check_stored_stages()


@pytest.mark.parametrize(
    ("phases", "is_named"),
    [
        ([{"name": "a", "changes": {PATH: 3}}], True),
        ({"a": {"changes": {"agents": {"_default": {FIELD: 3}}}}}, True),
        ([{"name": "a", "changes": {"rl.lr": 1}}, {"name": "b"}], False),
        ({"a": {"num_iterations": 2}}, False),
        (None, False),
    ],
)
def test_changes_of_phases_name_values(phases, is_named):
    assert _is_named({"phases": phases}, f"agents.prover.{FIELD}") == is_named
    assert _is_named({"agents": {"prover": {FIELD: 3}}, "phases": phases}, f"agents.prover.{FIELD}")
