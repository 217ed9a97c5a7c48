"""Execution of phases: learners, frozen agents, and independence of stage boundaries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ratchet.store.manifest import Manifest
from tasks.tensordict.session import ArmSession
from tests.tasks.phased import PHASES, POOLED, Played, parameters
from trainers.tensordict.states import snapshots
from trainers.tensordict.states.state import State

DRAWN = [
    {"name": "learn", "num_iterations": 3, "learners": ["prover"]},
    {
        "name": "robust",
        "num_iterations": 3,
        "learners": ["verifier"],
        "partners": {"prover": {"kind": "pool", "every": 1}},
        "max_message_rounds": 3,
    },
    {"name": "joint", "num_iterations": 1},
]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Play the three phases in one process."""
    arm = Played(tmp_path_factory.mktemp("whole"), parameters())
    arm.play()
    return arm


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    arm = Played(tmp_path_factory.mktemp("pooled"), parameters(DRAWN), per_task=1)
    arm.play()
    return arm


def weights(state, agent):
    """Return a state with only one agent's weights, for bitwise comparison."""
    return State(agents={agent: state.agents[agent]})


def metrics(arm, iteration):
    manifest: Manifest | None = arm.store.find(arm.keys.state_key(iteration))
    assert manifest is not None
    return manifest.metrics


def test_agents_that_do_not_learn_are_unchanged_bit_for_bit(played):
    first = played.state(played.keys.pretrained_state().key)
    alone, answer, joint = (played.after(iteration) for iteration in (3, 5, 8))
    assert weights(alone, "prover") == weights(first, "prover"), "it was replaced"
    assert weights(alone, "verifier") != weights(first, "verifier")
    assert weights(answer, "verifier") == weights(alone, "verifier"), "it was frozen"
    assert weights(answer, "prover") != weights(first, "prover")
    assert weights(joint, "prover") != weights(answer, "prover")
    assert weights(joint, "verifier") != weights(answer, "verifier")


def test_the_weights_of_a_replaced_agent_are_restored(played):
    first = played.state(played.keys.pretrained_state().key)
    begun = played.state(played.keys.phase_state(played.keys.phases[1]).key)
    assert weights(begun, "prover") == weights(first, "prover")
    assert begun.stand_ins == {}
    assert begun.optimizer == {}, "a phase starts with a new optimizer"


def test_an_agent_may_start_a_phase_with_its_initial_weights(played, tmp_path):
    attack = {
        "name": "attack",
        "num_iterations": 1,
        "learners": ["prover"],
        "fresh": ["prover"],
        "min_message_rounds": 3,  # otherwise the verifier may decide first
    }
    arm = Played(tmp_path, parameters([*PHASES[:2], attack]))
    arm.play()
    begun = arm.state(arm.keys.phase_state(arm.keys.phases[2]).key)
    first = played.state(played.keys.pretrained_state().key)
    assert weights(begun, "prover") == weights(first, "prover")
    assert weights(begun, "verifier") == weights(played.after(5), "verifier")
    assert weights(arm.after(6), "prover") != weights(first, "prover")


def test_rounds_and_learning_rates_are_those_of_the_phase(played):
    (alone,) = [point for point in metrics(played, 3) if point.iteration == 2]
    assert alone.values["mean_episode_length"] <= 3
    rates = {
        point.iteration: point.values.get("verifier.lr", point.values.get("verifier.body.lr"))
        for stop in (3, 8)
        for point in metrics(played, stop)
    }
    assert set(rates) == {0, 1, 2, 5, 6, 7}, "the count of iterations continues"
    assert rates[2] == pytest.approx(0.01)
    assert rates[7] == pytest.approx(0.0003)
    annealed = [value for point in metrics(played, 5) for value in _rates(point.values)]
    assert max(annealed) == pytest.approx(0.003), "annealing starts with the phase"
    assert min(annealed) == pytest.approx(0.0015), "and ends with it"


def _rates(values):
    return [value for name, value in values.items() if name.endswith("lr") and value]


def test_results_do_not_depend_on_stage_boundaries_and_sessions(played, tmp_path):
    apart = Played(tmp_path, parameters(), per_task=1)
    apart.play(apart=True)
    assert apart.keys.final_state_key == played.keys.final_state_key
    for iteration in (3, 5, 8):
        assert apart.after(iteration) == played.after(iteration)
    assert metrics(apart, 8)[-1].values == metrics(played, 8)[-1].values
    assert apart.play() == []


def test_a_changed_phase_reuses_earlier_phases(tmp_path):
    before = Played(tmp_path, parameters(PHASES[:2]))
    before.play()
    after = Played(tmp_path, parameters(PHASES[:2], phases__answer__changes__rl__lr=0.5))
    assert after.play() == ["phase state main answer", "train main 3-5", "test main test"]


def test_tests_use_the_agents_and_parameters_of_the_experiment(tmp_path):
    arm = Played(tmp_path, parameters(PHASES[:1]))
    arm.play()
    tested = arm.store.find(arm.keys.test().key)
    plain = Played(tmp_path, parameters(phases=None, rl__num_iterations=3))
    with closing(ArmSession(plain.keys, plain.settings, plain.store)) as session:
        trainer = session.trainer_at(plain.keys.initial_state().key)
        state = arm.after(3)
        snapshots.load_agents(trainer.combined_agents, state.agents)
        expected = trainer.run_test("test").metrics
    assert tested is not None
    values = {name.removeprefix("test_"): v for name, v in tested.metrics[0].values.items()}
    assert values == expected
    assert State.load(arm.store.open(arm.keys.state_key(3)) / "state").agents["prover"]


def test_earlier_versions_are_sampled_from_the_pool_unchanged(pooled):
    begun = pooled.state(pooled.keys.phase_state(pooled.keys.phases[1]).key)
    assert sorted(begun.pool) == ["prover@1", "prover@2", "prover@3"]
    members = {name: State(agents={"prover": own}) for name, own in begun.pool.items()}
    for iteration in (1, 2, 3):
        assert members[f"prover@{iteration}"] == weights(pooled.after(iteration), "prover")
    drawn = [State(agents={"prover": pooled.after(i).stand_ins["prover"]}) for i in (4, 5, 6)]
    assert all(any(each == member for member in members.values()) for each in drawn)
    assert weights(pooled.after(6), "prover") == weights(pooled.after(3), "prover")
    assert weights(pooled.after(7), "prover") != weights(pooled.after(3), "prover")
    assert pooled.after(7).pool == {}


def test_sampling_from_a_pool_does_not_depend_on_stage_boundaries(pooled, tmp_path):
    whole = Played(tmp_path, parameters(DRAWN), per_task=10)
    whole.play()
    assert whole.after(6) == pooled.after(6)
    assert whole.keys.final_state_key == pooled.keys.final_state_key
    assert len({name for name, _ in _draws(pooled)}) > 1, "expected different members"


def _draws(arm):
    """Yield the pool member of each iteration."""
    for iteration in (4, 5, 6):
        state = arm.after(iteration)
        mine = State(agents={"prover": state.stand_ins["prover"]})
        for name, own in state.pool.items():
            if State(agents={"prover": own}) == mine:
                yield name, iteration


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.slow
def test_kills_in_and_between_phases_do_not_change_the_result(tmp_path):
    whole = Played(tmp_path / "whole", parameters(POOLED))
    whole.play()
    faults = [
        "stage=phase_state;iteration=0;within=0.05;seed=1",
        "stage=train;iteration=2;within=0.1;seed=2",
        "stage=phase_state;iteration=3;within=0.05;seed=3",
        "stage=train;iteration=5;within=0.1;seed=4",
        "stage=phase_state;iteration=5;within=0.05;seed=5",
        "stage=train;iteration=8;within=0.1;seed=6",
        "stage=test;within=0.05;seed=7",
    ]
    for number, fault in enumerate(faults):
        once = tmp_path / f"once-{number}"
        assert _play(tmp_path / "killed", f"{fault};kind=kill;once={once}") == -signal.SIGKILL
        assert once.exists()
    assert _play(tmp_path / "killed") == 0
    killed = Played(tmp_path / "killed", parameters(POOLED), per_task=1)
    assert killed.play() == []
    for iteration in (3, 5, 8):
        assert killed.after(iteration) == whole.after(iteration)
        assert metrics(killed, iteration)[-1].values == metrics(whole, iteration)[-1].values
    tests = [arm.store.find(arm.keys.test().key) for arm in (killed, whole)]
    assert tests[0].files == tests[1].files, "expected identical files"
    assert tests[0].metrics == tests[1].metrics


def _play(folder, fault=""):
    """Play in a separate process; return its exit status."""
    command = [sys.executable, "-m", "tests.tasks.phased", str(folder)]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "RATCHET_FAULT": fault, "PYTHONPATH": root}
    return subprocess.run(command, env=environment, cwd=root, check=False).returncode
