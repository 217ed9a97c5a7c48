"""Agents of different runs play each other as the tests of their runs do."""

from __future__ import annotations

import json
import math
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from flows import play_runs, run_experiment
from flows.runs.result import ExperimentResult
from flows.sweeps.crossplay import Crossplay, _check_rules, _points, resolve_pairs
from flows.sweeps.exploit import read_test_table
from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.experiment_files.base_run import find_saved_state
from ratchet.statistics import Estimate
from ratchet.tracking.run_folder import RunFolder
from trainers.compatibility import check_combination
from trainers.language.state import LanguageState

NETWORKS: dict[str, Any] = {
    "scenario": "gymnasium",
    "trainer": "vanilla_ppo",
    "dataset": "open_spiel/kuhn_poker",
    "gymnasium": {"num_envs": 8, "num_test_episodes": 40},
    "agents": {"_default": {"hidden_sizes": [8], "shared_model_group": "players"}},
    "rl": {"num_iterations": 2, "frames_per_batch": 128, "minibatch_size": 64, "lr": 0.01},
}
NETWORKS["rl"] |= {"normalize_observations": False, "test_by_sampling": True}
MODELS: dict[str, Any] = {
    "scenario": "language_task",
    "trainer": "grpo",
    "dataset": "open_spiel/kuhn_poker",
    "language_task": {"num_train": 16, "num_test": 40},
    "agents": {
        "_default": {
            "max_tokens": 1,
            "shared_model_group": "players",
            "small_model": {"d_model": 8, "layers": 1, "heads": 2, "context_length": 32},
            "warm_up": {"num_steps": 30, "lr": 0.01, "batch_size": 32},
        }
    },
    "rl": {"num_iterations": 2},
    "language": {"tasks_per_step": 4, "group_size": 4, "optimizer": {"lr": 0.01}},
    "grpo": {"advantage_scale": "none"},
}
SEATS = ("player_0", "player_1")
APART = {
    "agents._default.shared_model_group": None,
    "agents._default.small_model.d_model": 16,
    "agents._default.max_tokens": 2,
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ExperimentSettings:
    pytest.importorskip("pyspiel", reason="needs OpenSpiel")
    folder = tmp_path_factory.mktemp("crossplay")
    paths = {"home": str(folder / "home"), "runs": str(folder / "runs")}
    return ExperimentSettings(**paths, tracking=False, progress="none", retries=0)


@pytest.fixture(scope="module")
def networks(settings: ExperimentSettings) -> ExperimentResult:
    return run_experiment(NETWORKS, settings, arms={"other": {"rl.lr": 0.1}}, name="networks")


@pytest.fixture(scope="module")
def models(settings: ExperimentSettings) -> ExperimentResult:
    return run_experiment(MODELS, settings, arms={"other": APART}, name="models")


def arms_of(run: ExperimentResult) -> list[str]:
    return [run.run_id, f"{run.run_id}:other"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["networks", "models"])
def test_pairs_play_as_the_tests_of_their_runs(
    kind: str, settings: ExperimentSettings, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(kind)
    first = play_runs(arms_of(run), None, settings)
    second = play_runs(arms_of(run), "player_1", settings)
    assert first.agent == "player_0"
    for number, arm in enumerate(("main", "other")):
        _, columns = read_test_table(RunFolder(run.folder), "player_0", arm)
        assert first.tables[number][number] == columns, f"{arm} plays itself as in its own test"
    for row, column in product(range(2), repeat=2):
        columns = first.tables[row][column]
        assert second.tables[column][row] == columns, "the same matches, seen from the other seat"
        sums = {sum(pair) for pair in zip(*(columns[f"reward.{s}"] for s in SEATS), strict=True)}
        assert sums == {0} or (kind == "models" and max(sums) == 0), "an illegal reply only loses"
    assert first.tables[0][1] != first.tables[0][0]
    assert first.ratings is None
    second_of_first_row = resolve_pairs(arms_of(run), None, settings).sweep.members[1].changes
    for seat, arm in zip(SEATS, arms_of(run), strict=True):
        assert second_of_first_row[f"agents.{seat}.checkpoint_run_id"] == arm


def test_means_are_those_of_all_matches() -> None:
    tables = [{"reward.a": rewards, "datapoint_id": [0, 1]} for rewards in ([1, 2], [3, 5])]
    crossplay = Crossplay("a", ("r", "s"), "return of a", (tuple(tables), tuple(tables[::-1])))
    rows, columns = crossplay.means
    assert [mean.value for mean in (*rows, *columns)] == [2.75] * 4
    assert {mean.n for mean in rows} == {2}, "the matches of a datapoint are a cluster"
    table = crossplay.table
    assert table.title == "Crossplay, return of a (n=2)"
    assert [row[0] for row in table.rows] == ["r", "s", "mean"]
    assert table.rows[0][1].startswith("1.500 [1.000, ")


@pytest.mark.slow
def test_language_models_train_against_one_of_an_earlier_run(
    settings: ExperimentSettings, models: ExperimentResult
) -> None:
    loads = {"load_checkpoint_and_parameters": True, "checkpoint_run_id": models.run_id}
    agents = {**MODELS["agents"], "player_1": {**MODELS["agents"]["_default"], **loads}}
    phase = {"name": "attack", "num_iterations": 1, "learners": ["player_0"]}
    attack = {**MODELS, "agents": agents, "phases": [phase], "rl": {}, "seed": 2}
    run = run_experiment(attack, settings, name="attack")
    states = [
        LanguageState.load(find_saved_state(run_id, "latest", settings).open())
        for run_id in (models.run_id, run.run_id)
    ]
    earlier, frozen = (
        state.learners[name]["model"]
        for state, name in zip(states, ("players", "player_1"), strict=True)
    )
    assert all(torch.equal(weights, frozen[name]) for name, weights in earlier.items())
    assert states[1].learners.keys() == {"players", "player_1"}


@pytest.mark.slow
def test_agents_without_weights_and_other_trainers_are_refused(
    settings: ExperimentSettings, models: ExperimentResult
) -> None:
    parameters = HyperParameters.from_dict(MODELS).replace(
        {
            "agents._default.shared_model_group": None,
            "agents.player_1.load_checkpoint_and_parameters": True,
            "agents.player_1.checkpoint_run_id": models.run_id,
        }
    )
    remote = {"trainer": "remote_grpo", "language.train_service.backend": "ratchet"}
    with pytest.raises(ParameterError, match="'remote_grpo' loads no agents"):
        check_combination(parameters.replace(remote))
    random = {"_default": MODELS["agents"]["_default"], "player_1": {"model": "random"}}
    run = run_experiment({**MODELS, "agents": random}, settings, name="against_random")
    with pytest.raises(ParameterError, match=f"model is 'random' in run {run.run_id}"):
        resolve_pairs([models.run_id, run.run_id], None, settings)


@pytest.mark.slow
def test_runs_that_do_not_fit_are_refused(
    settings: ExperimentSettings, networks: ExperimentResult
) -> None:
    names = arms_of(networks)
    with pytest.raises(ParameterError, match=r"got the agent 'verifier'.*has: player_0, player_1"):
        resolve_pairs(names, "verifier", settings)
    with pytest.raises(ParameterError, match="2 to 100 different runs"):
        resolve_pairs([names[0], f"{names[0]}:main"], None, settings)
    with pytest.raises(ParameterError, match=r"no arm 'othr'.*Did you mean 'other'"):
        resolve_pairs([names[0], f"{names[0]}:othr"], None, settings)
    unfinished = Path(networks.folder).with_name("unfinished")
    shutil.copytree(networks.folder, unfinished)
    file = unfinished / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({**manifest, "run_id": "unfinished", "status": "failed"}))
    with pytest.raises(ParameterError, match=r"unfinished is failed.*ratchet resume unfinished"):
        resolve_pairs([names[0], "unfinished"], None, settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "open_spiel/leduc_poker"}, "dataset of run b is 'open_spiel/leduc_poker'"),
        ({"language_task.task_options": {"players": 3}}, r"task_options of run b is .* as in a"),
        ({"language_task.chat": True}, r"language_task\.chat of run b is True, expected False"),
    ],
)
def test_runs_of_different_games_are_refused(change: dict[str, Any], message: str) -> None:
    first = HyperParameters.from_dict(MODELS)
    _check_rules({"a": first, "b": first.replace({"seed": 2, **APART})})
    with pytest.raises(ParameterError, match=message):
        _check_rules({"a": first, "b": first.replace(change)})


def test_runs_of_different_protocols_are_refused() -> None:
    message_game = {
        "scenario": "graph_isomorphism",
        "trainer": "vanilla_ppo",
        "dataset": "eru10000",
    }
    first = HyperParameters.from_dict({**message_game, "interaction_protocol": "nip"})
    other = first.replace({"interaction_protocol": "debate"})
    with pytest.raises(ParameterError, match="interaction_protocol of run b is 'debate', expected"):
        _check_rules({"a": first, "b": other})


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (-30.2, 270.6, "+120 [−30, +271]"),
        (30.2, math.inf, "+120 [+30, ∞)"),
        (-math.inf, 270.6, "+120 (−∞, +271]"),
    ],
)
def test_an_unbounded_end_of_a_rating_is_open(low: float, high: float, shown: str) -> None:
    assert _points(Estimate(120.4, low, high, 9)) == shown
