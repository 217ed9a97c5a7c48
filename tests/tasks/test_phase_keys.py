"""Each phase's stages have separate keys: later phases do not change earlier keys."""

from __future__ import annotations

from ratchet.store.keys import canonical_json
from tasks.stages.sequence import RecordedStageLayout, flatten_steps
from tests.tasks.phased import PHASES, POOLED, keys_of, parameters

_STOPS = [("train", iteration) for iteration in (2, 4, 6, 8)]


def stage_keys(phases=None, **changes):
    """Return the keys of all stages by name and iteration."""
    hyper_params = parameters(**({} if phases is None else {"phases": phases}), **changes)
    calls = flatten_steps(keys_of(hyper_params).stages(RecordedStageLayout([*_STOPS, ("test", 8)])))
    return {(call.name, call.iteration): call.key for call in calls}


def changed(**changes):
    """Return the stages whose keys are changed."""
    before, after = stage_keys(), stage_keys(**changes)
    return [place for place in before if before[place] != after.get(place)]


def test_each_phase_starts_with_a_separate_state_and_its_end_splits_training():
    places = list(stage_keys())
    assert places[places.index(("pretrained_state", 0)) + 1 :] == [
        ("phase_state-alone", 0),
        ("train", 2),
        ("train", 3),
        ("phase_state-answer", 3),
        ("train", 4),
        ("train", 5),
        ("phase_state-joint", 5),
        ("train", 6),
        ("train", 8),
        ("test", 8),
    ]
    assert len(set(stage_keys().values())) == len(places)


def test_a_change_of_a_phase_changes_its_stages_and_later_ones():
    joint = [("phase_state-joint", 5), ("train", 6), ("train", 8), ("test", 8)]
    answer = [("phase_state-answer", 3), ("train", 4), ("train", 5)]
    assert changed(**{"phases__joint__changes__rl__lr": 0.1}) == joint
    assert changed(**{"phases__joint__learners": ["prover"]}) == joint
    assert changed(**{"phases__answer__changes__rl__gamma": 0.5}) == [*answer, *joint]
    assert changed(**{"phases__alone__max_message_rounds": 4})[0] == ("phase_state-alone", 0)


def test_more_iterations_extend_the_last_phase_but_restart_an_annealed_one():
    assert changed(**{"phases__joint__num_iterations": 9}) == [("test", 8)]
    annealed = changed(**{"phases__answer__num_iterations": 4})
    assert annealed[0] == ("phase_state-answer", 3), "its rate depends on its number of iterations"
    assert ("train", 3) not in annealed


def test_the_name_of_a_phase_does_not_enter_keys():
    renamed = stage_keys(**{"phases__alone__name": "first"})
    assert renamed.pop(("phase_state-first", 0)) == stage_keys()["phase_state-alone", 0]
    assert renamed.items() <= stage_keys().items()


def test_a_fork_builds_on_its_pinned_stages():
    plain, pinned = keys_of(), keys_of()
    pinned.pins = {("train", 3): "1" * 64, ("train", 4): "2" * 64}
    assert pinned.state_key(4) == "2" * 64
    assert pinned.beginning_key(3) == pinned.phase_state(pinned.phases[1]).key
    assert pinned.phase_state(pinned.phases[1]).inputs["state"] == "1" * 64
    assert pinned.train(4, 5).inputs["base"] == "2" * 64, "the pinned stage is of different code"
    assert pinned.state_key(8) != plain.state_key(8)
    own = keys_of()
    own.pins = {("train", i): plain.state_key(i) for i in (3, 4, 6)}
    assert own.state_key(8) == plain.state_key(8)


def test_a_phase_reads_the_states_of_its_pool_and_of_agents_that_start_again():
    keys = keys_of(parameters([PHASES[0], {**PHASES[1], "fresh": ["prover"]}, POOLED[2]]))
    _, answer, joint = keys.phases
    assert keys.phase_state(answer).inputs["first"] == keys.state_key(0)
    inputs = keys.phase_state(joint).inputs
    assert inputs.keys() == {"data", "state", "pool.prover.4", "pool.prover.5"}
    assert inputs["pool.prover.4"] == keys.state_key(4)
    assert keys.boundaries == (3, 4, 5, 8)


def test_keys_without_phases_do_not_contain_them():
    hyper_params = parameters(phases=None, rl__num_iterations=8)
    assert "phases" not in hyper_params.to_dict()
    assert "played_message_rounds" not in hyper_params.to_dict()["nip_protocol"]
    calls = list(
        flatten_steps(keys_of(hyper_params).stages(RecordedStageLayout([*_STOPS, ("test", 8)])))
    )
    assert [call.name for call in calls] == [
        "build_scenario",
        "initial_state",
        "pretrain-prover",
        "pretrain-verifier",
        "pretrained_state",
        *["train"] * 4,
        "test",
    ]
    train = calls[5]
    assert train.inputs.keys() == {"data", "base", "base_iteration"}
    for call in calls:
        for word in (b"phase", b"played_message_rounds", b"replaced", b"fresh"):
            assert word not in canonical_json(call.parameters)


def test_the_first_phase_does_not_enter_earlier_keys():
    without = keys_of(parameters(phases=None, rl__num_iterations=8))
    assert keys_of().pretrained_state().key == without.pretrained_state().key
    assert keys_of().build_scenario().key == without.build_scenario().key


def test_rollouts_of_an_iteration_depend_on_its_phase():
    keys = keys_of()
    names = [*["alone"] * 3, *["answer"] * 2, *["joint"] * 3]
    assert [keys.phase_from(iteration).name for iteration in range(8)] == names
    assert [keys.phase_before(iteration).name for iteration in range(1, 9)] == names
    assert keys.rollouts(3).inputs["state"] == keys.phase_state(keys.phases[1]).key
    assert keys.rollouts(4).inputs["state"] == keys.state_key(4)
    assert keys.rollouts(3).parameters["rl"]["anneal_lr"] is True
