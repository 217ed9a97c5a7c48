"""Imitation as a stage: caching, recomputation after a kill, forks, verification."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import fork_experiment, run_experiment
from flows.planning.plan import plan_experiment
from flows.runs.verify import verify_run
from ratchet.errors import ParameterError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.reports.report import build_report
from ratchet.tracking.run_folder import RunFolder

SMALL = {"num_gnn_layers": 1, "num_transformer_layers": 1, "d_gin_mlp": 8}
IMITATING = ("imitate-prover", "imitated_state")


@pytest.fixture
def given(lab):
    return lab.hyper_params(
        trainer="vanilla_ppo",
        pretrain_agents=False,
        agents={"_default": SMALL},
        nip_protocol={"max_message_rounds": 3, "min_message_rounds": 3},
        rl={"num_iterations": 2, "frames_per_batch": 96, "num_normalization_steps": 96},
        imitation={"agents": ["prover"], "num_iterations": 4, "minibatch_size": 16},
    )


def settings_of(lab, **changes):
    changes = {"iterations_per_task": 1, **changes}
    return ExperimentSettings.from_dict(lab.settings(**changes))


def states(hyper_params, settings):
    """Return whether each planned stage is a cache hit, by name and iteration."""
    plan = plan_experiment(hyper_params, settings)
    return {(stage.stage, stage.iteration): stage.hit for stage in plan}


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.slow
def test_a_run_killed_during_imitation_gives_the_same_result(lab, given):
    pieces = lab.settings(iterations_per_task=1)
    lab.kill("stage=imitate;within=0.5;seed=3", given, pieces)
    lab.kill("stage=imitated_state", given, pieces)
    resumed = lab.run(given, pieces)
    elsewhere = {"home": str(lab.folder / "home2"), "runs": str(lab.folder / "runs2")}
    whole = run_experiment(given, settings_of(lab, **elsewhere, iterations_per_task=2), name="tiny")
    assert resumed["states"] == whole.states
    state = lab.folder / "home2" / "store" / "stages" / whole.states["main"]
    assert lab.weights(resumed) == lab.hashes(state)
    points = [
        [(p.stage, p.iteration, p.values) for p in RunFolder(Path(folder)).read_metrics()]
        for folder in (resumed["folder"], whole.folder)
    ]
    assert sorted(points[0], key=str) == sorted(points[1], key=str)
    imitated = [values for stage, _, values in points[0] if stage == "imitate-prover"]
    assert len(imitated) == 4
    assert "prover.test_correct_actions" in imitated[-1]


@pytest.mark.slow
def test_plans_forks_and_verification_support_the_stage(lab, given):
    settings = settings_of(lab)
    first = run_experiment(given, settings, name="tiny")
    assert all(states(given, settings).values())
    slower = {**given, "rl": {**given["rl"], "lr": 0.001}}
    found = states(slower, settings)
    assert all(found[name, 0] for name in IMITATING)
    assert not found["train", 1]
    other = {**given, "imitation": {**given["imitation"], "lr": 0.001}}
    found = states(other, settings)
    assert found["initial_state", 0]
    assert not any(found[name, 0] for name in IMITATING)
    fork = fork_experiment(first.run_id, 1, {"rl.lr": 0.001}, settings)
    assert fork.cached >= 5, "data, initial state, two stages of imitation, first iteration"
    for stage in IMITATING:
        assert verify_run(first.run_id, settings, stage=stage).remade.differences == ()
    assert "correct actions" in build_report(RunFolder(Path(first.folder))).read_text()


@pytest.mark.slow
def test_rollouts_of_a_run_can_be_imitated(lab, given):
    model = {**given, "imitation": {}}
    source = f"run:{run_experiment(model, settings_of(lab), name='model').run_id}"
    pupil = {**given, "seed": 7, "graph_isomorphism": {"num_pairs": 40, "dataset_seed": 6198}}
    pupil["imitation"] = {**given["imitation"], "source": source}
    with pytest.raises(ParameterError, match="has no rollouts in the store"):
        run_experiment(pupil, settings_of(lab), name="pupil")
    run_experiment(model, settings_of(lab, rollout_sample_period=1), name="model")
    result = run_experiment(pupil, settings_of(lab), name="pupil")
    stages = [record.stage for record in RunFolder(Path(result.folder)).manifest.stages]
    assert [name for name in stages if name in IMITATING] == list(IMITATING)
    remade = verify_run(result.run_id, settings_of(lab), stage="imitate-prover").remade
    assert remade.differences == ()
