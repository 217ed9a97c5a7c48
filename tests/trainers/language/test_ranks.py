"""Several processes that train one model, each with a shard, equal one process."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors import SafetensorError

from ratchet.errors import DataError, ParameterError, RankError, StateError
from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.local.loading import load_language_model
from ratchet.models.lora import Lora
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.plugins import load_class
from tests.trainers.language.conftest import differ, weights_of
from trainers.language.base import BaseTrainer
from trainers.language.grpo import GrpoTrainer
from trainers.language.ranks.classes import class_reference
from trainers.language.ranks.files import full_disk_named
from trainers.language.ranks.local import LocalRanks
from trainers.language.ranks.rows import RankShare
from trainers.language.remote_grpo import RemoteGrpoTrainer
from trainers.language.trainer import loop_around
from trainers.state_tree import flatten_tree

GRPO = {
    "optimizer": {"lr": 1e-2, "max_grad_norm": 0.05},
    "grpo": {"kl": {"coef": 0.2, "target": 0.01}, "aggregation": "sequence_mean_token_mean"},
    "num_epochs": 2,
    "minibatch_size": 9,  # 5 rows for a process, 4 for the other; then 4 and 3
    "micro_batch_size": 4,  # the first has two parts, the other reads one for nothing
}
CUSTOM = """
from dataclasses import dataclass
import numpy as np
import torch
from torch import nn
from trainers.language.ppo import LanguagePpoTrainer
from trainers.language.ranks.rows import of_rows

@dataclass
class Settings:
    weight: float = 1.0

class Custom(LanguagePpoTrainer):
    def connect(self, model, engine):
        self.settings = Settings()
        self.target = nn.Linear(1, 1, bias=False).requires_grad_(False)
        self.heads = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
        for layer in (self.target, *self.heads):
            nn.init.ones_(layer.weight)
        super().connect(model, engine)

    def _learning_parameters(self):
        return [*super()._learning_parameters(), *self.heads.parameters()]

    def _prepare_batch(self, batch):
        self.shift = float(batch.metadata["rewards"].mean())
        batch, metrics = super()._prepare_batch(batch)
        self.scale = 1 + batch.metadata["rewards"].numpy().std()
        self.seen = {"rewards": batch.metadata["rewards"]}
        self.settings.weight *= 0.9
        self.target.weight += 0.1
        batch.metadata["array"] = np.full(len(batch), 1.0 + self.shift)
        mask = batch.values["loss_mask"]
        batch.values["half"] = (torch.arange(len(batch))[:, None] >= len(batch) // 2) & mask.bool()
        return batch, metrics

    def _compute_old_values(self, batch):
        return super()._compute_old_values(batch) + self._shifts(batch)

    @of_rows
    def _shifts(self, batch):
        return torch.full(batch.values["input_ids"].shape, self.shift)

    def _compute_loss(self, scores, batch, weights):
        assert batch.metadata["run_ids"]
        loss, figures = super()._compute_loss(scores, batch, weights)
        factor = self.settings.weight * self.target(torch.ones(1, 1)).squeeze()
        factor = factor * float(self.scale) * float(batch.metadata["array"][0])
        loss = loss * factor * (1 + self.seen["rewards"].sum())
        for head, sign in zip(self.heads, (1, -1)):
            mine = batch.values["half"] == (sign == 1)
            if mine.any():  # in one rank only
                value = head(scores.log_probs.detach()[..., None]).squeeze(-1)
                loss = loss + sign * (value * weights[0] * mine).sum()
        return loss, figures
"""
COUNTING = """
import torch
from trainers.language.grpo import GrpoTrainer

class Counting(GrpoTrainer):
    def _compute_loss(self, scores, batch, weights):
        loss, figures = super()._compute_loss(scores, batch, weights)
        rank = torch.tensor([1.0, 0.0]).roll(self.share.rank)
        figures["rows/0"], figures["rows/1"] = rank * len(batch)
        figures["parts/0"], figures["parts/1"] = rank
        return loss, figures
"""


@pytest.fixture(scope="module")
def make(model_folder):
    """Make trainers of one process and of two, and end these."""
    made = []

    def make(trainer_class, world_size, lora=None, dtype="float32", recomputes=False, **config):
        torch.set_num_threads(1)
        config["train_service"] = {"world_size": world_size}
        trainer = trainer_class(OmegaConf.create({"max_tokens": 6, **config}))
        model = load_language_model(model_folder, base_dir=Path(), lora=lora, dtype=dtype)
        if recomputes:
            model.recompute_activations()
        trainer.connect(model, InProcessEngine(model))
        made.append(trainer)
        return trainer

    yield make
    for trainer in made:
        trainer.close()


@pytest.fixture(scope="module")
def two(make):
    return make(GrpoTrainer, 2, **GRPO)


@pytest.fixture(scope="module")
def first_state(two):
    return two.take_state()


def requests_of(trainer, count, temperature=1.0):
    prompts = [tuple(trainer.tokenizer.encode("abcd"[n % 4] + "b" * (n % 3))) for n in range(count)]
    return [SampleRequest(prompt, 6, n, temperature) for n, prompt in enumerate(prompts)]


def same_completions(trainer, *lists):
    """Ranks sample what one process does with the current weights, except for rounding."""
    one = InProcessEngine(trainer.model)
    for requests in lists or (requests_of(trainer, 7), requests_of(trainer, 7, 0.0)):
        expected, completions = one.generate(requests), trainer.engine.generate(requests)
        assert [each.tokens for each in completions] == [each.tokens for each in expected]
        for each, other in zip(completions, expected, strict=True):
            assert each.log_probs == pytest.approx(other.log_probs, abs=1e-5)
            assert each.finish_reason == other.finish_reason
        assert trainer.engine.generate(requests) == completions, "the same bits"


def same_learning(one, other, play, seeds):
    """Train both on the same answers; what is measured and kept differs by rounding alone."""
    for seed in seeds:
        metrics = [trainer.train(play(seed=seed)) for trainer in (one, other)]
        assert metrics[0] == pytest.approx(metrics[1], abs=1e-5)
        assert metrics[0].keys() == metrics[1].keys()
    assert differ(weights_of(one), weights_of(other)) < 1e-5
    states = [trainer.take_state()["optimizer"] for trainer in (one, other)]
    assert states[0]["done"] == states[1]["done"]
    assert states[0]["moments"].keys() == states[1]["moments"].keys()
    for place, of_one in states[0]["moments"].items():
        for name, value in of_one.items():
            assert torch.allclose(value, states[1]["moments"][place][name], atol=1e-5)


@pytest.mark.slow
def test_two_processes_learn_what_one_does_and_go_on_as_one(make, two, first_state, play):
    one, began_with = make(GrpoTrainer, 1, **GRPO), two.take_weights()
    same_learning(one, two, play, (0,))
    early = copy.deepcopy(one.take_state())
    same_learning(one, two, play, (1,))
    pids, whole = two._ranks.pids, sum(p.numel() * p.element_size() for p in two.model.parameters())
    assert sum(two._ranks.held_bytes) == whole
    assert max(two._ranks.held_bytes) < 0.55 * whole
    assert two._kl_coef == pytest.approx(one._kl_coef)
    assert two._kl_coef != 0.2, "the ranks receive it"
    # a state can be resumed with a different number of processes
    alone = make(GrpoTrainer, 1, **GRPO)
    alone.put_state(two.take_state())
    same_learning(one, alone, play, (2,))
    for trainer in (alone, two):
        trainer.put_state(early)
    same_learning(alone, two, play, (3, 4))
    # and with weights that a callback has put in place
    for trainer in (alone, two):
        trainer.put_weights(began_with)
    same_learning(alone, two, play, (5,))
    assert two._ranks.pids == pids, "they live on"
    # each sends its rows alone
    sent = [bytes_of(answer) for answer in two._ranks._request("take_optimizer", {})]
    assert sum(sent) == bytes_of(two.take_state()["optimizer"])
    assert max(sent) < 0.55 * sum(sent)


def bytes_of(state):
    """Bytes of a state's moments."""
    return sum(tensor.nbytes for tensor in flatten_tree(state)[1].values() if tensor.ndim)


@pytest.mark.slow
def test_ranks_sample_with_the_current_weights(make, two, first_state, play):
    two.put_state(first_state)
    same_completions(two, requests_of(two, 7), requests_of(two, 1), [])
    two.train(play(seed=0))
    same_completions(two)
    two.put_state(first_state)
    same_completions(two)
    with torch.no_grad():
        two.model.parameters()[0].mul_(1.1)
    same_completions(two)
    pids = two._ranks.pids
    with pytest.raises(DataError, match="prompt: got 40 tokens; the model's context has 32"):
        two.engine.generate([SampleRequest((5,) * 40, 6, 0)])
    with pytest.raises(ParameterError, match="another model than the trained one"):
        two.engine.update(make(GrpoTrainer, 1).model)
    assert two._ranks.pids == pids, "they live on"


@pytest.mark.slow
@pytest.mark.parametrize(("max_rows", "tokens", "parts"), [(100, None, 1), (None, 25, 4)])
def test_rows_are_divided_before_they_are_split(make, play, tmp_path, max_rows, tokens, parts):
    (tmp_path / "counting.py").write_text(COUNTING)
    counting = load_class("counting.py:Counting", tmp_path)
    config = {"micro_batch_size": max_rows, "grpo": {"kl": {"coef": 0.2}}}
    one, two = make(GrpoTrainer, 1, **config), make(counting, 2, **config)
    for trainer in (one, two):
        trainer._micro_batch_tokens = tokens
    metrics = [trainer.train(play()) for trainer in (one, two)]
    counted = {name: metrics[1].pop(name) for name in ("rows/0", "rows/1", "parts/0", "parts/1")}
    assert counted == {"rows/0": 8, "rows/1": 8, "parts/0": parts, "parts/1": parts}
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-5)
    assert differ(*map(weights_of, (one, two))) < 1e-5


@pytest.mark.slow
def test_processes_share_the_float32_masters_of_a_bfloat16_model(make, play):
    two = make(GrpoTrainer, 2, dtype="bfloat16", **GRPO)
    for seed in (0, 1):
        two.train(play(seed=seed))
    alone = make(GrpoTrainer, 1, dtype="bfloat16", **GRPO)
    alone.put_state(two.take_state())
    states = [trainer.take_state() for trainer in (alone, two)]
    masters = [state["optimizer"]["masters"] for state in states]
    parameters = alone.model.parameters()
    assert [*masters[0]] == [*masters[1]] == [*range(len(parameters))]
    for index, parameter in enumerate(parameters):
        assert masters[0][index].dtype == torch.float32
        assert torch.equal(masters[0][index], masters[1][index])
        assert torch.equal(parameter, masters[1][index].bfloat16())
    assert not torch.equal(masters[1][0], masters[1][0].bfloat16().float()), "not rounded"


@pytest.mark.slow
def test_recomputed_activations_change_no_bit_in_processes(make, play):
    learned = []
    for recomputes in (False, True):
        two = make(GrpoTrainer, 2, dtype="bfloat16", recomputes=recomputes, **GRPO)
        two.train(play(seed=0))
        learned.append(weights_of(two))
    assert differ(*learned) == 0


@pytest.mark.slow
def test_a_killed_rank_is_named_and_what_it_did_comes_again_bit_for_bit(two, first_state, play):
    two.put_state(first_state)
    before = [two.train(play(seed=seed)) for seed in (0, 1)]
    learned = weights_of(two)
    two.put_state(first_state)
    two.train(play(seed=0))
    with rank_killed(two):
        two.train(play(seed=1))
    with pytest.raises(StateError, match="Continue from a saved state"):
        two.train(play(seed=1))
    two.put_state(first_state)
    assert [two.train(play(seed=seed)) for seed in (0, 1)] == before
    assert differ(weights_of(two), learned) == 0
    requests = requests_of(two, 7)
    completions = two.engine.generate(requests)
    with rank_killed(two):
        two.engine.generate(requests)
    assert two.engine.generate(requests) == completions
    with pytest.raises(StateError, match="Continue from a saved state"):
        two.train(play(seed=1))


@contextmanager
def rank_killed(trainer):
    """A rank is killed while another waits for it; the error names it, and none is left."""
    pids = trainer._ranks.pids
    os.kill(pids[1], signal.SIGSTOP)
    killer = threading.Timer(0.5, os.kill, (pids[1], signal.SIGKILL))
    killer.start()
    began = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1 .*process was ended by signal SIGKILL. If memory"):
        yield
    killer.join()
    assert time.monotonic() - began < 5
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


class FullFolder(tempfile.TemporaryDirectory):
    """A folder in which one file cannot be written."""

    file = ""

    def __enter__(self):
        (Path(self.name) / self.file).symlink_to("/dev/full")
        return super().__enter__()


@pytest.mark.slow
@pytest.mark.parametrize("file", ["rank1.json", "request.json"])
def test_a_full_disk_is_named_with_the_bytes(two, first_state, monkeypatch, file):
    two.put_state(first_state)
    monkeypatch.setattr(FullFolder, "file", file)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", FullFolder)
    with pytest.raises(RankError, match=r"ratchet-ranks-.*: needs \d+ bytes, \d+ are free.*TMPDIR"):
        two.engine.generate(requests_of(two, 1))


def test_a_full_disk_is_named_while_tensors_are_written(tmp_path):
    text = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(RankError, match="needs 7 bytes"), full_disk_named(tmp_path, lambda: 7):
        raise SafetensorError(text)


@pytest.mark.slow
def test_a_custom_trainer_with_a_value_head_adapts_a_model_in_two_processes(make, play, tmp_path):
    (tmp_path / "custom.py").write_text(CUSTOM)
    custom = load_class("custom.py:Custom", tmp_path)
    lora = Lora(2, target_modules=("q_proj", "up_proj"))
    config = {"optimizer": {"lr": 3e-2}, "minibatch_size": 7, "language_ppo": {"kl": {"coef": 0.1}}}
    one, two = (make(custom, world_size, lora, **config) for world_size in (1, 2))
    same_learning(one, two, play, (0, 1))
    same_completions(two)
    heads = [trainer.take_state()["value_head"]["weight"] for trainer in (one, two)]
    assert heads[0].abs().max() > 0
    assert torch.allclose(*heads, atol=1e-5)
    # they end with their parent in all cases
    processes = [worker._process for worker in two._ranks._processes._workers]
    for process in processes:
        process.stdin.close()
    assert [process.wait(240) for process in processes] == [0, 0]


def test_files_are_deleted_with_their_process(tmp_path):
    code = "from trainers.language.ranks.files import ProcessFolder as F; import os; f = F();"
    command = [sys.executable, "-c", f"{code} print(f.path, flush=True); os.kill(os.getpid(), 9)"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    folder = Path(subprocess.run(command, stdout=-1, text=True, env=environment).stdout.strip())
    assert folder.parent == tmp_path
    deadline = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ranks_take_the_devices_from_the_runs_own_on():
    ranks = LocalRanks(["first", "second"], Path())
    for first, expected in (("cuda", "cuda:1"), ("cuda:2", "cuda:3"), ("cpu", "cpu")):
        assert ranks.devices(torch.device(first))[1] == expected


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 3, 7, 8, 10])
def test_shares_are_everything_once_and_equally_many(world_size, count):
    shares = [RankShare(rank, world_size) for rank in range(world_size)]
    rows = [share.rows(count) for share in shares]
    assert len({len(of_one) for of_one in rows}) == 1
    assert [row for of_one in rows for row in of_one][:count] == list(range(count))
    parts = [list(range(count))[share.part(count)] for share in shares]
    assert [row for part in parts for row in part] == list(range(count)), "unpadded"


def test_a_class_that_others_cannot_find_is_refused(tmp_path):
    class Local(GrpoTrainer):
        pass

    with pytest.raises(ParameterError, match="top of a file"):
        class_reference(Local)
    (tmp_path / "custom.py").write_text(CUSTOM)
    custom = load_class("custom.py:Custom", tmp_path)
    assert class_reference(custom) == f"{tmp_path}/custom.py:Custom"


def given(trainer, micro_batch_size=None, **service):
    content = {"scenario": "language_task", "dataset": "reverse", "trainer": trainer}
    language = {"micro_batch_size": micro_batch_size, "train_service": service}
    return HyperParameters.from_dict({**content, "language": language})


def test_rows_that_processes_split_after_sharing_them_have_another_key():
    for world_size, size, split in ((1, 2, None), (2, None, None), (2, 2, "by rank")):
        hyper_params = given("grpo", size, world_size=world_size)
        read = loop_around(GrpoTrainer).stage_key_parameters(hyper_params, "train")
        assert read.get("split") == split


def test_numbers_of_processes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"world_size: got 0 .*greater than 0"):
        given("grpo", world_size=0)
    remote = given("remote_grpo", world_size=2, backend="ratchet")
    with pytest.raises(ParameterError, match=r"world_size: got 2 for a remote trainer.*Leave it"):
        RemoteGrpoTrainer.check_learner(remote, {})
    assert GrpoTrainer.needed_devices(given("grpo", world_size=3)) == 3
    GrpoTrainer.check_learner(given("grpo", world_size=3), {})
    with pytest.raises(ParameterError, match=r"world_size: got 3 with BaseTrainer, .* one process"):
        BaseTrainer.check_learner(given("grpo", world_size=3), {})
