"""NashConv of last and average policies: golden values, snapshots, resumed runs, refusals."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.scenarios import build_scenario_instance
from trainers.compatibility import check_combination
from trainers.registry import build_trainer

pyspiel = pytest.importorskip("pyspiel", reason="the extra 'games' is not installed")

from ratchet.games.information_states import (  # noqa: E402
    expected_returns,
    information_states,
    nash_conv,
    policy_from,
    realisation_weights,
)

KUHN = pyspiel.load_game("kuhn_poker")
STATES = information_states(KUHN)


def parameters(dataset="open_spiel/kuhn_poker", callback=None, **changes):
    return HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset=dataset,
        gymnasium={"num_envs": 8, "num_test_episodes": 4},
        agents={"_default": {"hidden_sizes": [8]}},
        rl={
            "frames_per_batch": 64,
            "minibatch_size": 32,
            "num_epochs": 1,
            "num_iterations": 4,
            "lr": 0.01,
            "normalize_observations": False,
        },
        callbacks=[{"name": "nash_conv", **(callback or {})}],
    ).replace(changes)


def make(hyper_params):
    settings = ExperimentSettings()
    instance = build_scenario_instance(hyper_params, settings)
    return build_trainer(hyper_params, instance, settings)


def final_metrics(trainer):
    with ExitStack() as stack:
        trainer._build_test_context(stack)
        return trainer.run_test().metrics


def equilibrium(alpha=0.2):
    """Return Kuhn's equilibrium (1950); names are the card, then p for pass and b for bet."""
    bets = {"0": alpha, "1": 0, "2": 3 * alpha, "0pb": 0, "1pb": alpha + 1 / 3, "2pb": 1}
    bets |= {"0p": 1 / 3, "1p": 0, "2p": 1, "0b": 0, "1b": 1 / 3, "2b": 1}
    bet = torch.tensor([bets[name] for name in STATES.names], dtype=torch.float64)
    return torch.stack([1 - bet, bet], 1)


@pytest.mark.parametrize(("name", "count", "expected"), [
    ("kuhn_poker", 12, 11 / 12), ("leduc_poker", 936, 4.747222),
])  # fmt: skip
def test_uniform_play_has_the_known_nash_conv(name, count, expected):
    game = pyspiel.load_game(name)
    states = information_states(game)
    assert len(states.names) == count
    uniform = policy_from(states, torch.zeros(states.legal.shape, dtype=torch.float64))
    assert nash_conv(game, states, uniform) == pytest.approx(expected)


def test_the_equilibrium_of_kuhn_poker_has_none_and_its_value():
    assert nash_conv(KUHN, STATES, equilibrium()) == pytest.approx(0, abs=1e-12)
    returns = expected_returns(KUHN, STATES, equilibrium())
    assert returns == pytest.approx([-1 / 18, 1 / 18])


def test_an_average_is_to_play_a_snapshot_all_episode():
    """Also where one snapshot never comes. Averages of probabilities differ for player 0."""
    generator = torch.Generator().manual_seed(0)
    policies = [
        policy_from(STATES, torch.rand(12, 2, generator=generator, dtype=torch.float64) ** 4)
        for _ in range(2)
    ]
    policies[0][STATES.names.index("2")] = torch.tensor([0.0, 1.0]).double()
    mixed = policy_from(STATES, sum(realisation_weights(STATES, each) for each in policies))
    fixed = torch.full((12, 2), 0.5, dtype=torch.float64)
    for player in (0, 1):
        against = [torch.where((STATES.player == player).view(-1, 1), p, fixed)
                   for p in (*policies, mixed, sum(policies) / 2)]  # fmt: skip
        values = [expected_returns(KUHN, STATES, each)[0] for each in against]
        assert values[2] == pytest.approx((values[0] + values[1]) / 2)
        assert (values[3] == pytest.approx(values[2])) == (player == 1)
    assert mixed[STATES.names.index("2pb")].tolist() == pytest.approx(
        policies[1][STATES.names.index("2pb")].tolist()
    )


def test_snapshots_are_those_of_the_period_and_of_the_networks():
    hyper_params = parameters(callback={"start": 2, "period": 2, "measure_every": 3})
    trainer = make(hyper_params)
    trainer.initial_state()
    callback = trainer.callbacks._all["nash_conv"]
    policies, metrics = [], []
    for iteration in range(6):
        metrics += trainer.run_iterations(iteration, iteration + 1)
        policies.append(callback._policy())
    states = callback._states
    for row, player in enumerate(states.player.tolist()):
        agent = trainer.combined_agents.agents[f"player_{player}"]
        seen = torch.tensor(states.examples[row].information_state_tensor(player))
        logits = agent.policy(seen.unsqueeze(0)).detach().double()
        torch.testing.assert_close(policies[5][row], logits.softmax(-1)[0])
    weights = [realisation_weights(states, policies[index]) for index in (3, 5)]
    assert callback._weights.equal(weights[0] + weights[1])
    assert [("nash_conv.last" in each) for each in metrics] == [False, False, True] * 2
    last = nash_conv(KUHN, states, policies[2])
    assert metrics[2]["nash_conv.last"] == last
    assert "nash_conv.average" not in metrics[2], "no snapshot yet"
    final = final_metrics(trainer)
    assert final["nash_conv.last"] == nash_conv(KUHN, states, policies[5])
    average = policy_from(states, weights[0] + weights[1])
    assert final["nash_conv.average"] == nash_conv(KUHN, states, average)
    assert final["nash_conv.value"] == expected_returns(KUHN, states, average)[0]


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path):
    uninterrupted = make(parameters())
    uninterrupted.initial_state()
    uninterrupted.run_iterations(0, 4)
    state = make(parameters()).initial_state()
    for iteration in range(4):
        state.save(tmp_path / str(iteration))
        trainer = make(parameters())
        trainer.state = trainer.State.load(tmp_path / str(iteration))
        trainer.run_iterations(iteration, iteration + 1)
        state = trainer.state
    assert state == uninterrupted.state
    assert final_metrics(trainer) == final_metrics(uninterrupted)
    assert final_metrics(trainer)["nash_conv.average"] != final_metrics(trainer)["nash_conv.last"]


def test_the_average_spans_phases_and_reaches_their_test(tmp_path):
    first = make(parameters())
    first.initial_state()
    first.run_iterations(0, 2)
    first.state.save(tmp_path / "first")
    second = make(parameters(**{"ppo.entropy_eps": 0.5}))
    second.take_over(tmp_path / "first", {}, {})
    second.run_iterations(2, 4)
    second.state.save(tmp_path / "second")
    callback, states = second.callbacks._all["nash_conv"], first.callbacks._all["nash_conv"]._states
    assert callback._weights[states.parent < 0].sum(-1).tolist() == pytest.approx([4.0] * 9)
    test = make(parameters())
    test.take_over(tmp_path / "second", {}, {})
    average = policy_from(states, callback._weights)
    expected = nash_conv(KUHN, states, average)
    assert final_metrics(test)["nash_conv.average"] == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "CartPole-v1"}, "expected a game of OpenSpiel"),
        ({"dataset": "open_spiel/negotiation"}, "not a small sequential game"),
        ({"dataset": "open_spiel/liars_dice"}, "not a small sequential game"),
        ({"gymnasium.environment_kwargs": {"players": 3}}, "not a small sequential game"),
        ({"agents._default.recurrence": "gru"}, "recurrent"),
        ({"trainer": "torchrl_ppo"}, "act in turn"),
    ],
)
def test_it_refuses_what_it_cannot_measure(changes, message):
    check_combination(parameters())
    with pytest.raises(ParameterError, match=message):
        check_combination(parameters(**changes))
