"""Phases of language models: learners, pools, validation, and independence of the split."""

from __future__ import annotations

import json
import weakref
from contextlib import closing
from copy import deepcopy
from types import SimpleNamespace

import pytest

from flows.planning.estimates import token_upper_bound
from flows.planning.space import estimate_disk
from flows.runs.removed_states import check_state, removable_states
from ratchet.errors import CheckPointNotFoundError, ParameterError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.removed_files import remove_files
from tasks.language.keys import LanguageArmKeys
from tasks.language.session import LanguageArmSession
from tests.tasks.phased import Played
from trainers.compatibility import check_combination
from trainers.language.optimization import LanguageOptimizer
from trainers.language.state import LanguageState
from trainers.language.trainer import LanguageTrainer
from trainers.tensordict.states.state import same_trees

SMALL = {"layers": 1, "d_model": 16, "heads": 2, "context_length": 32}
PHASES = [
    {"name": "first", "num_iterations": 2, "learners": ["player_0"]},
    {
        "name": "second",
        "num_iterations": 3,
        "partners": {"player_0": {"kind": "pool", "every": 1}},
        "changes": {"agents._default.temperature": 0.7, "language.optimizer.lr": 0.003},
    },
    {"name": "third", "num_iterations": 1, "fresh": ["player_1"]},
]
PARAMETERS = {
    "seed": 4,  # members of the pool: 1, 2, 1
    "scenario": "language_task",
    "trainer": "grpo",
    "dataset": "open_spiel/kuhn_poker",
    "language_task": {"num_train": 64, "num_test": 8},
    "language": {"tasks_per_step": 32, "group_size": 1, "optimizer": {"lr": 0.03}},
    "grpo": {"baseline": "agent_average", "advantage_scale": "none"},
    "agents": {"_default": {"max_tokens": 1, "small_model": SMALL}},
    "phases": PHASES,
}


SHARED = {"max_tokens": 1, "small_model": SMALL, "shared_model_group": "both"}
REMOTE = {
    **PARAMETERS,
    "trainer": "remote_grpo",
    "language": {**PARAMETERS["language"], "train_service": {"backend": "ratchet"}},
    "agents": {"_default": {"max_tokens": 1}},
}


RETENTION = ExperimentSettings(state_retention="checkpoints")


class LanguagePlayed(Played):
    keys_class = LanguageArmKeys
    session_class = LanguageArmSession
    state_class = LanguageState


def changed(phase: int = 0, **changes):
    """Return the parameters with changes of one phase."""
    parameters = deepcopy(PARAMETERS)
    parameters["phases"][phase].update(changes)
    return parameters


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    arm = LanguagePlayed(tmp_path_factory.mktemp("whole"), HyperParameters(**PARAMETERS))
    arm.play()
    return arm


def model(state, agent):
    return state.learners[agent]["model"]


def test_only_learners_change_and_their_optimizers_continue(played):
    start = played.state(played.keys.state_key(0))
    first, second = played.after(2), played.after(5)
    assert same_trees(start.learners["player_1"], first.learners["player_1"])
    assert not same_trees(model(start, "player_0"), model(first, "player_0"))
    assert same_trees(first.learners["player_0"], second.learners["player_0"]), "of a pool"
    assert not same_trees(model(first, "player_1"), model(second, "player_1"))
    begun = played.state(played.keys.phase_state(played.keys.phases[1]).key)
    assert same_trees(begun.learners, first.learners)


def test_sampling_from_a_pool_leaves_the_optimizer(played, monkeypatch):
    loaded = []
    monkeypatch.setattr(LanguageOptimizer, "load_state_dict", lambda *a: loaded.append(a))
    with closing(LanguageArmSession(played.keys, played.settings, played.store)) as session:
        phase = played.keys.phases[1]
        trainer = session.trainer_at(played.keys.phase_state(phase).key, phase)
        loaded.clear()
        trainer.play_rollouts(2)
    assert loaded == []


@pytest.mark.slow
def test_validation_uses_the_models_of_the_phase(tmp_path, monkeypatch):
    parameters = deepcopy(PARAMETERS)
    parameters["language_task"]["num_validation"] = 8
    parameters["language"]["validate_every"] = 1
    del parameters["phases"][1]["changes"]["agents._default.temperature"]
    parameters["phases"][2]["changes"] = {"agents._default.max_tokens": 2}  # which tests read
    arm = LanguagePlayed(tmp_path, HyperParameters(**parameters), per_task=1)
    built = []
    build = LanguageTrainer._build_learners
    monkeypatch.setattr(
        LanguageTrainer, "_build_learners", lambda *a: built.append(a[0]) or build(*a)
    )
    arm.play()
    trainers = list(dict.fromkeys(map(id, built)))
    assert len(trainers) == len(built) == 5  # initial state, three phases, tests after the third
    with closing(LanguageArmSession(arm.keys, arm.settings, arm.store)) as session:
        for iteration in (1, 4, 6):
            trainer = session.trainer_at(arm.keys.state_key(iteration))
            folder = arm.store.open(arm.keys.validate(iteration).key)
            stored = json.loads((folder / "table.json").read_text())
            assert stored == trainer.evaluate("validation").table


def test_an_agent_may_start_again(played):
    start = played.state(played.keys.state_key(0))
    begun = played.state(played.keys.phase_state(played.keys.phases[2]).key)
    assert same_trees(begun.learners["player_1"], start.learners["player_1"])
    assert begun.pool == {}


def test_the_result_does_not_depend_on_the_split(played, tmp_path):
    pieces = LanguagePlayed(tmp_path, HyperParameters(**PARAMETERS), per_task=1)
    pieces.play(apart=True)
    assert pieces.after(6) == played.after(6)
    assert pieces.after(3).pool.keys() == {"player_0@1", "player_0@2"}


def test_who_plays_matters(played, tmp_path):
    """The opponent of a pool differs from the frozen last one."""
    frozen = changed(1, partners={"player_0": "frozen"})
    arm = LanguagePlayed(tmp_path, HyperParameters(**frozen))
    arm.play()
    assert arm.keys.state_key(2) == played.keys.state_key(2)
    assert not same_trees(model(arm.after(5), "player_1"), model(played.after(5), "player_1"))


def test_a_fork_within_a_phase_does_not_reuse_the_stages_of_other_learners(played):
    others = HyperParameters(**changed(0, learners=["player_0", "player_1"]))
    pins = {("train", 1): played.keys.state_key(1)}
    forked = LanguageArmKeys("main", others, pins=pins)
    assert forked.state_key(1) == played.keys.state_key(1)
    assert forked.state_key(2) != played.keys.state_key(2)


def test_removed_members_of_a_pool_are_noticed_before_the_phase(tmp_path):
    arm = LanguagePlayed(tmp_path, HyperParameters(**PARAMETERS), per_task=1)
    arm.play()
    removed = arm.keys.state_key(1)
    assert remove_files(arm.store, removed, ["state/language.safetensors"])
    with pytest.raises(CheckPointNotFoundError, match="after 1 iteration"):
        check_state(arm.store, arm.keys, arm.keys.phase_state(arm.keys.phases[1]))
    assert 1 not in removable_states(arm.keys, range(6), RETENTION), "a member of the pool"


def test_estimates_are_of_the_phase(played):
    two = HyperParameters(**changed(1, changes={"language.tasks_per_step": 5}))
    keys = LanguageArmKeys("main", two)
    bounds = [token_upper_bound(played.store, keys, keys.train(i, i + 2)) for i in (0, 3)]
    assert [bound.answers for bound in bounds] == [2 * 32, 2 * 5]


def test_disk_estimates_include_initial_states_of_phases(played):
    other = HyperParameters(**changed(2, changes={"language.optimizer.lr": 0.5}))
    keys = [LanguageArmKeys("main", other)]
    experiment = SimpleNamespace(store=played.store, settings=played.settings, keys=keys)
    estimate = estimate_disk(experiment)
    assert estimate is not None
    assert estimate.num_states == 2, "of the third phase: its initial state and its last"


def test_models_are_released_with_their_trainer(played, tmp_path):
    with closing(LanguageArmSession(played.keys, played.settings, played.store)) as session:
        trainer = session.trainer_at(played.keys.state_key(2))
        model = weakref.ref(trainer.learners["player_0"])
        trainer.close()
        assert model() is None, "even though the trainer is part of a cycle"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (changed(0, learners=["player_1"], partners={"player_0": "random"}), "'frozen' or 'pool'"),
        ({**PARAMETERS, "language": {"mode": "one_step_behind"}}, "expected synchronous"),
        (
            {**PARAMETERS, "agents": {"_default": {}, "player_0": {"model": "random"}}},
            r"'player_0' cannot learn, since agents.player_0.model is 'random'",
        ),
        (REMOTE, "phases: got 3 with the trainer 'remote_grpo'"),
        (changed(1, changes={"language.mode": "one_step_behind"}), "must be the same in all"),
        (changed(1, changes={"language.engine": "own.py:Engine"}), "must be the same in all"),
        (
            changed(1, changes={"language_task.evaluator": "own.py:evaluate"}),
            "must be the same in all phases",
        ),
        (
            {
                **PARAMETERS,
                "agents": {"_default": {}, "player_0": {"model": "random"}},
                "phases": [{"name": "only", "num_iterations": 1, "fresh": ["player_0"]}],
            },
            "'player_0' has no weights",
        ),
        (
            {**changed(2), "phases": [PHASES[2]], "agents": {"_default": SHARED}},
            "'player_0' shares a model with",
        ),
    ],
    ids=[
        *("scripted partner", "one step behind", "random learner", "remote"),
        *("mode of a phase", "engine of a phase", "evaluator of a phase"),
        *("random agent afresh", "half a group afresh"),
    ],
)
def test_what_phases_of_language_models_refuse(parameters, message):
    with pytest.raises(ParameterError, match=message):
        check_combination(HyperParameters(**parameters))
