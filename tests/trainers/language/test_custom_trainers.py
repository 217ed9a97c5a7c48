"""Trainers as users write them: whole ones, common patterns, tests, and what goes wrong."""

from __future__ import annotations

import logging

import pytest
import torch
from omegaconf import OmegaConf

from ratchet.algorithms.language.metrics import log_grpo_metrics, log_rollout_metrics
from ratchet.algorithms.language.returns import token_n_step_returns
from ratchet.algorithms.language.trajectories import compute_grpo_advantage_for_trajectories
from ratchet.errors import DataError, ParameterError
from ratchet.plugins import load_class
from ratchet.rollouts import Batch, Trajectory, compute_position_id_with_mask, padding_data
from tasks.language.keys import LanguageArmKeys
from tests.trainers.language.test_language_examples import EXAMPLES
from tests.trainers.language.test_language_trainer import parameters
from trainers import BaseTrainer, SelfHostedTrainer
from trainers.language.grpo import GrpoTrainer


class Scaled(SelfHostedTrainer):
    """Written as guides to such trainers write them, with every step in the class."""

    def __init__(self, config):
        super().__init__(config)
        self._my_param = config.algorithm.get("my_param", 0.5)
        self._use_custom_advantage = config.algorithm.get("use_custom_advantage", True)

    def _prepare_batch(self, batch):
        metrics = {}
        self._log_rollout_metrics(batch)
        batch = Batch.remove_redundant_left_padding(
            batch,
            pad_token_id=self._pad_token_id,
            anchor_field="input_ids",
            fields=["input_ids", "attention_mask", "position_ids", "loss_mask"],
        )
        batch.values["token_level_scores"] = self._scores(batch)
        if self._use_custom_advantage:
            batch.metadata["advantages"] = [
                reward * self._my_param for reward in batch.metadata["rewards"]
            ]
            metrics["advantage_mean"] = float(torch.mean(batch.values["advantages"]))
        batch.values["my_custom_field"] = torch.zeros(len(batch))
        return batch, metrics

    def _scores(self, batch):
        mask = batch.values["loss_mask"]
        scores = torch.zeros_like(mask, dtype=torch.float32)
        for row, reward in enumerate(batch.metadata["rewards"]):
            written = torch.where(mask[row] == 1)[0]
            if len(written) > 0:
                scores[row, written[-1]] = reward
        return scores


class Prepares(SelfHostedTrainer):
    """Executes a function of the test."""

    prepare = staticmethod(lambda trainer, batch: (batch, {}))

    def _prepare_batch(self, batch):
        batch.metadata["advantages"] = batch.metadata["rewards"]
        return type(self).prepare(self, batch)


def preparing(function):
    return type("Mine", (Prepares,), {"prepare": staticmethod(function)})


CONFIG = {
    "algorithm": {"my_param": 0.5},
    "train_service": {"world_size": 1, "backend": "self-hosted", "url": "http://localhost"},
}


def some_batch(rewards=(1.0, 0.0), left_pad=False) -> Batch:
    return Batch.from_trajectories(
        [
            Trajectory(
                tokens=[1, 2, *[3] * length],
                loss_mask=[0, 0, *[1] * length],
                logprobs=[0.0, 0.0, *[-0.5] * length],
                reward=reward,
                group_id="task",
                run_id="task",
                attempt_id=f"attempt {length}",
            )
            for length, reward in enumerate(rewards, 1)
        ],
        pad_token_id=0,
        left_pad=left_pad,
    )


@pytest.mark.parametrize("left_pad", [True, False])
def test_a_trainer_is_tested_alone_of_a_small_config(left_pad):
    trainer = Scaled(OmegaConf.create(CONFIG))
    batch, metrics = trainer._prepare_batch(some_batch(left_pad=left_pad))
    assert "advantages" in batch.values
    assert metrics["advantage_mean"] == pytest.approx(0.5 / (2 * 4))
    assert torch.equal(batch.values["token_level_scores"], trainer._reward_fn(batch))


def test_the_example_is_tested_alone_too():
    trainer = load_class("my_trainer.py:MyCustomTrainer", EXAMPLES)(OmegaConf.create(CONFIG))
    assert issubclass(type(trainer), BaseTrainer)
    for rewards in ((1.0, 0.0), (1.0,), ()):
        batch, metrics = trainer._prepare_batch(some_batch(rewards))
        assert len(batch) == len(rewards)
        assert "advantages" in batch.values
        assert "custom/advantage_mean" in metrics


def test_it_learns_and_its_metrics_are_there(connected, play):
    trainer = connected(Scaled, algorithm={"my_param": 2.0})
    metrics = trainer.train(play())
    assert {"advantage_mean", "actor/loss", "critic/score/mean"} <= metrics.keys()
    assert trainer.train([]) == {"training/num_trajectories": 0.0}
    assert trainer.train(play(groups=1, size=1))["training/num_trajectories"] == 1


# -- common patterns -------------------------------------------------------------------------


class Penalised(Prepares):
    """Subtracts KL from the scores itself, from log-probabilities in the batch."""

    def _prepare_batch(self, batch):
        batch = self._own_penalty(batch, beta=0.5)
        batch.metadata["advantages"] = batch.values["token_level_scores"].sum(1)
        return batch, {"own/penalty": float(batch.metadata["advantages"].mean())}

    def _own_penalty(self, batch, beta):
        kl = batch.values["log_probs"] - batch.values["ref_log_probs"]
        scores = batch.values["token_level_scores"]
        batch.values["token_level_scores"] = scores - beta * kl
        return batch


class PenalisedByBase(Penalised):
    """The same by the base's."""

    def _own_penalty(self, batch, beta):
        return self._apply_kl_penalty(batch, beta)


def test_a_custom_kl_penalty_is_the_bases(connected, play):
    algorithm = {"kl": {"coef": 0.5, "place": "reward"}}
    own, base = (
        connected(kind, algorithm=algorithm, optimizer={"lr": 1e-2})
        for kind in (Penalised, PenalisedByBase)
    )
    for seed in range(3):
        found = [trainer.train(play(seed=seed)) for trainer in (own, base)]
        assert found[0] == found[1]
    assert found[0]["critic/kl"] > 0
    assert found[0]["critic/kl_coeff"] == 0.5


def test_without_a_pull_what_it_is_made_of_is_missed_by_name(connected, play):
    with pytest.raises(DataError, match=r"missing values \['log_probs'\].*'input_ids'") as caught:
        connected(Penalised).train(play())
    assert "kl={coef: 0.1, place: reward} in the trainer's algorithm section" in str(caught.value)
    with pytest.raises(ParameterError, match=r"trainer\.algorithm\.kl\.coef: got 0"):
        connected(PenalisedByBase).train(play())


class Compared(SelfHostedTrainer):
    """Takes its advantages from the base, as guides do."""

    def _prepare_batch(self, batch):
        return self._compute_advantage(batch), {}


def test_the_base_computes_advantages_within_groups(connected, play):
    found = connected(Compared).train(play())
    assert found["critic/advantages/max"] > 0 > found["critic/advantages/min"]
    assert found["critic/advantages/mean"] == pytest.approx(0, abs=0.5)


class WithValues(SelfHostedTrainer):
    """Actor and critic: an additional value network, with a loss and a state."""

    def connect(self, model, engine):
        self._value_network = torch.nn.Sequential(torch.nn.Embedding(64, 4), torch.nn.Linear(4, 1))
        super().connect(model, engine)

    def _learning_parameters(self):
        return [*self.model.parameters(), *self._value_network.parameters()]

    def _compute_values(self, batch):
        return self._value_network(batch.values["input_ids"]).squeeze(-1)

    def _prepare_batch(self, batch):
        with torch.no_grad():
            values = self._compute_values(batch)
        batch.values["returns"] = batch.metadata["rewards"].unsqueeze(1).expand_as(values)
        batch.values["advantages"] = batch.values["returns"] - values
        return batch, {"own/value": values.mean()}

    def _compute_loss(self, scores, batch, weights):
        loss, figures = super()._compute_loss(scores, batch, weights)
        error = (self._compute_values(batch) - batch.values["returns"]) ** 2
        critic = (error * weights[1]).sum()
        return loss + critic, {**figures, "own/critic": critic.detach()}

    def take_state(self):
        return {**super().take_state(), "values": dict(self._value_network.state_dict())}

    def put_state(self, state):
        super().put_state(state)
        self._value_network.load_state_dict(state["values"])


def test_a_value_network_learns_and_is_kept(connected, play):
    trainer = connected(WithValues, optimizer={"lr": 1e-2})
    first = trainer.train(play())["own/critic"]
    for _ in range(20):
        last = trainer.train(play())["own/critic"]
    assert last < first
    other = connected(WithValues, optimizer={"lr": 1e-2})
    other.put_state(trainer.take_state())
    assert other.train(play(seed=1)) == trainer.train(play(seed=1))


def nstep_returns(rewards, n, gamma):
    return [
        sum(gamma**step * reward for step, reward in enumerate(rewards[start : start + n]))
        for start in range(len(rewards))
    ]


@pytest.mark.parametrize("n", [1, 2, 9])
def test_returns_of_several_steps_are_those_of_the_library(n):
    rewards = [1.0, 0.0, 2.0, -1.0]
    mask = torch.ones(1, 4)
    zeros = torch.zeros(1, 4)
    found = token_n_step_returns(torch.tensor([rewards]), zeros, mask, num_steps=n, gamma=0.9)
    assert found[0].tolist() == pytest.approx(nstep_returns(rewards, n, 0.9))


# -- what is at hand -------------------------------------------------------------------------


def test_what_is_at_hand_does_what_its_name_says(play, caplog):
    batch = padding_data(some_batch(left_pad=True), pad_token_id=0)
    assert batch.values["input_ids"].tolist() == [[1, 2, 3, 0], [1, 2, 3, 3]]
    positions = compute_position_id_with_mask(batch.values["attention_mask"])
    assert torch.equal(batch.values["position_ids"], positions)
    trajectories, metrics = play(), {}
    with caplog.at_level(logging.INFO):
        logger = logging.getLogger("mine")
        found = compute_grpo_advantage_for_trajectories(
            trajectories, logger=logger, use_run_ids=True
        )
    assert "Advantages of 16 trajectories" in caplog.text
    assert sum(one.advantage for one in found) == pytest.approx(0, abs=1e-6)
    log_rollout_metrics(found, metrics)
    log_grpo_metrics(found, metrics)
    assert {"critic/score/mean", "critic/advantages/mean"} <= metrics.keys()
    assert all(isinstance(value, float) for value in metrics.values())


def test_a_ready_made_trainer_is_built_upon(connected, play):
    class Shaped(GrpoTrainer):
        def _prepare_batch(self, batch):
            batch = Batch.remove_redundant_right_padding(batch, pad_token_id=self._pad_token_id)
            batch.values["token_level_scores"] = self._reward_fn(batch) * 2
            batch.values["old_log_probs"] = self._compute_old_log_probs(batch)
            return self._compute_advantage(batch), {"mine/one": 1}

    assert connected(Shaped).train(play())["mine/one"] == 1.0


# -- what goes wrong -------------------------------------------------------------------------


def without(name):
    def prepare(trainer, batch):
        del batch.values[name]
        return batch, {}

    return prepare


def with_value(name, make):
    def prepare(trainer, batch):
        batch.values[name] = make(batch.values["advantages"])
        return batch, {}

    return prepare


def with_advantages(make):
    def prepare(trainer, batch):
        batch.metadata["advantages"] = make(batch.metadata["rewards"])
        return batch, {}

    return prepare


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (without("attention_mask"), r"missing values \['attention_mask'\].*'input_ids'"),
        (without("advantages"), r"missing values \['advantages'\].*'input_ids'"),
        (lambda t, b: (b, {"x": b.values["vlaues"]}), r"missing values \['vlaues'\]"),
        (with_value("advantages", lambda x: x[:, 0]), r"'advantages'.*\(16,\), expected \(16, \d+"),
        (with_value("advantages", lambda x: x[:, 1:]), "'advantages': got the shape"),
        (with_value("mine", lambda x: x[1:]), "'mine': got 15 rows, expected 16"),
        (with_value("advantages", lambda x: x * torch.nan), "'advantages': row 0 has nan"),
        (with_advantages(lambda rewards: rewards[:1]), r"got the shape \(1,\), expected \(16,\)"),
        (with_advantages(lambda rewards: rewards.std(dim=0)), r"got the shape \(\), expected"),
        (with_advantages(lambda rewards: torch.zeros(16, 3)), r"set batch.values\['advantages'\]"),
        (lambda t, b: b, r"_prepare_batch: returned Batch, expected \(Batch, dict"),
        (lambda t, b: None, "returned NoneType"),
        (lambda t, b: ({}, b), r"returned \(dict, Batch\)"),
        (lambda t, b: (b, {"mine/x": torch.zeros(2)}), r"'mine/x': got Tensor.*\(2,\).*mean"),
        (lambda t, b: (b, {"mine/x": "0.5"}), "'mine/x': got '0.5', expected a number"),
        (lambda t, b: (b, {"mine/x": None}), "'mine/x': got None"),
        (lambda t, b: (b, {3: 0.5}), "the metric name 3"),
        *(
            (lambda t, b, name=name: (b, {name: 77.0}), rf"'{name}' \(77\) would replace Ratchet's")
            for name in ("rollout/truncated", "critic/advantages/mean", "training/num_updates")
        ),
    ],
)
def test_what_is_wrong_with_a_batch_is_said(prepare, said, connected, play):
    with pytest.raises(DataError, match=said):
        connected(preparing(prepare)).train(play())


def test_metrics_of_one_number_are_numbers(connected, play):
    metrics = {"a": torch.tensor(0.5), "b": torch.ones(1, 1), "c": torch.ones(2).numpy()[0], "d": 1}
    found = connected(preparing(lambda t, b: (b, metrics))).train(play())
    assert [found[name] for name in "abcd"] == [0.5, 1.0, 1.0, 1.0]
    assert all(type(found[name]) is float for name in "abcd")


def test_a_batch_of_which_nothing_is_left_teaches_nothing(connected, play):
    metrics = connected(preparing(lambda t, b: (b.select([]), {}))).train(play())
    assert metrics["training/num_updates"] == 0


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"clip_low": -1}, "algorithm.clip_low: got -1"),
        ({"kl": {"coef": 0.1, "palce": "loss"}}, "algorithm.kl.palce: unknown parameter"),
    ],
)
def test_what_is_wrong_with_an_algorithms_loss_is_said(algorithm, said):
    with pytest.raises(ParameterError, match=said):
        Scaled(OmegaConf.create({"algorithm": algorithm}))


def test_what_an_algorithm_lacks_is_said():
    trainer = load_class("my_algorithm_trainer.py:MyTrainer", EXAMPLES)(OmegaConf.create(CONFIG))
    with pytest.raises(AttributeError, match="discount_factor"):
        trainer._prepare_batch(some_batch())


FALLING = """
from trainers import SelfHostedTrainer

class Falling(SelfHostedTrainer):
    def _prepare_batch(self, batch):
        left = 1 - self.moment.iteration / HORIZON
        batch.metadata["advantages"] = batch.metadata["rewards"] * left
        return batch, {}
"""


@pytest.mark.parametrize(
    ("horizon", "reads"),
    [("self._config.total_train_steps", True), ("self.moment.num_iterations", True), ("8", False)],
)
def test_a_trainer_that_reads_how_long_training_is_has_it_in_its_keys(tmp_path, horizon, reads):
    (tmp_path / "mine.py").write_text(FALLING.replace("HORIZON", horizon))
    where = {"module_path": str(tmp_path / "mine.py"), "class_name": "Falling"}
    keys = [
        LanguageArmKeys("main", parameters(where, rl={"num_iterations": steps})).state_key(2)
        for steps in (4, 8)
    ]
    assert (keys[0] != keys[1]) is reads


def test_the_grouping_by_run_of_the_remote_example_compares_attempts(play):
    trainer = load_class("my_remote_trainer.py:MyRemoteTrainer", EXAMPLES)(OmegaConf.create(CONFIG))
    metrics = {}
    prepared = trainer._prepare_trajectories(play(groups=2, size=4), metrics)
    assert any(one.advantage for one in prepared), "attempts at a task differ in their rewards"
