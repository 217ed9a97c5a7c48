"""The main process's interface to the ranks: sends requests, and waits for all answers.

Ranks start with the first request and end with their trainer. If one fails or ends, all are ended;
the next request starts new ones, which train only from a state.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

import ratchet.errors
from ratchet.errors import ParameterError, RankError, RatchetError, StateError
from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import Completion, SampleRequest, check_prompts
from trainers.custom_state import RECORDS, is_custom_method, take_attributes
from trainers.language.ranks import process
from trainers.language.ranks.classes import class_reference
from trainers.language.ranks.messages import from_json, full_disk_named, save_message, to_json
from trainers.language.ranks.rows import ranks_sample
from trainers.named import NamedTrainer
from trainers.state_tree import flatten_tree, load_tree

if TYPE_CHECKING:
    from ratchet.language_models.engines.rollouts import RolloutEngine
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.rollouts.batch import Batch
    from trainers.language.policy_loss import Figures
    from trainers.language.ranks.rows import RankTrainer

_END_SECONDS = 3.0  # to find the process that ended, after another reports it
_PER_STEP = ("actor/lr", "actor/grad_norm")  # of the step, not summed over rows
_PLAIN = (type(None), bool, int, float, str, list, tuple, dict, Tensor, np.ndarray)


class Ranks:
    """Processes that each store a shard of a trainer's model, and a rollout engine.

    Each trains on a part of the rows, and generates some of the completions. Weights that change in
    the main process are sent again, except for changes through ``.data``: torch does not count
    these.

    Parameters
    ----------
    trainer
        Determines the class and config of the ranks' trainers.
    model
        The initial model, also the reference of KL.
    world_size
        The number of ranks.
    timeout
        Seconds that a rank waits for the others.
    """

    held_bytes: tuple[int, ...] = ()
    """Bytes of the trained weights in each process, once they have started."""

    def __init__(
        self,
        trainer: RankTrainer,
        model: LanguageModel,
        world_size: int,
        *,
        timeout: float,
    ) -> None:
        self._trainer, self._world_size, self._timeout = trainer, world_size, timeout
        self._class = class_reference(type(trainer))
        self._dtype = str(model.dtype).removeprefix("torch.")
        self._home = tempfile.TemporaryDirectory(prefix="ratchet-ranks-")
        home = Path(self._home.name)
        with full_disk_named(home, lambda: sum(each.nbytes for each in model.all_parameters())):
            model.save(home / process.MODEL_FOLDER)
        self._starts = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._optimizer: Mapping[str, Any] | None = {"moments": {}, "done": 0}
        self._has_lost_optimizer = False
        self._sent_versions: list[int] | None = None

    @property
    def pids(self) -> list[int]:
        """The ids of the processes; none before the first request."""
        return [each.pid for each in self._processes]

    # -- requests of the trainer ---------------------------------------------------------------

    def learn(self, batch: Batch) -> list[Figures]:
        """Take the steps of :meth:`SelfHostedTrainer._learn`, and load the new weights."""
        self._check_optimizer()
        self._prepare()
        if self._optimizer is not None:
            self._request("put_optimizer", {"optimizer": self._optimizer})
            self._optimizer = None
        answers = self._request("learn", self._as_tree(batch))
        parameters, weights = self._trainer._learning_parameters(), answers[0]["weights"]
        with torch.no_grad():
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)
        self._sent_versions = self._versions()
        return [_summed(parts) for parts in zip(*(one["figures"] for one in answers), strict=True)]

    def read_rows(self, method: str, batch: Batch) -> Tensor:
        """Call a method of the trainer in all ranks, each with some rows; return all rows."""
        self._check_optimizer()
        self._prepare()
        answers = self._request("read_rows", {"method": method, **self._as_tree(batch)})
        rows: Tensor = torch.cat([answer["rows"] for answer in answers])[: len(batch)]
        return rows.to(batch.values["input_ids"].device)

    def _as_tree(self, batch: Batch) -> dict[str, Any]:
        """Return a batch with the trainer's attributes, which reading it may need."""
        trainer = self._trainer
        assert isinstance(trainer, NamedTrainer)
        stores_itself = is_custom_method(type(trainer), "take_state")
        custom = take_attributes(trainer, strict=not stores_itself)
        framework = {
            name: value for name, value in vars(trainer).items() if name not in {*custom, *RECORDS}
        }
        return {
            "moment": asdict(trainer.moment),
            "attributes": _transferable(framework),
            "custom": custom,
            "values": dict(batch.values),
            "metadata": _transferable(batch.metadata),
        }

    def fitting_tokens(self) -> int | None:
        """Return the most tokens of a micro-batch that fit on each device."""
        self._prepare()
        return self._fitting_tokens

    def engine_for(self, engine: RolloutEngine) -> RolloutEngine:
        """Return the engine of the trainer: these ranks instead of the built-in one."""
        is_built_in = type(engine) is InProcessEngine
        return self if is_built_in and ranks_sample(self._trainer.language) else engine

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Generate completions; see :meth:`RolloutEngine.generate`."""
        check_prompts(requests, self._trainer.model)
        if not requests:
            return []
        self._prepare()
        answers = self._request("generate", {"requests": to_json(requests)})
        parts = [from_json(Completion, answer["completions"]) for answer in answers]
        return [completion for part in parts for completion in part]

    def update(self, model: LanguageModel) -> None:
        """Use the trained model's current weights, which the ranks always do."""
        if model is not self._trainer.model:
            raise ParameterError(
                f"engine.update: got another model than the trained one, whose shards the"
                f" {self._world_size} processes of language.train_service.world_size have. Set"
                " language.engine to a class of your own to sample from other models."
            )

    def state_dict(self) -> Mapping[str, Any]:
        """Return the optimizer's complete state, in the format of a single process."""
        self._check_optimizer()
        if self._optimizer is not None:
            return self._optimizer
        return self._request("take_optimizer", {})[0]["optimizer"]  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the optimizer's state, and let the ranks reload the trainer's weights."""
        self._optimizer = copy.deepcopy(state)
        self._has_lost_optimizer = False

    def close(self) -> None:
        """End all processes."""
        for each in self._processes:
            each.kill()
        for each in self._processes:
            each.wait()
            for pipe in (each.stdin, each.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):  # what it did not read
                    pipe.close()
        self._processes = []
        self._sent_versions = None
        self._has_lost_optimizer = self._optimizer is None

    # -- communication -------------------------------------------------------------------------

    def _check_optimizer(self) -> None:
        if self._has_lost_optimizer:
            raise StateError(
                f"language.train_service.world_size: the {self._world_size} processes that train"
                " have ended, and the optimizer's state is lost. Continue from a saved state."
            )

    def _prepare(self) -> None:
        """Start the processes unless they run, and send weights that changed in this process."""
        if not self._processes:
            self._start()
        versions = self._versions()
        if self._sent_versions != versions:
            weights = list(self._trainer._learning_parameters())
            self._request("put_weights", {"weights": weights})
            self._sent_versions = versions

    def _versions(self) -> list[int]:
        """Return torch's counts of the changes of each parameter."""
        return [each._version for each in self._trainer._learning_parameters()]

    def _start(self) -> None:
        self._starts += 1
        # ranks import the same modules as this process
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        for rank in range(self._world_size):
            command = [sys.executable, "-P", "-m", process.__name__]
            self._processes.append(
                subprocess.Popen(
                    [*command, str(rank), str(self._world_size), self._home.name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": path},
                    start_new_session=True,
                )
            )
        config = OmegaConf.to_container(self._trainer._config, resolve=True)
        assert isinstance(config, dict)
        request = {
            "trainer": self._class,
            "num_models": self._trainer._num_models,
            "config": config,
            "device": str(self._trainer.model.device),
            "dtype": self._dtype,
            "recomputes": self._trainer.model.recomputes_activations,
            "base_dir": str(Path(config.get("base_dir") or ".").resolve()),
            "timeout": self._timeout,
            "meeting": f"meeting{self._starts}",
        }
        answers = self._request("begin", request)
        self.held_bytes = tuple(one["held_bytes"] for one in answers)
        limits = [one["fitting_tokens"] for one in answers]
        self._fitting_tokens = None if None in limits else min(limits)

    def _request(self, what: str, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send a request to all ranks; return their answers."""
        try:
            with tempfile.TemporaryDirectory(dir=self._home.name) as name:
                folder = Path(name)
                save_message(dict(request), folder, process.REQUEST_NAME)
                line = {
                    "do": what,
                    "folder": name,
                    "threads": torch.get_num_threads(),
                    "deterministic": torch.are_deterministic_algorithms_enabled(),
                    "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
                }
                self._send(json.dumps(line).encode() + b"\n")
                self._await()
                ranks = range(self._world_size)
                return [load_tree(folder, process.answer_name(rank)) for rank in ranks]
        except BaseException:
            self.close()
            raise

    def _send(self, line: bytes) -> None:
        for each in self._processes:
            assert each.stdin is not None
            try:
                each.stdin.write(line)
                each.stdin.flush()
            except BrokenPipeError:
                raise self._ended() from None

    def _await(self) -> None:
        """Wait until all ranks have answered."""
        with selectors.DefaultSelector() as waiting:
            for rank, each in enumerate(self._processes):
                assert each.stdout is not None
                waiting.register(each.stdout, selectors.EVENT_READ, rank)
            while waiting.get_map():
                for key, _ in waiting.select():
                    line = self._processes[key.data].stdout.readline()
                    if not line.endswith(b"\n"):
                        raise self._ended()
                    answer = json.loads(line)
                    if answer:
                        raise self._failed(key.data, answer)
                    waiting.unregister(key.fileobj)

    def _ended(self) -> RankError:
        """Return an error that names the ended process."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            for rank, each in enumerate(self._processes):
                if (code := each.poll()) is not None:
                    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
                    hint = ""
                    if code == -signal.SIGKILL:
                        hint = (
                            " If memory ran out, raise language.train_service.world_size, or lower"
                            " language.micro_batch_size or language.engine.max_batch_size."
                        )
                    return RankError(
                        f"{self._name(rank)}, process {each.pid}, ended {how}."
                        f"{hint} The same command resumes from the last finished stage."
                    )
            if time.monotonic() > deadline:
                return RankError("a rank closed its output without ending.")
            time.sleep(0.01)

    def _failed(self, rank: int, answer: Mapping[str, str]) -> RatchetError:
        """Return the error of a rank, or of another that ended and so caused it."""
        if answer["kind"] in ("RuntimeError", "DistBackendError", "DistNetworkError"):
            ended = self._ended()
            if "ended" in str(ended):
                return ended
        kind = getattr(ratchet.errors, answer["kind"], None)
        if not (isinstance(kind, type) and issubclass(kind, RatchetError)):
            kind, answer = RankError, {**answer, "error": f"{answer['kind']}: {answer['error']}"}
        error: RatchetError = kind(f"{self._name(rank)}: {answer['error']}")
        error.add_note(answer["trace"])
        return error

    def _name(self, rank: int) -> str:
        return f"rank {rank} of language.train_service.world_size {self._world_size}"


def _transferable(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that can be sent to another process: arrays, numbers, texts, lists."""
    return {name: value for name, value in entries.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if type(value) not in _PLAIN and not isinstance(value, np.generic):
        return False
    try:
        flatten_tree(value)
    except StateError:
        return False
    return True


def _summed(parts: Sequence[Mapping[str, float]]) -> Figures:
    """Sum the ranks' figures of a step."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: torch.tensor(
            parts[0][name] if name in _PER_STEP else sum(part.get(name, 0.0) for part in parts)
        )
        for name in names
    }
