"""Keys depend only on the inputs that determine a stage's result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.parameters.hyper_parameters import HyperParameters
from tasks.stages.sequence import RecordedStageLayout, flatten_steps, recorded_calls
from tasks.tensordict.keys import ArmKeys

FOLDER = Path(__file__).parent.parent / "flows"


def make_keys(arm="main", pins=None, base_dir=FOLDER, **changes):
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer={"module_path": "tiny_trainer.py", "class_name": "TinyTrainer"},
        dataset="generated",
        pretrain_agents=True,
    ).replace({"rl.num_iterations": 7, **changes})
    return ArmKeys(arm, hyper_params, base_dir=str(base_dir), pins=pins)


@pytest.fixture(scope="module")
def keys():
    return make_keys()


def all_keys(keys):
    return {
        "data": keys.build_scenario().key,
        "initial": keys.initial_state().key,
        "pretrain": keys.pretrain("prover").key,
        "first": keys.pretrained_state().key,
        "train": keys.state_key(5),
        "test": keys.test().key,
    }


def changed(keys, **changes):
    old, new = all_keys(keys), all_keys(make_keys(**changes))
    return {name for name in old if old[name] != new[name]}


def test_all_keys_differ_and_do_not_depend_on_the_arms_name(keys):
    assert len(set(all_keys(keys).values())) == 6
    assert all_keys(make_keys(arm="other")) == all_keys(keys)


def test_each_parameter_changes_stages_that_read_it_and_later_ones(keys):
    assert changed(keys, **{"rl.num_test_iterations": 3}) == {"test"}
    assert changed(keys, **{"rl.num_iterations": 9}) == {"test"}
    assert changed(keys, **{"rl.lr": 0.1}) == {"train", "test"}
    assert changed(keys, seed=1) == set(all_keys(keys))
    assert changed(keys, **{"graph_isomorphism.num_pairs": 40}) == set(all_keys(keys))


def test_a_raised_stage_version_changes_the_stage_and_those_that_read_it(keys, monkeypatch):
    def changed_by(stage):
        kinds = [
            replace(kind, version=kind.version + 1) if kind.name == stage else kind
            for kind in ArmKeys.family_kinds
        ]
        with monkeypatch.context() as patch:
            patch.setattr(ArmKeys, "family_kinds", kinds)
            return changed(keys)

    assert changed_by("test") == {"test"}
    assert changed_by("train") == {"train", "test"}
    assert changed_by("pretrain") == {"pretrain", "first", "train", "test"}
    assert changed_by("build_scenario") == set(all_keys(keys))


def test_repetitions_share_data_with_a_separate_seed(keys):
    own = {"graph_isomorphism.dataset_seed": 0}
    once, again = (make_keys(seed=seed, **own) for seed in (1, 2))
    assert once.build_scenario().key == again.build_scenario().key != keys.build_scenario().key
    assert once.initial_state().key != again.initial_state().key
    assert once.test().key != again.test().key


def test_the_key_after_k_iterations_does_not_depend_on_stage_boundaries(keys):
    assert keys.train(0, 5).key == keys.train(4, 5).key == keys.state_key(5)
    assert keys.train(0, 5).key != keys.train(0, 6).key
    assert keys.train(4, 5).label == "train main 4-5"
    assert keys.pretrain("prover").name == "pretrain-prover"
    assert (keys.test().name, keys.test("hard").name) == ("test", "test-hard")
    assert keys.test().key != keys.test("hard").key


def test_keys_do_not_contain_paths(keys, tmp_path):
    (tmp_path / "tiny_trainer.py").write_text((FOLDER / "tiny_trainer.py").read_text())
    assert all_keys(make_keys(base_dir=tmp_path)) == all_keys(keys)


def test_later_stages_are_based_on_pinned_states(keys):
    own = {("train", i): keys.state_key(i) for i in (3, 6)}
    assert make_keys(pins=own).state_key(7) == keys.state_key(7)
    foreign = {("train", 3): "0" * 64}
    other = make_keys(pins=foreign)
    assert other.state_key(3) == "0" * 64
    assert other.state_key(7) != keys.state_key(7)
    again = make_keys(pins={**foreign, ("train", 6): other.state_key(6)})
    assert again.state_key(7) == other.state_key(7)


def test_recorded_stages_are_found_for_any_stage_boundaries(keys):
    places = [("train", 5), ("train", 2), ("pretrain-prover", 0), ("unheard-of", 0)]
    calls = recorded_calls(keys, [*places, ("rollouts", 2), ("test-hard", 7)])
    assert [place for place in places if place in calls] == places[:3]
    assert calls["train", 5].key == keys.state_key(5) != keys.state_key(6)
    assert calls["train", 5].start_iteration == 2
    assert calls["train", 7].start_iteration == 5, "the sequence continues to the end"
    assert calls["pretrain-prover", 0].key == keys.pretrain("prover").key
    assert calls["test-hard", 7].key == keys.test("hard").key
    assert ("test", 7) not in calls
    assert ("rollouts", 2) not in calls, "this trainer has no rollouts"


def test_testing_both_ways_adds_tests_and_keeps_existing_keys():
    """Each stage equals that of the parameter with only this value."""
    networks = {"trainer": "vanilla_ppo", "pretrain_agents": False}
    found = {
        way: make_keys(**networks, **{"rl.test_by_sampling": way}) for way in (False, True, "both")
    }
    both = found["both"]
    layout = RecordedStageLayout([("test", 7), ("test-wl2", 7), ("test-wl2-by-sampling", 7)])
    calls = {call.name: call for call in flatten_steps(both.tests(layout))}
    assert list(calls) == ["test", "test-by-sampling", "test-wl2", "test-wl2-by-sampling"]
    assert calls["test"].key == found[False].test().key
    assert calls["test-by-sampling"].key == found[True].test().key
    assert calls["test-wl2-by-sampling"].key == found[True].test("wl2").key
    assert [call.name for call in flatten_steps(found[False].tests(layout))] == ["test", "test-wl2"]
    assert both.state_key(7) == found[False].state_key(7)


def test_trainers_without_action_sampling_are_tested_once():
    keys = make_keys(trainer="solo_agent", **{"rl.test_by_sampling": "both"})
    assert [c.name for c in flatten_steps(keys.tests(RecordedStageLayout([("test", 7)])))] == [
        "test"
    ]


IMITATING = {"trainer": "vanilla_ppo", "imitation.agents": ["prover"]}


def calls_of(keys):
    return {call.name: call for call in flatten_steps(keys.stages(RecordedStageLayout([])))}


def test_imitation_is_between_pretraining_and_training():
    with_both = calls_of(make_keys(**IMITATING))
    assert list(with_both)[-4:] == ["pretrained_state", "imitate-prover", "imitated_state", "train"]
    alone = calls_of(make_keys(**IMITATING, pretrain_agents=False))
    assert list(alone)[1:] == ["initial_state", "imitate-prover", "imitated_state", "train"]
    for calls in (with_both, alone):
        before = list(calls.values())[-4]
        assert calls["imitate-prover"].inputs["state"] == before.key
        assert calls["imitated_state"].inputs["imitated.prover"] == calls["imitate-prover"].key
        assert calls["train"].inputs["base"] == calls["imitated_state"].key


def test_parameters_of_imitation_change_it_and_later_stages():
    def keys_of(**changes):
        return {n: c.key for n, c in calls_of(make_keys(**IMITATING, **changes)).items()}

    def changed(**changes):
        old, new = keys_of(), keys_of(**changes)
        return {name for name in old if old[name] != new[name]}

    later = {"imitate-prover", "imitated_state", "train"}
    assert changed(**{"imitation.lr": 0.1}) == later
    assert changed(**{"imitation.source": "run:other"}) == set(), "keys depend on the rollouts"
    assert changed(**{"rl.lr": 0.1}) == {"train"}
    assert changed(**{"solo_agent.num_epochs": 3}) >= later
    keys = make_keys(**IMITATING)
    keys.imitated_rollouts = ("0" * 64,)
    new = {name: call.key for name, call in calls_of(keys).items()}
    assert {name for name, key in keys_of().items() if new[name] != key} == later


def test_keys_without_imitation_do_not_contain_it():
    """Stages stored before imitation existed must remain cache hits."""
    for changes in ({"trainer": "vanilla_ppo"}, {}):
        calls = calls_of(make_keys(**changes)) | {"test": make_keys(**changes).test()}
        assert not any("imitat" in name for name in calls)
        assert not any("imitation" in call.parameters for call in calls.values())
