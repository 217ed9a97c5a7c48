"""Our trainer in environments: time limits, episodes carried over, bit-for-bit resuming."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer


def parameters(dataset="CartPole-v1", section=None, rl=None, **changes):
    return HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset=dataset,
        gymnasium={"num_envs": 4, "num_test_episodes": 6, **(section or {})},
        agents={"_default": {"hidden_sizes": [16]}},
        rl={
            "frames_per_batch": 64,
            "minibatch_size": 32,
            "num_epochs": 2,
            "num_iterations": 6,
            "num_normalization_steps": 64,
            **(rl or {}),
        },
        **changes,
    )


def make(hyper_params):
    settings = ExperimentSettings()
    instance = build_scenario_instance(hyper_params, settings)
    return build_trainer(hyper_params, instance, settings)


CASES = {
    "batched": parameters(),
    "simulated": parameters(section={"implementation": "simulated"}),
    "continuous": parameters("Pendulum-v1", {"max_episode_steps": 20}),
    "several agents": parameters("mpe2.simple_adversary_v3", {"num_envs": 2}),
    "begin anew": parameters(section={"carry_episodes": False}),
    "simulators begin anew": parameters(
        section={"carry_episodes": False, "implementation": "simulated"}
    ),
    "own bodies, annealed": parameters(rl={"use_shared_body": False, "anneal_lr": True}),
}


QUICK = ("batched", "simulated", "continuous")


@pytest.mark.in_turn(1)
@pytest.mark.parametrize(
    "case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_however_training_is_cut_and_saved_it_is_the_same_bit_for_bit(case, tmp_path):
    """In one go in one trainer; and each iteration in a trainer that has read the state."""
    hyper_params = CASES[case]
    whole = make(hyper_params)
    whole.initial_state()
    expected = whole.run_iterations(0, 4)
    found = []
    state = make(hyper_params).initial_state()
    for iteration in range(4):
        state.save(tmp_path / str(iteration))
        trainer = make(hyper_params)
        trainer.state = trainer.State.load(tmp_path / str(iteration))
        found += trainer.run_iterations(iteration, iteration + 1)
        state = trainer.state
    assert state == whole.state
    assert found == expected
    assert bool(state.episodes) == hyper_params.gymnasium.carry_episodes
    assert whole.run_test() == trainer.run_test()


def test_tests_and_lookers_on_do_not_disturb_training():
    hyper_params = CASES["simulated"]
    plain, disturbed = make(hyper_params), make(hyper_params)
    for trainer in (plain, disturbed):
        trainer.initial_state()
    plain.run_iterations(0, 3)
    for iteration in range(3):
        disturbed.run_iterations(iteration, iteration + 1)
        disturbed.run_test("train")
        disturbed.run_test("test")
        _ = disturbed.state
    assert plain.state == disturbed.state


def test_episodes_go_on_over_the_end_of_an_iteration():
    """With 16 steps an iteration no episode of 30 could end otherwise."""
    trainer = make(parameters("Pendulum-v1", {"max_episode_steps": 30}))
    trainer.initial_state()
    metrics = trainer.run_iterations(0, 4)
    assert [entry["num_episodes"] for entry in metrics] == [0, 4, 0, 4]
    assert metrics[1]["mean_episode_length"] == 30
    mean = sum(entry["agent.mean_step_reward"] for entry in metrics[:2]) / 2
    assert metrics[1]["agent.mean_episode_reward"] == pytest.approx(30 * mean, rel=0.5)
    anew = make(parameters("Pendulum-v1", {"max_episode_steps": 30, "carry_episodes": False}))
    anew.initial_state()
    assert [entry["num_episodes"] for entry in anew.run_iterations(0, 4)] == [0] * 4


def collected(hyper_params):
    trainer = make(hyper_params)
    trainer.initial_state()
    with ExitStack() as stack:
        trainer._build_train_context(stack)
        rollouts = trainer.components.collector.collect(0)
        with torch.no_grad():
            return trainer, trainer.components.gae(rollouts)


def test_the_return_behind_a_time_limit_is_estimated_from_the_last_observation():
    """Every fourth step is the last before the limit; its target is r + γV(final observation)."""
    hyper_params = parameters(
        section={"max_episode_steps": 4},
        rl={"gamma": 0.9, "lmbda": 0.0, "normalize_observations": False},
    )
    trainer, rollouts = collected(hyper_params)
    cut = rollouts["next", "agents", "truncated"][..., 0]
    assert cut.sum() == 4 * 4
    assert rollouts["next", "done"].equal(cut)
    assert not rollouts["next", "terminated"].any()
    final = rollouts["next", "agents", "value"]
    assert rollouts["next", "agents", "value_known"][..., 0].equal(cut)
    target = rollouts["agents", "value_target"]
    torch.testing.assert_close(target[cut], 1 + 0.9 * final[cut])
    assert final[cut].any()
    # the final observation is not the first one of the next episode
    following = rollouts["agents", "value"][:, 4][cut[:, 3]]
    assert not torch.isclose(final[:, 3], following).any()
    # and it is what the simulator shows at the end of the same episode
    game = trainer.train_environment
    state = game.reset(rollouts["datapoint_id"][:, 0], rollouts["seed"][:, 0])
    for step in range(4):
        state["agents", "action"] = rollouts["agents", "action"][:, step]
        state = game.step(state)
    torch.testing.assert_close(trainer.combined_agents.values(state), final[:, 3])


def test_nothing_is_estimated_behind_a_true_end():
    """A pole that falls is worth its last reward and no more."""
    hyper_params = parameters(rl={"gamma": 0.9, "lmbda": 0.0, "frames_per_batch": 400})
    _, rollouts = collected(hyper_params)
    fallen = rollouts["next", "terminated"]
    assert fallen.any()
    target = rollouts["agents", "value_target"][fallen]
    torch.testing.assert_close(target, torch.ones_like(target))


RELAY = f"{Path(__file__).parents[1] / 'scenarios' / 'gymnasium' / 'relay.py'}:Relay"


def relay(*, truncate, **changes):
    section = {"environment_kwargs": {"truncate": truncate}}
    return parameters(RELAY, section, **changes)


def test_an_agent_that_is_truncated_while_others_go_on_is_worth_its_last_observation():
    rl = {"gamma": 0.9, "lmbda": 0.0, "normalize_observations": False}
    trainer, rollouts = collected(relay(truncate=True, rl=rl))
    cut = rollouts["next", "agents", "truncated"]
    leaves = rollouts["round"] == 0
    assert cut[..., 0].equal(leaves)
    assert cut[..., 1].equal(rollouts["round"] == 3)
    assert rollouts["next", "agents", "value_known"].equal(cut)
    final = rollouts["next", "agents", "value"]
    torch.testing.assert_close(rollouts["agents", "value_target"][cut], 1 + 0.9 * final[cut])
    # the one that continues sees its next observation in the next step
    after = rollouts["round"] == 1
    game = trainer.train_environment
    state = game.reset(rollouts["datapoint_id"][:, 0], rollouts["seed"][:, 0])
    state["agents", "action"] = rollouts["agents", "action"][:, 0]
    expected = trainer.combined_agents.values(game.step(state))
    torch.testing.assert_close(final[:, 0, 0], expected[:, 0])
    torch.testing.assert_close(rollouts["agents", "value"][after][:4, 1], expected[:, 1])


def test_an_agent_that_terminates_while_others_go_on_is_worth_its_last_reward():
    _, rollouts = collected(relay(truncate=False, rl={"gamma": 0.9, "lmbda": 0.0}))
    assert not rollouts["next", "agents", "value_known"][:, :-1].any()
    ends = torch.stack([rollouts["round"] == last for last in (0, 3)], -1)
    target = rollouts["agents", "value_target"][ends]
    torch.testing.assert_close(target, torch.ones_like(target))


@pytest.mark.parametrize("trainer", ["vanilla_ppo", "reinforce"])
@pytest.mark.parametrize("normalize", [True, False])
def test_all_trainers_learn_where_agents_leave_by_truncation(trainer, normalize):
    hyper_params = relay(truncate=True, rl={"normalize_observations": normalize})
    learner = make(hyper_params.replace({"trainer": trainer}))
    learner.initial_state()
    metrics = learner.run_iterations(0, 2)
    assert metrics[-1]["short.mean_episode_reward"] == 1.0
    assert metrics[-1]["long.mean_episode_reward"] == 4.0


def test_rewards_are_learned_from_scaled_and_reported_as_they_are():
    metrics = {}
    for scale in (1.0, 0.1):
        hyper_params = parameters(section={"reward_scale": scale, "max_episode_steps": 8})
        trainer, rollouts = collected(hyper_params)
        metrics[scale] = trainer._get_log_stats(rollouts)
        assert float(rollouts["next", "agents", "reward"].max()) == pytest.approx(scale)
    assert metrics[0.1]["agent.mean_episode_reward"] == metrics[1.0]["agent.mean_episode_reward"]
    assert trainer.run_test().metrics["agent.mean_episode_reward"] == 8


@pytest.mark.parametrize("implementation", ["batched", "simulated"])
def test_a_test_plays_every_initial_state_once(implementation):
    trainer = make(parameters(section={"implementation": implementation, "max_episode_steps": 9}))
    trainer.initial_state()
    result = trainer.run_test()
    assert result.table["datapoint_id"] == list(range(6))
    assert result.table["rounds"] == [9] * 6
    assert result.table["reward.agent"] == [9.0] * 6
    assert set(result.table) == {"datapoint_id", "rounds", "terminated", "reward.agent"}
    assert result.metrics["agent.mean_episode_reward"] == 9


def test_batched_and_simulated_training_are_the_same_but_for_rounding():
    """Equal seeds sample equal actions if logits agree except in the last digits."""
    one, two = (
        make(parameters(section={"implementation": kind})) for kind in ("batched", "simulated")
    )
    metrics = []
    for trainer in (one, two):
        trainer.initial_state()
        metrics.append(trainer.run_iterations(0, 2)[-1])
    for name, value in metrics[0].items():
        assert metrics[1][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


def test_what_protocols_of_messages_read_is_in_no_key():
    """Parameters of nip, which is not used here, must not change keys."""
    hyper_params = parameters()
    other = hyper_params.replace({"nip_protocol.max_message_rounds": 3})
    trainer = type(make(hyper_params))
    for stage in ("initial_state", "train", "test"):
        mine = trainer.stage_key_parameters(hyper_params, stage)
        assert mine == trainer.stage_key_parameters(other, stage)
        assert mine["interaction_protocol"] == "environment"
        assert "nip_protocol" not in mine


@pytest.mark.in_turn(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_cartpole_is_learned_in_some_twenty_thousand_frames(seed):
    """Every seed, and with much to spare: 500 after 10 to 20 iterations on seeds 0 to 4."""
    hyper_params = parameters(
        section={"num_envs": 8, "num_test_episodes": 50},
        rl={
            "frames_per_batch": 1024,
            "minibatch_size": 256,
            "num_epochs": 10,
            "num_iterations": 30,
            "lr": 0.002,
            "anneal_lr": True,
            "gamma": 0.98,
            "lmbda": 0.9,
            "max_grad_norm": 0.5,
            "use_shared_body": False,
            "normalize_observations": False,
            "loss_critic_type": "l2",
        },
        ppo={"critic_coef": 0.5, "entropy_eps": 0.0},
        seed=seed,
    ).replace({"agents._default.hidden_sizes": [64, 64]})
    trainer = make(hyper_params)
    trainer.initial_state()
    trainer.run_iterations(0, 30)
    assert trainer.run_test().metrics["agent.mean_episode_reward"] >= 475
