"""Agents that remember: the same step by step and in rows, forgetful at ends, exactly resumed."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError, UnknownNameError
from ratchet.scenarios import build_scenario_instance
from tasks.tensordict.keys import ArmKeys
from trainers.compatibility import check_combination
from trainers.registry import build_trainer

HERE = Path(__file__).parent
CASES = {
    "gru": {"recurrence": "gru"},
    "lstm": {"recurrence": "lstm"},
    "custom": {"recurrence": "recall.py:Decaying"},
    "with a separate critic": {"recurrence": "lstm", "centralised_critic": True},
}


def parameters(agent=None, rl=None, dataset="recall.py:Recall", section=None, **changes):
    return HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset=dataset,
        gymnasium={"num_envs": 4, "num_test_episodes": 8, **(section or {})},
        agents={"_default": {"hidden_sizes": [16], "recurrent_size": 8, **(agent or {})}},
        rl={
            "frames_per_batch": 72,
            "minibatch_size": 36,
            "num_epochs": 2,
            "num_iterations": 4,
            "normalize_observations": False,
            **(rl or {}),
        },
        **changes,
    )


def make(hyper_params):
    settings = ExperimentSettings()
    instance = build_scenario_instance(hyper_params, settings, base_dir=HERE)
    return build_trainer(hyper_params, instance, settings)


def rollouts_of(trainer, count=1):
    with ExitStack() as stack:
        trainer._build_train_context(stack)
        return [trainer._collect(iteration) for iteration in range(count)]


@pytest.mark.parametrize("case", CASES)
def test_rows_of_steps_are_scored_as_they_were_played(case):
    """Also if an episode continues from the previous iteration, and if new ones start."""
    trainer = make(parameters(CASES[case]))
    trainer.initial_state()
    agents = trainer.combined_agents
    both = rollouts_of(trainer, 2)
    for rows in both:
        log_prob, _, value = agents.score(rows)
        torch.testing.assert_close(log_prob.view(4, 18, 1), rows["agents", "log_prob"])
        begins = rows["round"] == 0
        assert begins[:, 1:].any()
        assert not rows["agents", "memory"][begins].any()
        assert rows["agents", "memory"][~begins].any(-1).all()
        single = agents.score(rows.reshape(-1))  # each frame with its recurrent state
        torch.testing.assert_close(single[0], log_prob)
        torch.testing.assert_close(single[2], value)
    carried = ~begins[:, 0]
    assert carried.any()
    after = both[0]["next", "agents", "value"][:, -1]  # what is expected behind the cut
    torch.testing.assert_close(after[carried], rows["agents", "value"][:, 0][carried])
    assert (rows["agents", "memory"].shape[-1]) == {"gru": 8, "lstm": 16, "custom": 8}.get(case, 32)


def test_gradients_go_back_through_the_steps_of_an_episode_and_no_further():
    trainer = make(parameters({"recurrence": "gru"}))
    trainer.initial_state()
    rows = rollouts_of(trainer)[0]
    begin = int((rows["round"][0] == 0).nonzero()[1])
    seen = rows["agents", "observation"].clone().requires_grad_()
    rows["agents", "observation"] = seen
    logits = trainer.combined_agents.get_dist(rows)["agent"].logits.view(4, 18, -1)
    gradient = torch.autograd.grad(logits[0, begin - 1].square().sum(), seen, retain_graph=True)[0]
    reached = gradient[0].flatten(1).any(1)
    first = int(begin - 1 - rows["round"][0, begin - 1])
    assert reached[first:begin].all()
    assert not reached[:first].any()
    assert not reached[begin:].any()
    assert not gradient[1:].any()


@pytest.mark.parametrize("case", CASES)
def test_a_saved_training_goes_on_bit_for_bit(case, tmp_path):
    hyper_params = parameters(CASES[case])
    whole = make(hyper_params)
    whole.initial_state()
    expected = whole.run_iterations(0, 3)
    state, found = make(hyper_params).initial_state(), []
    for iteration in range(3):
        state.save(tmp_path / str(iteration))
        trainer = make(hyper_params)
        trainer.state = trainer.State.load(tmp_path / str(iteration))
        found += trainer.run_iterations(iteration, iteration + 1)
        state = trainer.state
    assert (found, state) == (expected, whole.state)
    assert state.episodes["train"]["agents.memory"].any()
    assert whole.run_test() == trainer.run_test()


def test_several_agents_with_one_network_remember_each_its_own():
    hyper_params = parameters(
        {"recurrence": "gru", "shared_model_group": "all", "centralised_critic": True},
        dataset="mpe2.simple_spread_v3",
        section={"environment_kwargs": {"N": 2}, "num_envs": 2},
    )
    trainer = make(hyper_params)
    trainer.initial_state()
    rows = rollouts_of(trainer)[0]
    memory = rows["agents", "memory"]
    assert memory.shape == (2, 36, 2, 16)
    assert not torch.equal(memory[:, 5, 0], memory[:, 5, 1])
    log_prob, _, _ = trainer.combined_agents.score(rows)
    torch.testing.assert_close(log_prob.view(2, 36, 2), rows["agents", "log_prob"])
    trainer.run_iterations(0, 1)


def test_agents_that_remember_play_with_others_that_do_not(tmp_path):
    hyper_params = parameters(
        {"recurrence": "gru"}, dataset="mpe2.simple_adversary_v3", section={"num_envs": 2}
    ).replace({"agents.agent_0": {"recurrence": None}, "agents.agent_1": {"is_random": True}})
    whole, cut = make(hyper_params), make(hyper_params)
    whole.initial_state()
    whole.run_iterations(0, 2)
    cut.initial_state()
    cut.run_iterations(0, 1)
    cut.state.save(tmp_path)
    cut.state = cut.State.load(tmp_path)
    cut.run_iterations(1, 2)
    assert cut.state == whole.state
    memory = whole.state.episodes["train"]["agents.memory"]  # adversary, agent_0, agent_1
    assert memory[:, 0].any()
    assert not memory[:, 1:].any()


@pytest.mark.slow
@pytest.mark.parametrize(("recurrence", "low", "high"), [(None, -0.7, 0.7), ("gru", 0.95, 1.0)])
def test_what_was_shown_is_said_later_by_those_who_remember_alone(recurrence, low, high):
    hyper_params = parameters(
        {"recurrence": recurrence, "recurrent_size": 16},
        {
            "frames_per_batch": 512,
            "minibatch_size": 128,
            "num_epochs": 4,
            "num_iterations": 10,
            "lr": 0.01,
            "gamma": 0.99,
        },
        section={"num_envs": 16, "num_test_episodes": 40},
    )
    trainer = make(hyper_params)
    trainer.initial_state()
    trainer.run_iterations(0, 10)
    assert low <= trainer.run_test().metrics["agent.mean_episode_reward"] <= high


def test_who_learns_from_single_frames_refuses_agents_that_remember():
    remembers = parameters({"recurrence": "gru"})
    check_combination(remembers, HERE)
    alone = remembers.replace({"trainer": "reinforce", "reinforce.use_advantage_and_critic": True})
    with pytest.raises(ParameterError, match=r"agents\._default\.recurrence.*'reinforce'"):
        check_combination(alone, HERE)
    with pytest.raises(ParameterError, match=r"recurrence.*compile_losses"):
        check_combination(remembers.replace({"rl.compile_losses": True}), HERE)


def test_the_code_of_a_custom_memory_enters_keys_and_its_path_does_not(tmp_path):
    copies = [tmp_path / "decaying.py", tmp_path / "there" / "decaying.py"]
    (tmp_path / "there").mkdir()
    for copy in copies:
        shutil.copy(HERE / "recall.py", copy)
    here, there, built_in = (
        ArmKeys("main", parameters({"recurrence": name}), base_dir=str(HERE)).initial_state()
        for name in (*(f"{copy}:Decaying" for copy in copies), "gru")
    )
    assert here.key == there.key
    assert "decaying" in here.fingerprint.modules
    assert [call.parameters["agents"]["_default"]["recurrence"] for call in (here, built_in)] == [
        "Decaying",
        "gru",
    ]
    with pytest.raises(UnknownNameError, match=r"agents\.agent\.recurrence: unknown 'gro'.*'gru'"):
        make(parameters({"recurrence": "gro"}))
