"""Phases of chat models: learners, pools, keys, and stages after an interruption."""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy

import pytest

from flows.planning.estimates import count_rollouts, estimate_stages
from flows.runs.derived_runs import resolve_fork
from ratchet.errors import ParameterError, RolloutError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.pure_text.agents import whole_agent
from ratchet.scenarios.pure_text.rules import rules_of
from ratchet.tracking.manifest import RunManifest, StageRecord
from ratchet.tracking.run_folder import RunFolder
from tasks.stages.sequence import RecordedStageLayout, flatten_steps
from tasks.text.files import has_rollouts
from tasks.text.keys import TextArmKeys
from tasks.text.session import TextArmSession
from tests.tasks.phased import Played
from trainers.callbacks.base import Callback
from trainers.callbacks.registry import register_callback
from trainers.compatibility import check_combination
from trainers.config_warnings import find_config_warnings
from trainers.pools import sampled_members
from trainers.registry import trainer_class
from trainers.text.state import State

CHANGES = {"agents.verifier.temperature": 0.5, "rl.rollouts_per_iteration": 16}
PHASES = [
    {"name": "prove", "num_iterations": 2, "learners": ["prover"]},
    {
        "name": "verify",
        "num_iterations": 2,
        "partners": {"prover": {"kind": "pool", "every": 1}},
        "changes": CHANGES,
    },
    {"name": "attack", "num_iterations": 2, "learners": ["prover"], "fresh": ["prover"]},
]
PARAMETERS = {
    "seed": 0,  # members of the pool: 1, 2
    "scenario": "code_validation",
    "trainer": "pure_text_ei",
    "dataset": "generated",
    "nip_protocol": {"min_message_rounds": 3, "max_message_rounds": 3},
    "code_validation": {"num_train": 16, "num_test": 4},
    "rl": {"rollouts_per_iteration": 12},
    "text_rl": {"test_scheme": "all"},
    "pure_text_ei": {"reward_threshold": -2.0},
    "agents": {"_default": {"use_dummy_api": True, "fine_tune_from_scratch": False}},
    "phases": PHASES,
}
PAID = {"model_name": "gpt-4o-mini-2024-07-18", "base_url": None}


class TextPlayed(Played):
    keys_class = TextArmKeys
    session_class = TextArmSession
    state_class = State

    def model(self, agent, iteration):
        """Return an agent's model after this many iterations."""
        return self.after(iteration).agents[agent].model_name

    def acted(self, call):
        """Return the models that agents acted with in a stage."""
        usage = json.loads((self.store.open(call.key) / "usage.json").read_text())
        return {row["agent"]: row["model"] for row in usage}


def changed(phase=None, **changes):
    """Return the parameters with changes of one phase, or of the experiment."""
    parameters = deepcopy(PARAMETERS)
    (parameters if phase is None else parameters["phases"][phase]).update(changes)
    return parameters


def keys_of(parameters=PARAMETERS):
    return TextArmKeys("main", HyperParameters(**parameters))


def stage_keys(parameters):
    calls = flatten_steps(keys_of(parameters).stages(RecordedStageLayout([("test", 6)])))
    return {(call.name, call.iteration): call.key for call in calls}


def first_changed(parameters):
    """Return the names of the stages, by iteration, whose keys a change changes."""
    before, after = stage_keys(PARAMETERS), stage_keys(parameters)
    return [place for place in before if before[place] != after.get(place)]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    arm = TextPlayed(tmp_path_factory.mktemp("whole"), HyperParameters(**PARAMETERS))
    arm.play()
    return arm


def test_only_learners_get_new_models_and_the_last_iteration_of_a_phase_trains(played):
    provers, verifiers = ([played.model(a, i) for i in range(6)] for a in ("prover", "verifier"))
    base, first, second = provers[:3]
    assert provers == [base, first, second, second, second, provers[5]]
    assert len(set(provers)) == 4
    assert verifiers[:3] == [base] * 3
    assert len({*verifiers[2:5]}) == 3
    assert verifiers[5] == verifiers[4]


def test_the_sampled_members_of_a_pool_act_and_the_state_keeps_the_current_model(played):
    members = []
    for iteration in (2, 3):
        names = ["prover@1", "prover@2"]
        (member,) = sampled_members(names, seed=0, iteration=iteration).values()
        members.append(member)
        acted = played.acted(played.keys.sample_rollouts(iteration))
        assert acted["prover"] == played.model("prover", int(member[-1]))
        assert acted["verifier"] == played.model("verifier", iteration)
        tested = played.acted(played.keys.test_during_training(iteration))
        assert tested["prover"] == played.model("prover", iteration), "tests use current models"
    assert "prover@1" in members, "an earlier model acts"


def test_fresh_agents_start_from_their_first_model_again(played):
    base = played.model("prover", 0)
    assert played.acted(played.keys.sample_rollouts(4))["prover"] == base
    assert played.acted(played.keys.test_during_training(4))["prover"] == played.model("prover", 4)
    group = played.state(played.keys.create_fine_tune_jobs(4).key).shared_model_groups["prover"]
    assert group.fine_tune_intent.model == base == group.current_model_name
    assert group.model_names == tuple(played.model("prover", i) for i in range(3))
    third = played.state(played.keys.create_fine_tune_jobs(1).key).shared_model_groups["prover"]
    assert third.fine_tune_intent.model == played.model("prover", 1), "jobs start from the last"


def test_stages_sample_with_the_parameters_of_their_phase(played):
    calls = [played.keys.sample_rollouts(i) for i in (1, 2, 4)]
    usage = [json.loads((played.store.open(c.key) / "usage.json").read_text()) for c in calls]
    games = [max(row["calls"] for row in rows if row["agent"] == "verifier") for rows in usage]
    assert games[0] <= 2 * 12 < games[1] <= 2 * 16
    assert games[2] <= 2 * 12
    agents = [call.parameters["agents"] for call in calls]
    assert ["verifier" in each for each in agents] == [False, True, False]
    tested = played.keys.test_during_training(2).parameters["agents"]
    assert "verifier" not in tested, "tests have the experiment's parameters"


def test_an_interrupted_run_continues_without_repeated_calls(played, tmp_path, monkeypatch):
    sent = Counter()
    reply = whole_agent.dummy_completion

    def count(limit):
        def counted(request, *args, **options):
            if sum(sent.values()) >= limit:
                raise RuntimeError("the power is off")
            sent[request.model, request.seed, str(request.messages)] += 1
            return reply(request, *args, **options)

        return counted

    def play(folder, *limits):
        sent.clear()
        arm = TextPlayed(folder, HyperParameters(**PARAMETERS))
        for limit in limits:
            monkeypatch.setattr(whole_agent, "dummy_completion", count(limit))
            if limit < 10_000:
                with pytest.raises(RolloutError):
                    arm.play()
            else:
                arm.play(apart=True)
        return arm, sent.copy()

    _, whole = play(tmp_path / "whole", 10_000)
    two_iterations = 2 * (36 + 12)  # calls of rollouts and tests
    broken, pieces = play(tmp_path / "pieces", two_iterations + 20, 10_000)
    assert pieces == whole
    for call in flatten_steps(played.keys.stages(RecordedStageLayout([("test", 6)]))):
        files = [arm.store.peek(call.key).files for arm in (played, broken)]
        names = [n for n in files[0] if "usage" not in n]
        assert [files[0][n].sha256 for n in names] == [files[1][n].sha256 for n in names]


def test_a_phase_changes_the_keys_of_its_stages_and_later_ones():
    assert first_changed(changed(0, name="renamed")) == []
    threshold = first_changed(changed(1, changes={**CHANGES, "pure_text_ei.reward_threshold": 0.5}))
    assert threshold[0] == ("create_fine_tune_jobs", 2)
    assert first_changed(changed(1, partners={"prover": "frozen"}))[0] == ("sample_rollouts", 2)
    assert first_changed(changed(2, fresh=[]))[0] == ("sample_rollouts", 4)
    learners = first_changed(changed(0, learners=["prover", "verifier"]))
    assert learners[0] == ("create_fine_tune_jobs", 0), "rollouts do not depend on the learners"
    longer = first_changed(changed(2, num_iterations=4))
    assert longer == [("test", 6)], "the new jobs follow the iteration that was last"


def test_phases_share_rollouts_with_runs_without_phases():
    none = keys_of(changed(phases=[], rl={**PARAMETERS["rl"], "num_iterations": 6}))
    assert none.sample_rollouts(0).key == keys_of().sample_rollouts(0).key
    parameters = none.create_fine_tune_jobs(1).parameters
    assert parameters["agents"].keys() == {"_default"}, "no learners of a phase"


def test_sampling_reads_the_states_of_the_pool():
    keys = keys_of()
    assert keys.sample_rollouts(2).inputs.keys() == {
        *("data", "state", "pool.prover.1", "pool.prover.2")
    }
    assert keys.sample_rollouts(3).inputs["pool.prover.1"] == keys.state_key(1)
    assert keys.sample_rollouts(4).inputs.keys() == {"data", "state"}
    assert [keys.sample_rollouts(i).parameters.get("fresh") for i in (3, 4, 5)] == [
        *(None, ["prover"], None)
    ]


def test_only_turns_of_learners_are_redrawn():
    grpo = {"redraws": {"prover": 2, "verifier": 1}}
    keys = keys_of(changed(trainer="pure_text_grpo", pure_text_grpo=grpo))
    redraws = [keys.sample_rollouts(i).parameters["pure_text_grpo"]["redraws"] for i in (0, 2)]
    assert redraws == [{"prover": 2}, {"verifier": 1}]


def test_all_previous_rollouts_are_those_of_the_phase():
    keys = keys_of(changed(text_rl={"fine_tune_on_all_previous_rollouts": True}))
    counts = [len(keys.earlier_rollouts(iteration)) for iteration in range(5)]
    assert counts == [0, 1, 0, 1, 0]


def test_schedules_and_annealing_count_from_the_start_of_a_phase(tmp_path, monkeypatch):
    schedule = {"kind": "contiguous_periodic", "period": 3, "start": 0, "stop": 1}
    changes = {"agents.verifier.update_schedule": schedule}
    parameters = changed(1, changes=changes, partners={})
    parameters["phases"] = parameters["phases"][:2]
    parameters["text_rl"] = {
        "verifier_guess_replacement_proportion": 0.5,
        "verifier_guess_replacement_annealing": "linear",
    }
    seen = []
    module = "trainers.text.expert_iteration.selection"
    monkeypatch.setattr(
        f"{module}.guess_replacement_proportion", lambda *a: seen.append(a[-1]) or 0.5
    )
    arm = TextPlayed(tmp_path, HyperParameters(**parameters))
    arm.play()
    assert arm.model("verifier", 3) != arm.model("verifier", 2), "on in its first iteration"
    assert seen == [0], "of iteration 2; the prover's phase trains no verifier"


def test_a_callback_ends_its_phase_only(tmp_path):
    stop = {
        "name": "early_stopping",
        "metric": "verifier.mean_episode_reward",
        "stop_at": -9.0,  # any value is better
    }
    arm = TextPlayed(tmp_path, HyperParameters(**changed(callbacks=[stop])))
    arm.play()
    done = [has_rollouts(arm.store, arm.keys.sample_rollouts(i).key) for i in range(6)]
    assert done == [True, False] * 3
    assert len(arm.after(5).shared_model_groups["prover"].model_names) == 1


ENDS = []


@register_callback("test_text_phase_ends")
class Ends(Callback):
    def end_run(self, now):
        ENDS.append(now.iteration)


def test_callbacks_end_with_each_phase(tmp_path):
    ENDS.clear()
    arm = TextPlayed(tmp_path, HyperParameters(**changed(callbacks=["test_text_phase_ends"])))
    arm.play()
    assert ENDS == [1, 3, 5]
    (first, last) = (arm.keys.log_stats(i).parameters["callbacks"][0] for i in (2, 3))
    assert (first.get("ends_run"), last.get("ends_run")) == (None, True)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["pure_text_malt", "pure_text_grpo"])
def test_other_trainers_train_only_learners(trainer, tmp_path):
    parameters = changed(trainer=trainer, rl={"rollouts_per_iteration": 32})
    arm = TextPlayed(tmp_path, HyperParameters(**parameters))
    arm.play()
    provers, verifiers = ([arm.model(a, i) for i in range(6)] for a in ("prover", "verifier"))
    assert [len(set(provers[:5])), len({*verifiers[2:5]})] == [3, 3]
    assert provers[2:5] == [provers[2]] * 3
    assert verifiers[:3] == [verifiers[0]] * 3
    assert arm.acted(arm.keys.sample_rollouts(2))["prover"] in provers[1:3]
    assert provers[5] not in provers[:5]


def test_estimates_and_numbers_of_rollouts_are_of_the_phase(tmp_path):
    parameters = changed()
    parameters["agents"]["_default"] = PAID
    arm = TextPlayed(tmp_path, HyperParameters(**parameters))
    estimates = estimate_stages(arm.store, arm.keys, arm.settings)
    sampling = [estimates["sample_rollouts", i] for i in range(6)]
    assert [each.calls for each in sampling] == [36, 36, 48, 48, 36, 36]
    training = [estimates["await_fine_tune_jobs", i].training_tokens for i in range(5)]
    assert training[0] == training[1] == training[4] > 0
    assert training[2] == training[3] == pytest.approx(training[0] * 16 / 12)
    assert ("await_fine_tune_jobs", 5) not in estimates
    parameters["phases"] = [{"name": "all", "num_iterations": 6}]
    both = estimate_stages(arm.store, keys_of(parameters), arm.settings)
    assert both["await_fine_tune_jobs", 0].training_tokens == 2 * training[0]
    rollouts = count_rollouts(arm.store, arm.keys)
    assert [rollouts["sample_rollouts", i] for i in range(6)] == [12, 12, 16, 16, 12, 12]
    assert {rollouts["test_during_training", i] for i in range(6)} == {4}


@pytest.fixture
def fork(tmp_path):
    """Return a function that forks a run that has finished iterations 0 to 3."""
    settings = ExperimentSettings(runs=str(tmp_path), home=str(tmp_path / "home"))
    names = ("initial_state", "sample_rollouts", "create_fine_tune_jobs", "await_fine_tune_jobs")
    stages = [
        StageRecord(stage=name, iteration=i, key="0" * 64, hit=False)
        for name in names
        for i in range(4)
    ]
    arms = {"main": HyperParameters(**PARAMETERS).to_dict()}
    RunFolder.create(
        settings.runs, RunManifest(run_id="parent", name="parent", arms=arms, stages=stages)
    )
    return lambda point, **changes: resolve_fork("parent", point, changes, settings)


def test_a_fork_changes_no_initial_conditions_of_a_started_phase(fork):
    pool = {"phases.verify.partners.prover.every": 2}
    for point in (3, "2:create_fine_tune_jobs"):
        with pytest.raises(ParameterError, match=r"phases\.verify: .* pools"):
            fork(point, **pool)
    assert fork(2, **pool)
    assert fork(3, **{"phases.verify.num_iterations": 4})


def test_keys_contain_which_round_is_announced_as_the_last():
    read = trainer_class(HyperParameters(**PARAMETERS)).stage_key_parameters
    rounds = {"max_message_rounds": 3, "played_message_rounds": 2}
    short = HyperParameters(**{**PARAMETERS, "phases": [], "nip_protocol": rounds})
    for stage in ("sample_rollouts", "test_during_training", "test"):
        assert read(short, stage)["announced"] == "last played round"
    whole = HyperParameters(**{**PARAMETERS, "phases": [], "nip_protocol": {}})
    assert "announced" not in read(whole, "sample_rollouts")


def test_frozen_partners_of_token_trainers_may_sample_otherwise():
    service = {"base_url": "embedded", "model_name": "ratchet-tiny"}
    parameters = changed(1, changes={"agents.prover.temperature": 0.5}) | {
        "trainer": "pure_text_grpo",
        "agents": {"_default": service},
    }
    check_combination(HyperParameters(**parameters))
    parameters["phases"][1]["changes"] = {"agents.verifier.temperature": 0.5}
    with pytest.raises(ParameterError, match=r"verifier.temperature: got 0.5, expected 1"):
        check_combination(HyperParameters(**parameters))


def test_the_last_round_of_a_phase_is_announced():
    keys = keys_of(changed(0, min_message_rounds=1, max_message_rounds=1))
    last = []
    for iteration in (0, 2):
        rules = rules_of(build_protocol_handler(keys.parameters_in(iteration)))
        turns = enumerate(rules.turns(0))
        last.append([round for round, agents in turns if any(turn.is_last for turn in agents)])
    assert last == [[0], [1, 2]]


KEEP_BEST = {"name": "keep_best", "metric": "verifier.mean_episode_reward"}
GROUP = {"shared_model_group": "both"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (changed(0, partners={"verifier": "random"}), "got 'random' for a language model"),
        (changed(0, partners={"verifier": "hand_made"}), "got 'hand_made' for a language model"),
        (
            changed(agents={"_default": {**PARAMETERS["agents"]["_default"], **GROUP}}),
            r"phases\.prove: learners: .* 'prover' shares a model with 'verifier'",
        ),
        (
            changed(agents={"_default": {}, "prover": {"freeze_agent": True}}),
            r"'prover' cannot learn, since agents\.prover\.freeze_agent is True",
        ),
        (changed(0, changes={"agents.verifier.freeze_agent": True}), "learners decide which"),
        (changed(0, changes={"agents.prover.model_name": "other"}), "network or model"),
        (changed(0, changes={"text_rl.test_on_whole_dataset": False}), "read for chat_tests"),
        (changed(callbacks=[KEEP_BEST]), "replaces models at the end"),
    ],
    ids=[
        *("random", "scripted", "shared group", "frozen learner", "frozen by a change"),
        *("another model", "tests", "best models"),
    ],
)
def test_what_phases_of_chat_models_refuse(parameters, message):
    with pytest.raises(ParameterError, match=message):
        check_combination(HyperParameters(**parameters))


def test_a_last_phase_without_jobs_gives_a_warning():
    texts = [
        list(find_config_warnings({"main": HyperParameters(**changed(2, num_iterations=number))}))
        for number in (1, 2)
    ]
    assert [len(each) for each in texts] == [1, 0]
    assert "phases.attack.num_iterations: got 1" in texts[0][0]


def test_train_refuses_phases():
    hyper_params = HyperParameters(**PARAMETERS)
    trainer = object.__new__(trainer_class(hyper_params))
    trainer.hyper_params = hyper_params
    with pytest.raises(ParameterError, match=r"phases: got 3, which train\(\) does not support"):
        trainer.train()
