"""A callback enters the keys of the stages that it changes, and no others."""

from __future__ import annotations

import pytest

from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.tracking.manifest import ITERATION_STAGES
from tasks.stages.families import make_keys
from tasks.stages.sequence import recorded_calls

STOP = {"name": "early_stopping", "metric": "verifier.accuracy"}
KEEP = {"name": "keep_best", "metric": "verifier.accuracy"}
CUSTOM = """
from trainers import Callback

class Looks(Callback):
    def end_iteration(self, now):
        return {"number": 1.0}

class LooksAtTests(Callback):
    stages = ("test",)

    def end_stage(self, now):
        return {"number": 1.0}
"""


@pytest.fixture
def custom(tmp_path):
    (tmp_path / "custom.py").write_text(CUSTOM)
    return tmp_path


def tensor_keys(base_dir=None, **changes):
    hyper_params = HyperParameters(
        scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="generated"
    ).replace({"rl.num_iterations": 7, "pretrain_agents": True, **changes})
    return make_keys("main", hyper_params, base_dir=None if base_dir is None else str(base_dir))


def text_keys(base_dir=None, **changes):
    hyper_params = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        rl={"num_iterations": 3, "rollouts_per_iteration": 12},
        text_rl={"test_scheme": "all"},
    ).replace(changes)
    return make_keys("main", hyper_params, base_dir=None if base_dir is None else str(base_dir))


def tensor_stages(keys):
    return {
        "data": keys.build_scenario(),
        "initial_state": keys.initial_state(),
        "pretrain": keys.pretrain("prover"),
        "pretrained_state": keys.pretrained_state(),
        "train": keys.train(0, 5),
        "last train": keys.train(5, 7),
        "test": keys.test(),
    }


def text_stages(keys):
    calls = recorded_calls(keys, [("test", keys.num_iterations)])
    return {f"{name} {iteration}": call for (name, iteration), call in calls.items()}


def changed(before, after):
    return {name for name in before if before[name].key != after[name].key}


def tensor_changes(base_dir=None, **changes):
    return changed(tensor_stages(tensor_keys()), tensor_stages(tensor_keys(base_dir, **changes)))


def text_changes(base_dir=None, **changes):
    return changed(text_stages(text_keys()), text_stages(text_keys(base_dir, **changes)))


TRAINED = {"train", "last train", "test"}
LOGGED = {f"log_stats {i}" for i in range(3)}


def test_keys_without_callbacks_do_not_contain_them():
    calls = {**tensor_stages(tensor_keys()), **text_stages(text_keys())}
    for call in calls.values():
        assert "callback" not in str(call.parameters) + str(call.inputs)
        assert "message_regression" not in str(call.parameters)
        found = [name for name in call.fingerprint.modules if name.startswith("trainers.callbacks")]
        assert not {"trainers.callbacks.early_stopping", "trainers.callbacks.keep_best"} & {*found}


@pytest.mark.parametrize("callback", [STOP, KEEP, "gradient_statistics", "custom.py:Looks"])
def test_a_callback_of_networks_changes_training_and_later_stages(custom, callback):
    assert tensor_changes(custom, callbacks=[callback]) == TRAINED
    call = tensor_keys(custom, callbacks=[callback]).train(0, 5)
    assert len(call.parameters["callbacks"]) == 1
    assert str(custom) not in str(call.parameters)
    assert call.parameters["callbacks"][0]["name"] in str(callback)


def test_a_section_that_enables_a_callback_enters_the_same_keys():
    assert tensor_changes(**{"message_regression.enabled": True}) == TRAINED
    assert tensor_changes(**{"message_regression.method": "cnn"}) == set()


@pytest.mark.slow
def test_an_observing_callback_of_chat_models_changes_only_its_own_stages(custom):
    assert text_changes(custom, callbacks=["custom.py:Looks"]) == LOGGED
    tests = {f"test_during_training {i}" for i in range(3)}
    assert text_changes(custom, callbacks=["custom.py:LooksAtTests"]) == {"test 3"}
    assert not tests & text_changes(custom, callbacks=["custom.py:LooksAtTests"])
    assert tensor_changes(custom, callbacks=["custom.py:LooksAtTests"]) == {"test"}


def test_a_stopping_callback_of_chat_models_changes_jobs_and_later_stages():
    later = {f"{stage} {i}" for i in (1, 2) for stage in ITERATION_STAGES}
    later -= {"create_fine_tune_jobs 2", "await_fine_tune_jobs 2"}
    jobs = {"create_fine_tune_jobs 0", "await_fine_tune_jobs 0"}
    expected = LOGGED | jobs | later | {"test 3"}
    assert text_changes(callbacks=[STOP]) == text_changes(callbacks=[KEEP]) == expected


def test_parameters_and_order_of_callbacks_enter_keys():
    one = tensor_stages(tensor_keys(callbacks=[STOP, KEEP]))
    for other in ([{**STOP, "patience": 3}, KEEP], [KEEP, STOP]):
        assert changed(one, tensor_stages(tensor_keys(callbacks=other))) == TRAINED


@pytest.mark.parametrize("family", ["tensor", "text"])
def test_more_iterations_extend_a_run_except_for_callbacks_at_the_end(family):
    make, stages = (
        (tensor_keys, lambda keys: {i: keys.train(0, i) for i in range(1, 8)})
        if family == "tensor"
        else (text_keys, lambda keys: {i: keys.log_stats(i) for i in range(3)})
    )
    number = {"rl.num_iterations": 9}
    stop, keep = ([callback] for callback in (STOP, KEEP))
    more = changed(stages(make(callbacks=stop)), stages(make(callbacks=stop, **number)))
    assert more == set()
    more = changed(stages(make(callbacks=keep)), stages(make(callbacks=keep, **number)))
    assert more == {7 if family == "tensor" else 2}


def test_keys_depend_on_the_code_of_a_custom_callback_and_not_on_its_path(custom, tmp_path):
    callbacks = {"callbacks": ["custom.py:Looks"]}
    before = tensor_stages(tensor_keys(custom, **callbacks))
    text_before = text_stages(text_keys(custom, **callbacks))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "custom.py").write_text(CUSTOM)
    assert changed(before, tensor_stages(tensor_keys(elsewhere, **callbacks))) == set()
    (custom / "custom.py").write_text(CUSTOM.replace("1.0", "2.0"))
    keys = tensor_keys(custom, **callbacks)
    assert changed(before, tensor_stages(keys)) == TRAINED
    assert changed(text_before, text_stages(text_keys(custom, **callbacks))) == LOGGED
    modules = keys.train(0, 5).fingerprint.modules
    assert "custom" in modules
    assert "custom" not in keys.initial_state().fingerprint.modules


def test_parameters_of_tests_enter_the_keys_of_a_callback_that_tests():
    """Parameters of the test determine which weights are kept."""
    watch, test = [KEEP], [{**KEEP, "dataset": "test"}]
    for change in ({"rl.num_test_iterations": 3}, {"rl.test_by_sampling": True}):
        before = tensor_stages(tensor_keys(callbacks=watch))
        assert changed(before, tensor_stages(tensor_keys(callbacks=watch, **change))) == {"test"}
        before = tensor_stages(tensor_keys(callbacks=test))
        after = tensor_stages(tensor_keys(callbacks=test, **change))
        assert changed(before, after) == {"train", "last train", "test"}
