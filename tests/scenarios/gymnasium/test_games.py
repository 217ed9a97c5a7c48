"""OpenSpiel's games and PettingZoo's turn-based ones by name: tables, replays, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import CustomCodeError, MissingPackageError, ParameterError, UnknownNameError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium.catalogue import find_game, needed_packages
from ratchet.scenarios.gymnasium.environment import BatchedEnvironment, SimulatedEnvironment
from trainers.compatibility import check_combination
from trainers.registry import build_trainer

pyspiel = pytest.importorskip("pyspiel", reason="the extra 'games' is not installed")

from ratchet.games.open_spiel import draw, tensor_of  # noqa: E402
from ratchet.scenarios.gymnasium.game_tables import build_table  # noqa: E402

HERE = Path(__file__).parent
CUSTOM = f"{HERE.parents[2]}/examples/language/custom_game.py:HighCard"
CONNECT_FOUR = "pettingzoo.classic.connect_four_v3"
GAMES = {
    "open_spiel/kuhn_poker": {},
    "open_spiel/leduc_poker": {},
    "open_spiel/liars_dice": {},
    "open_spiel/negotiation": {},
    "open_spiel/goofspiel": {"players": 3},
    CONNECT_FOUR: {},
    CUSTOM: {},
}


def parameters(dataset, trainer="vanilla_ppo", **section):
    kwargs = {"environment_kwargs": GAMES.get(dataset, {})} | section
    return HyperParameters(
        scenario="gymnasium",
        trainer=trainer,
        dataset=dataset,
        gymnasium={"num_envs": 4, "num_test_episodes": 4, **kwargs},
        agents={"_default": {"hidden_sizes": [8]}},
        rl={
            "frames_per_batch": 96,
            "minibatch_size": 48,
            "num_epochs": 1,
            "num_iterations": 1,
            "normalize_observations": False,
        },
    )


def build(dataset, **section):
    hyper_params = parameters(dataset, **section)
    return build_scenario_instance(hyper_params, ExperimentSettings(), base_dir=HERE)


def random_legal(td, generator):
    """Return random legal actions [E, A, 1], any for agents that do not act."""
    legal = td["agents", "legal"].double()
    weights = torch.where(legal.any(-1, keepdim=True), legal, 1.0).flatten(0, 1)
    return torch.multinomial(weights, 1, generator=generator).view(*legal.shape[:2], 1)


def assert_equal(one, other):
    keys = set(one.keys(True, True)) & set(other.keys(True, True))
    assert {("agents", "observation"), ("agents", "active"), ("agents", "legal")} <= keys
    for key in keys:
        assert one[key].equal(other[key]), key


@pytest.mark.parametrize("dataset", GAMES)
def test_games_are_played_and_learned_by_name(dataset):
    hyper_params, settings = parameters(dataset), ExperimentSettings()
    trainer = build_trainer(hyper_params, build_scenario_instance(hyper_params, settings), settings)
    trainer.initial_state()
    metrics = trainer.run_iterations(0, 1)[0]
    assert metrics["num_episodes"] > 0
    assert metrics[f"{trainer.combined_agents.agent_names[0]}.entropy"] > 0
    assert len(trainer.run_test().table["rounds"]) == 4
    kind = BatchedEnvironment if "_poker" in dataset else SimulatedEnvironment
    assert isinstance(trainer.train_environment, kind)


@pytest.mark.parametrize("count", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dataset", GAMES)
def test_every_prefix_of_an_episode_is_restored_by_replay(dataset, count):
    game = build(dataset, implementation="auto").train_environment.own()
    generator = torch.Generator().manual_seed(0)
    td = game.reset(torch.arange(count), torch.arange(count))
    has_ended = torch.zeros(count, dtype=torch.bool)
    while not has_ended.all():
        saved = game.save_episodes(td)
        mirror = game.own()
        restored = mirror.restore_episodes(saved)
        assert_equal(td, restored)
        action = random_legal(td, generator)
        after = [state.set(("agents", "action"), action) for state in (td, restored)]
        td, other = game.step(after[0]), mirror.step(after[1])
        assert_equal(td, other)
        has_ended |= td["done"]
        ids = torch.arange(int(td["done"].sum()))
        td = game.reset_where(td, td["done"], ids + 20, ids)


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker"])
def test_a_table_is_the_game_in_every_history(name):
    tree = build_table(f"open_spiel/{name}", {}).tree
    game = pyspiel.load_game(name)
    pairs, visited = [(0, game.new_initial_state())], 0
    while pairs:
        node, state = pairs.pop()
        visited += 1
        assert tree.is_terminal[node] == state.is_terminal()
        assert tree.is_chance[node] == state.is_chance_node()
        assert tree.returns[node].tolist() == pytest.approx(state.returns())
        if state.is_chance_node():
            steps = torch.tensor([p for _, p in state.chance_outcomes()]).double()
            for middle, (outcome, _) in zip(
                steps.cumsum(0) - steps / 2, state.chance_outcomes(), strict=True
            ):
                index = int((middle >= tree.threshold[node]).sum())
                pairs.append((int(tree.child[node, index]), state.child(outcome)))
            continue
        for player, seen in enumerate(tree.observation[node]):
            assert seen.tolist() == tensor_of(state, player).tolist()
        player = state.current_player()
        for each in range(2):
            legal = tree.legal[node, each].nonzero().flatten().tolist()
            assert legal == ([] if state.is_terminal() else state.legal_actions(each))
            assert tree.acting[node, each] == (each == player)
        pairs += [(int(tree.child[node, a]), state.child(a)) for a in state.legal_actions()]
    assert visited == len(tree.child)


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker"])
def test_a_table_plays_the_episodes_of_the_simulator(name):
    kinds = ("batched", "simulated")
    games = [build(f"open_spiel/{name}", implementation=k).train_environment for k in kinds]
    generator = torch.Generator().manual_seed(1)
    states = [game.reset(torch.arange(100), torch.arange(100)) for game in games]
    started = 100
    for _ in range(12):
        assert_equal(*states)
        action = random_legal(states[0], generator)
        states = [
            game.step(td.set(("agents", "action"), action))
            for game, td in zip(games, states, strict=True)
        ]
        assert_equal(*states)
        ended = states[0]["done"]
        ids = torch.arange(int(ended.sum())) + started
        started += len(ids)
        states = [
            game.reset_where(td, ended, ids, ids) for game, td in zip(games, states, strict=True)
        ]


def test_chance_is_drawn_as_splitmix_does():
    seed, number, mask = 1234567, 5, 2**64 - 1
    mixed = ((seed * 2**20 + number + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    expected = ((mixed ^ (mixed >> 31)) >> 11) / 2**53
    assert draw(torch.tensor([seed]), torch.tensor([number])).item() == expected
    cards = build("open_spiel/kuhn_poker", num_train_seeds=6000).train_environment
    observations = cards.reset(torch.arange(6000), torch.arange(6000))["agents", "observation"]
    counts = observations.flatten(1).unique(dim=0, return_counts=True)[1]
    assert len(counts) == 6  # hands of two cards of three
    assert (counts - 1000).abs().max() < 120


@pytest.mark.parametrize("dataset", [CONNECT_FOUR, "cycles.py:Hidden"])
def test_connect_four_pays_both_and_masks_full_columns(dataset):
    game = build(dataset).train_environment
    td = game.reset(torch.arange(2), torch.arange(2))
    for move in range(7):
        assert td["agents", "active"].flatten(1).int().argmax(-1).tolist() == [move % 2] * 2
        columns = torch.tensor([move % 2, 0 if move < 6 else 1])  # player_0 stacks four; a full one
        assert td["agents", "legal"][1, move % 2, 0] == (move < 6)
        td["agents", "action"] = columns.view(2, 1, 1).expand(2, 2, 1)
        td = game.step(td)
    assert td["agents", "reward"].tolist() == [[1.0, -1.0], [0.0, 0.0]]
    assert td["done"].tolist() == [True, False]
    assert td["terminated"].tolist() == [True, False]
    assert not td["agents", "active"][0].any()


def test_agents_in_turn_are_paid_at_every_step_until_they_leave():
    game = build("cycles.py:Paid").train_environment
    td = game.reset(torch.arange(1), torch.arange(1))
    acting, paid = [], []
    while not td["done"]:
        assert ("agents", "legal") not in td.keys(True)
        acting.append(game.spaces.names[td["agents", "active"].flatten().int().argmax()])
        td = game.step(td.set(("agents", "action"), torch.zeros(1, 3, 1, dtype=torch.int64)))
        paid.append(td["agents", "reward"][0].tolist())
    assert "".join(acting) == "abcabcbc"
    assert paid[:4] == [[1, 10, 0], [0, 1, 10], [10, 0, 1], [1, 10, 0]]
    assert paid[4:] == [[0, 1, 10], [0, 10, 1], [0, 1, 10], [0, 10, 1]]
    assert td["agents", "episode_reward"].tolist() == [[12.0, 43.0, 33.0]]


@pytest.mark.parametrize(
    ("dataset", "changes", "error", "message"),
    [
        ("open_spiel/kun_poker", {}, UnknownNameError, "Did you mean 'kuhn_poker'"),
        ("open_spiel/kuhn_poker", {"gymnasium.environment_kwargs": {"player": 2}}, ParameterError,
         "Did you mean 'players'"),
        ("open_spiel/kuhn_poker", {"gymnasium.environment_kwargs": {"players": 99}},
         ParameterError, "players"),
        ("open_spiel/negotiation", {"gymnasium.environment_kwargs": {"rng_seed": 1}},
         ParameterError, "each match's seed sets it"),
        ("open_spiel/goofspiel", {"gymnasium.implementation": "batched"}, ParameterError,
         "simultaneous moves"),
        ("open_spiel/kuhn_poker", {"gymnasium.wrappers": ["FlattenObservation"]}, ParameterError,
         "expected none"),
        ("open_spiel/kuhn_poker", {"gymnasium.num_test_videos": 1}, ParameterError,
         "is not a gymnasium or PettingZoo"),
        ("open_spiel/kuhn_poker", {"trainer": "torchrl_ppo"}, ParameterError, "act in turn"),
        (CONNECT_FOUR, {"trainer": "torchrl_ppo"}, ParameterError, "act in turn"),
        ("cycles.py:Hidden", {"trainer": "torchrl_ppo"}, ParameterError, "act in turn"),
        (CONNECT_FOUR, {"gymnasium.environment_kwargs": {"size": 8}}, ParameterError, "size"),
    ],
)  # fmt: skip
def test_games_refuse_what_does_not_fit(dataset, changes, error, message):
    hyper_params = parameters(dataset).replace(changes)
    with pytest.raises(error, match=message):
        check_combination(hyper_params, HERE)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("observation_size = 9", "observation_size = 0", "HighCard has observation_size=0"),
        ("np.eye(9,", "np.eye(10,", r"observe\('left'\): got the shape \(10,\), expected \(9,\)"),
        ("len(ACTIONS)", "1", r"legal\('left'\): got the actions \[0, 1\], expected 0 to 0"),
    ],
)
def test_a_custom_game_for_networks_is_checked(before, after, message, tmp_path):
    text = Path(CUSTOM.partition(":")[0]).read_text()
    assert before in text
    (tmp_path / "game.py").write_text(text.replace(before, after))
    hyper_params = parameters("game.py:HighCard")

    def begin():
        simulator = find_game(hyper_params, tmp_path).make()
        simulator.reset(0)
        simulator.turn()

    with pytest.raises((ParameterError, CustomCodeError), match=message):
        begin()


def test_a_missing_package_is_named(monkeypatch):
    assert needed_packages(parameters("open_spiel/kuhn_poker")) == ["gymnasium", "pyspiel"]
    assert needed_packages(parameters(CONNECT_FOUR))[1] == "pettingzoo"
    monkeypatch.setattr("ratchet.lazy.is_installed", lambda package: package != "pyspiel")
    with pytest.raises(MissingPackageError, match=r"ratchet-experiments\[games\]"):
        find_game(parameters("open_spiel/kuhn_poker"))
    monkeypatch.setattr("ratchet.lazy.is_installed", lambda package: package != "gymnasium")
    with pytest.raises(MissingPackageError, match=r"custom_game.*gymnasium"):
        find_game(parameters(CUSTOM))
