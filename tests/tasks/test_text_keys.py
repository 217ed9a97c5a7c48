"""Keys of chat model stages: which parameters change them, and which paid stages are reused."""

from __future__ import annotations

import pytest

from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.tracking.manifest import ITERATION_STAGES
from tasks.stages.families import make_keys
from tasks.stages.sequence import RecordedStageLayout, flatten_steps, recorded_calls
from tasks.tensordict.keys import ArmKeys
from tasks.text.keys import TextArmKeys, rollout_class
from trainers.text.expert_iteration import PureTextEiTrainer


def make_text_keys(arm="main", **changes):
    hyper_params = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        rl={"num_iterations": 4, "rollouts_per_iteration": 12},
        text_rl={"test_scheme": "all"},
    ).replace(changes)
    keys = make_keys(arm, hyper_params)
    assert isinstance(keys, TextArmKeys)
    return keys


@pytest.fixture(scope="module")
def text_keys():
    return make_text_keys()


def all_stages(keys):
    return flatten_steps(keys.stages(RecordedStageLayout([("test", keys.num_iterations)])))


def by_place(keys):
    return {(call.name, call.iteration): call.key for call in all_stages(keys)}


def changed(keys, **changes):
    old, new = by_place(keys), by_place(make_text_keys(**changes))
    return {f"{name} {i}" for name, i in old if old[name, i] != new.get((name, i))}


def after(iteration, *stages):
    """Return stages of an iteration and all stages after its fine-tuning."""
    found = {f"{stage} {iteration}" for stage in stages}
    later = {
        f"{stage} {i}"
        for i in range(iteration + 1, 4)
        for stage in ITERATION_STAGES
        if i < 3 or "fine_tune" not in stage
    }
    return found | later | {"test 4"}


LEARNING = ("create_fine_tune_jobs", "await_fine_tune_jobs")
FIRST = after(0, *ITERATION_STAGES)


def test_there_is_a_stage_for_each_step_and_no_jobs_in_the_last_iteration(text_keys):
    places = [(call.name, call.iteration) for call in all_stages(text_keys)]
    expected = [("build_scenario", 0), ("initial_state", 0)]
    expected += [(stage, i) for i in range(3) for stage in ITERATION_STAGES]
    expected += [(stage, 3) for stage in ITERATION_STAGES[:3]] + [("test", 4)]
    assert places == expected
    assert len(set(by_place(text_keys).values())) == len(expected)
    assert by_place(make_text_keys(arm="other")) == by_place(text_keys)


def test_parameters_of_learning_do_not_change_the_first_rollouts(text_keys):
    for change in ({"pure_text_ei.reward_threshold": 0.5}, {"text_rl.test_on_whole_dataset": 0}):
        assert "sample_rollouts 0" not in changed(text_keys, **change)
    assert changed(text_keys, **{"pure_text_ei.reward_threshold": 0.5}) == after(0, *LEARNING)


def test_parameters_of_tests_change_only_tests(text_keys):
    tests = {f"test_during_training {i}" for i in range(4)} | {"test 4"}
    assert changed(text_keys, **{"text_rl.test_on_whole_dataset": False}) == tests
    assert changed(text_keys, **{"text_rl.test_scheme": "none"}) == tests - {"test 4"}


def test_more_iterations_extend_a_run(text_keys):
    assert changed(text_keys, **{"rl.num_iterations": 6}) == {"test 4"}


def test_parameters_of_agents_change_all_stages_except_the_data(text_keys):
    assert changed(text_keys, **{"agents._default.temperature": 0.5}) == FIRST
    model = {"agents._default.model_name": "other"}
    assert changed(text_keys, **model) == FIRST | {"initial_state 0"}
    everything = FIRST | {"initial_state 0", "build_scenario 0"}
    assert changed(text_keys, seed=1) == everything
    assert changed(text_keys, **{"code_validation.num_train": 30}) == everything


def test_the_name_of_an_api_key_does_not_enter_keys(text_keys):
    assert changed(text_keys, **{"agents._default.api_key_name": "MY_KEY"}) == set()


def test_all_earlier_rollouts_are_inputs_if_they_are_learned_from():
    keys = make_text_keys(**{"text_rl.fine_tune_on_all_previous_rollouts": True})
    inputs = keys.create_fine_tune_jobs(2).inputs
    assert set(inputs) == {"state", "rollouts", "rollouts.0", "rollouts.1"}


def test_a_pinned_stage_is_the_input_of_later_ones(text_keys):
    keys = make_text_keys()
    for call in all_stages(keys):
        if call.name == "await_fine_tune_jobs" and call.iteration == 0:
            keys.pin(call, "0" * 64)
    assert keys.sample_rollouts(1).inputs["state"] == "0" * 64
    assert keys.sample_rollouts(0).key == text_keys.sample_rollouts(0).key
    assert recorded_calls(keys, [])["await_fine_tune_jobs", 0].key == "0" * 64


def test_a_recorded_text_stage_is_recognised(text_keys):
    call = text_keys.sample_rollouts(2)
    calls = recorded_calls(text_keys, [("test-hard", 4)])
    assert calls["sample_rollouts", 2].key == call.key != calls["sample_rollouts", 1].key
    assert ("create_fine_tune_jobs", 3) not in calls, "the last iteration creates no jobs"
    assert [place for place in calls if "test-" in place[0]] == [("test-hard", 4)]
    assert call.label == "sample rollouts main 2"


@pytest.mark.slow
def test_hundreds_of_iterations_have_keys():
    keys = make_text_keys(**{"rl.num_iterations": 700, "text_rl.test_scheme": "none"})
    assert len(keys.test().key) == 64


def test_a_retest_only_tests():
    base_run = {"base_run_type": "rerun_tests", "run_id": "x"}
    keys = make_text_keys(base_run=base_run)
    assert {call.stage for call in all_stages(keys)} == {
        "build_scenario",
        "test_during_training",
        "test",
    }


def test_a_trainer_that_changes_only_learning_samples_with_its_bases_code():
    assert rollout_class(PureTextEiTrainer) is PureTextEiTrainer.__mro__[1]

    class Learns(PureTextEiTrainer):
        def _stage_create_fine_tune_jobs(self, rollouts):
            self.something_of_its_own(rollouts)

        def something_of_its_own(self, rollouts):
            pass

    class Plays(Learns):
        def _sample_rollouts(self, environment, iteration, use_tqdm=False):
            pass

    class Mixin:
        def _get_log_stats(self, rollouts, *, train=True):
            pass

    class Mixed(Mixin, PureTextEiTrainer):
        pass

    assert rollout_class(Learns) is PureTextEiTrainer.__mro__[1]
    assert rollout_class(Plays) is Plays
    assert rollout_class(Mixed) is Mixed


def test_network_trainers_have_network_keys():
    params = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "generated"}
    assert isinstance(make_keys("main", HyperParameters(**params)), ArmKeys)
