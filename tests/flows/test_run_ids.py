"""Ids of runs and sweeps do not change with the version; earlier runs with other ids are found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import create_model

from flows.planning.plan import plan
from flows.runs.resolve import resolve, resolve_file, stable_run_id
from flows.runs.without_prefect import run_without_prefect
from flows.sweeps.members import resolve_sweep
from flows.sweeps.preregistration import preregister
from ratchet.parameters.base import AGENT_MODELS, SECTIONS, Section, SubParameters
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.preregistration import Preregistration
from ratchet.tracking.sweep_folder import read_own_sweep, write_sweep

TINY = {
    "scenario": "binary_erasure_channel",
    "dataset": "generated",
    "trainer": "vanilla_ppo",
    "rl": {"num_iterations": 1, "frames_per_batch": 16, "num_test_iterations": 1},
    "binary_erasure_channel": {"num_datapoints": 16},
}
ARMS = {"slow": {"rl.lr": 0.001}}
SEEDS = Preregistration(seeds=[0, 1], pairs=["slow vs main"])


class _LaterSection(SubParameters):
    strength: float = 1.0
    added: int | None = None
    switched_on: bool = False


def _add_parameters(monkeypatch):
    """Add optional parameters as a later version would: in a new section and in known ones."""
    for name in ("rl", "ppo"):
        known = SECTIONS[name]
        model = create_model(known.model.__name__, __base__=known.model, added=(int | None, None))
        monkeypatch.setitem(SECTIONS, name, replace(known, model=model))
    agent = AGENT_MODELS["binary_erasure_channel"]
    monkeypatch.setitem(
        AGENT_MODELS,
        "binary_erasure_channel",
        create_model(agent.__name__, __base__=agent, added=(str, "off")),
    )
    monkeypatch.setitem(SECTIONS, "later_section", Section("later_section", _LaterSection))


@pytest.fixture
def settings(tmp_path):
    return ExperimentSettings(
        home=str(tmp_path / "home"), runs=str(tmp_path / "runs"), tracking=False, progress="none"
    )


def _sweep(settings, name=None):
    return resolve_sweep(
        HyperParameters.from_dict(TINY),
        {"seed": [0, 1]},
        settings,
        ARMS,
        name="tiny",
        sweep_name=name,
        preregistered=SEEDS,
    )


def _optuna_id(settings):
    spec = {
        "kind": "optuna",
        "parameters": {"rl.lr": {"kind": "uniform", "low": 0.1, "high": 0.2}},
        "metric": "test/reward",
        "num_trials": 3,
    }
    base = HyperParameters.from_dict(TINY)
    return resolve_sweep(base, spec, settings, ARMS, name="tiny").sweep_id


def test_a_later_version_with_more_parameters_has_the_same_ids(monkeypatch, settings, caplog):
    before, optuna_id = _sweep(settings), _optuna_id(settings)
    run_id = resolve(TINY, settings, ARMS, name="tiny").run_id
    write_sweep(settings.runs, preregister(before.record(before.members), SEEDS, settings.runs))
    _add_parameters(monkeypatch)
    assert HyperParameters.from_dict(TINY).to_dict()["rl"]["added"] is None
    assert resolve(TINY, settings, ARMS, name="tiny").run_id == run_id
    after = _sweep(settings)
    assert after.sweep_id == before.sweep_id
    assert [each.run_id for each in after.members] == [each.run_id for each in before.members]
    assert _optuna_id(settings) == optuna_id
    caplog.clear()
    preregister(after.record(after.members), SEEDS, settings.runs)
    assert not caplog.records, "the preregistration is the same"


def test_switching_an_added_parameter_on_gives_another_id(monkeypatch, settings):
    run_id = resolve(TINY, settings, name="tiny").run_id
    _add_parameters(monkeypatch)
    for changes in (
        {"rl": {**TINY["rl"], "added": 2}},
        {"later_section": {"added": 0}},
        {"agents": {"_default": {"added": "on"}}},
        {"agents": {"prover": {"added": "on"}}},
    ):
        assert resolve(TINY | changes, settings, name="tiny").run_id != run_id


def _with_old_ids(settings):
    """Run an experiment, and give its folder an id as if an earlier version had derived it."""
    resolved = resolve(TINY, settings, ARMS, name="tiny")
    run_without_prefect(TINY, settings, arms=ARMS, name="tiny")
    old = resolved.run_path.with_name("tiny-0123abcd")
    resolved.run_path.rename(old)
    manifest = json.loads((old / "manifest.json").read_bytes())
    del manifest["arms"]["main"]["rl"]["body_lr_factor"]  # as before it existed
    (old / "manifest.json").write_text(json.dumps(manifest | {"run_id": old.name}))
    return old


def test_runs_with_ids_of_an_earlier_version_are_resumed(settings):
    old = _with_old_ids(settings)
    again = resolve(TINY, settings, ARMS, name="tiny")
    assert again.run_id == old.name
    assert all(stage.hit for stage in plan(again))
    assert resolve(TINY, settings, name="tiny").run_id != old.name, "without the arm"
    assert resolve(TINY | {"seed": 1}, settings, ARMS, name="tiny").run_id != old.name
    assert resolve(TINY, settings, ARMS, name="tiny2").run_id != old.name


def test_a_started_sweep_keeps_its_recorded_ids_and_its_preregistration(settings, caplog):
    old = _with_old_ids(settings)
    seed = HyperParameters.from_dict(TINY).seed
    content = Preregistration(seeds=[seed, seed + 1], pairs=["slow vs main"])
    arguments = (HyperParameters.from_dict(TINY), {"seed": [seed, seed + 1]}, settings, ARMS)
    names = {"name": "tiny", "sweep_name": "study"}
    sweep = resolve_sweep(*arguments, **names)
    record = sweep.record(sweep.members)
    members = [
        each.model_copy(update={"run_id": run_id})
        for each, run_id in zip(record.members, (old.name, "tiny-feedbeef"), strict=True)
    ]
    earlier = record.model_copy(update={"members": members})
    write_sweep(settings.runs, earlier)
    resumed = resolve_sweep(*arguments, **names, preregistered=content)
    assert [each.run_id for each in resumed.members] == [old.name, "tiny-feedbeef"]
    digest = content.digest([old.name, "tiny-feedbeef"])
    assert digest == content.digest([each.run_id for each in resumed.members])
    other = (arguments[0].replace({"rl.lr": 0.5}), *arguments[1:])
    changed = resolve_sweep(*other, **names)
    assert not {each.run_id for each in changed.members} & {old.name, "tiny-feedbeef"}
    assert read_own_sweep(sweep.folder) == earlier


@pytest.mark.slow
def test_a_retest_and_a_fork_of_an_earlier_version_are_found(settings, tmp_path):
    from flows.runs.derived_runs import resolve_fork, resolve_retest

    old = _with_old_ids(settings)
    for resolved in (
        resolve_retest(old.name, {}, settings),
        resolve_fork(old.name, 1, {"rl.num_iterations": 2}, settings),
    ):
        resolved.run_path.mkdir()
        if resolved.fork is not None:
            resolved.fork.write(resolved.run_path)
        arms = {arm: params.to_saved_dict() for arm, params in resolved.arms.items()}
        content = {"run_id": resolved.run_id, "name": resolved.name, "arms": arms}
        (resolved.run_path / "manifest.json").write_text(json.dumps(content))
        resolved.run_path.rename(resolved.run_path.with_name(f"{resolved.name}-00000000"))
    assert resolve_retest(old.name, {}, settings).run_id.endswith("-00000000")
    forked = resolve_fork(old.name, 1, {"rl.num_iterations": 2}, settings)
    assert forked.run_id.endswith("-00000000")
    other = resolve_fork(old.name, 0, {"rl.num_iterations": 2}, settings)
    assert not other.run_id.endswith("-00000000")


@pytest.mark.slow
def test_a_run_that_cannot_be_read_is_not_the_run_looked_for(settings):
    old = _with_old_ids(settings)
    manifest = json.loads((old / "manifest.json").read_bytes())
    manifest["arms"]["main"]["rl"]["gone"] = 1
    (old / "manifest.json").write_text(json.dumps(manifest))
    resolved = resolve(TINY, settings, ARMS, name="tiny")
    assert resolved.run_id == stable_run_id("tiny", resolved.arms)


def test_a_file_and_its_parameters_in_python_have_the_same_id(tmp_path, settings):
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps({**TINY, "arms": ARMS}))
    in_python = resolve(TINY, settings, ARMS, name="tiny")
    assert resolve_file(str(file)).run_id == in_python.run_id
