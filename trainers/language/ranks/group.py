"""The main process's interface to the ranks: sends requests, and waits for all answers.

Ranks start with the first request and end with their trainer. If one fails or ends, all are ended;
the next request starts new ones, which train only from a state.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

from ratchet.errors import ParameterError, RankError, RatchetError, StateError, WorkerDiedError
from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import Completion, SampleRequest, check_prompts
from trainers.custom_state import RECORDS, is_custom_method, take_attributes
from trainers.language.ranks.classes import class_reference
from trainers.language.ranks.files import (
    MODEL_FOLDER,
    REQUEST_NAME,
    ProcessFolder,
    answer_name,
    full_disk_named,
)
from trainers.language.ranks.local import LocalRanks
from trainers.language.ranks.messages import from_json, save_message, to_json
from trainers.language.ranks.rows import ranks_sample
from trainers.named import NamedTrainer
from trainers.state_tree import Tree, flatten_tree, load_tree
from trainers.subprocess_worker import Answer, error_of

if TYPE_CHECKING:
    from ratchet.language_models.engines.rollouts import RolloutEngine
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.rollouts.batch import Batch
    from trainers.language.policy_loss import Figures
    from trainers.language.ranks.cluster import ClusterRanks
    from trainers.language.ranks.rows import RankTrainer

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
    cluster
        Address of the Ray cluster whose nodes run the ranks; None for this machine.
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
        cluster: str | None = None,
    ) -> None:
        self._trainer, self._world_size = trainer, world_size
        self._timeout, self._cluster = timeout, cluster
        self._class = class_reference(type(trainer))
        self._dtype = str(model.dtype).removeprefix("torch.")
        self._folder = ProcessFolder()
        self._home = self._folder.path
        with full_disk_named(self._home, lambda: sum(p.nbytes for p in model.all_parameters())):
            model.save(self._home / MODEL_FOLDER)
        self._processes: LocalRanks | ClusterRanks | None = None
        self._optimizer: Mapping[str, Any] | None = {"moments": {}, "done": 0}
        self._has_lost_optimizer = False
        self._sent_versions: list[int] | None = None

    @property
    def pids(self) -> Sequence[int]:
        """The ids of the processes on this machine; none before the first request."""
        return [] if self._processes is None else self._processes.pids

    # -- requests of the trainer ---------------------------------------------------------------

    def learn(self, batch: Batch) -> list[Figures]:
        """Take the steps of :meth:`SelfHostedTrainer._learn`, and load the new weights."""
        self._check_optimizer()
        self._prepare()
        if self._optimizer is not None:
            self._request("put_optimizer", {"optimizer": self._optimizer})
            self._optimizer = None
        answers = self._request("learn", self._as_tree(batch))
        parameters = self._trainer._learning_parameters()
        weights = _joined([answer["weights"] for answer in answers])
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
        answers = self._request("take_optimizer", {})
        state: Mapping[str, Any] = _joined([answer["optimizer"] for answer in answers])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the optimizer's state, and let the ranks reload the trainer's weights."""
        self._optimizer = state
        self._has_lost_optimizer = False

    def close(self) -> None:
        """End all processes."""
        if self._processes is not None:
            self._processes.close()
        self._processes = None
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
        if self._processes is None:
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
        names = [self._name(rank) for rank in range(self._world_size)]
        device = self._trainer.model.device
        config = OmegaConf.to_container(self._trainer._config, resolve=True)
        assert isinstance(config, dict)
        self._processes = self._launch(names)
        request = {
            "trainer": self._class,
            "config": config,
            "devices": self._processes.devices(device),
            "dtype": self._dtype,
            "recomputes": self._trainer.model.recomputes_activations,
            "num_on_device": self._trainer.model.num_on_device,
            "base_dir": str(Path(config.get("base_dir") or ".").resolve()),
            "timeout": self._timeout,
            "meeting": self._processes.meeting,
        }
        answers = self._request("begin", request)
        self.held_bytes = tuple(one["held_bytes"] for one in answers)
        limits = [one["fitting_tokens"] for one in answers]
        self._fitting_tokens = None if None in limits else min(limits)

    def _launch(self, names: Sequence[str]) -> LocalRanks | ClusterRanks:
        if self._cluster is None:
            return LocalRanks(names, self._home)
        from trainers.language.ranks.cluster import ClusterRanks

        return ClusterRanks(
            names,
            self._home,
            self._cluster,
            uses_gpus=self._trainer.model.device.type == "cuda",
            timeout=self._timeout,
        )

    def _request(self, what: str, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send a request to all ranks; return their answers."""
        assert self._processes is not None
        try:
            # some file systems keep mapped files until the answers are released
            with tempfile.TemporaryDirectory(dir=self._home, ignore_cleanup_errors=True) as name:
                folder = Path(name)
                save_message(dict(request), folder, REQUEST_NAME)
                line = {
                    "do": what,
                    "folder": name,
                    "threads": torch.get_num_threads(),
                    "deterministic": torch.are_deterministic_algorithms_enabled(),
                    "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
                }
                futures = self._processes.execute(line)
                for future in as_completed(futures):
                    if "error" in future.result():
                        raise self._failure(future, futures)
                names = map(answer_name, range(self._world_size))
                return [load_tree(folder, name, copy=False) for name in names]
        except BaseException:
            self.close()
            raise

    def _failure(self, failed: Future[Answer], futures: Sequence[Future[Answer]]) -> RatchetError:
        """Return the error of a rank, or of another that ended and so caused it."""
        assert self._processes is not None
        if failed.result()["error"] in ("RuntimeError", "DistBackendError", "DistNetworkError"):
            failed = _find_ended(futures, self._processes.end_seconds) or failed
        answer = failed.result()
        if _has_ended(failed):
            hint = ""
            if signal.SIGKILL.name in answer["message"]:
                hint = (
                    " If memory ran out, raise language.train_service.world_size, or lower"
                    " language.micro_batch_size or language.engine.max_batch_size."
                )
            resumes = "The same command resumes from the last finished stage."
            return RankError(f"{answer['message']}{hint} {resumes}")
        name = self._name(futures.index(failed))
        error = error_of({**answer, "message": f"{name}: {answer['message']}"})
        if isinstance(error, RatchetError):
            return error
        rank_error = RankError(str(error))
        rank_error.add_note(answer["traceback"])
        return rank_error

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


def _has_ended(answer: Future[Answer]) -> bool:
    """Return whether the process of a rank has ended."""
    return answer.result().get("error") == WorkerDiedError.__name__


def _find_ended(answers: Sequence[Future[Answer]], timeout: float) -> Future[Answer] | None:
    """Return the answer of the first rank that ends."""
    with suppress(TimeoutError):
        for answer in as_completed(answers, timeout):
            if _has_ended(answer):
                return answer
    return None


def _joined(contributions: Sequence[Tree]) -> Tree:
    """Join the rows of all ranks, in nested states of the same form."""
    first = contributions[0]
    if isinstance(first, Tensor):
        return torch.cat(list(contributions)) if first.ndim else first.clone()
    if isinstance(first, Mapping):
        return {name: _joined([each[name] for each in contributions]) for name in first}
    if isinstance(first, list):
        return [_joined(parts) for parts in zip(*contributions, strict=True)]
    return first


def _summed(parts: Sequence[Mapping[str, float]]) -> Figures:
    """Sum the ranks' figures of a step."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: torch.tensor(
            parts[0][name] if name in _PER_STEP else sum(part.get(name, 0.0) for part in parts)
        )
        for name in names
    }
