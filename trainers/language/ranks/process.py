"""Main module of a rank: ``python -m trainers.language.ranks.process RANK WORLD_SIZE FOLDER``.

It ends when its parent does, in all cases. Tensors are exchanged in files.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from ratchet.errors import ParameterError
from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.sharding import (
    contribution,
    held_bytes,
    local_shard,
    shard_like,
)
from ratchet.parameters.language import LanguageOptimizerParameters
from ratchet.rollouts.batch import Batch
from ratchet.seeding import derive_seed, seeded_globals
from trainers.attribute_tree import DEVICE
from trainers.custom_state import put_attributes
from trainers.language.base import TrainingPosition
from trainers.language.optimization import LanguageOptimizer
from trainers.language.policy_loss import on_device
from trainers.language.ranks.classes import find_class
from trainers.language.ranks.files import MODEL_FOLDER, REQUEST_NAME, answer_name
from trainers.language.ranks.messages import from_json, save_message, to_json
from trainers.language.ranks.rows import RankShare, method_of
from trainers.language.ranks.sampling import RankSampler
from trainers.named import NamedTrainer
from trainers.state_tree import load_tree
from trainers.subprocess_worker import serve

if TYPE_CHECKING:
    from trainers.language.ranks.rows import RankTrainer


class ShardedOptimizer(LanguageOptimizer):
    """:class:`LanguageOptimizer` over this process's shards, with the norm of all of them.

    Parameters that are not sharded, such as a value head, are the same in all processes: their
    gradients are summed here.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], settings: LanguageOptimizerParameters
    ) -> None:
        self._whole = list(parameters)
        super().__init__([nn.Parameter(local_shard(p)) for p in self._whole], settings)

    def zero_grad(self) -> None:
        """Reset the gradients."""
        super().zero_grad()
        for parameter in self._whole:
            parameter.grad = None

    def take_gradients(self) -> None:
        """Add this process's shards of the gradients of rounded weights in float32."""
        for share, parameter in zip(self._parameters, self._whole, strict=True):
            if parameter.grad is not None:
                share.grad = local_shard(parameter.grad)
                if parameter.dtype != torch.float32:
                    parameter.grad = None
        super().take_gradients()

    def step(self) -> Tensor:
        """Take a step with gradients clipped by the global norm; return the norm."""
        self.take_gradients()
        pairs = zip(self._masters.weights, self._whole, strict=True)
        masters = [master for master, whole in pairs if not isinstance(whole, DTensor)]
        if masters:
            have = torch.tensor([master.grad is not None for master in masters]).int()
            have = have.to(masters[0].device)
            dist.all_reduce(have)  # a gradient may exist in some processes only
            for master, count in zip(masters, have.tolist(), strict=True):
                if count:
                    master.grad = torch.zeros_like(master) if master.grad is None else master.grad
                    dist.all_reduce(master.grad)
        return super().step()

    def _norm(self) -> Tensor:
        gradients: dict[bool, list[Tensor]] = {True: [], False: []}
        for master, parameter in zip(self._masters.weights, self._whole, strict=True):
            if master.grad is not None:
                gradients[isinstance(parameter, DTensor)].append(master.grad)
        device = self._parameters[0].device
        of_shares, of_others = (
            torch.nn.utils.get_total_norm(gradients[kind]).to(device).double().square()
            for kind in (True, False)
        )
        dist.all_reduce(of_shares)
        return (of_shares + of_others).sqrt().float()

    def state_dict(self) -> dict[str, Any]:
        """Return this process's contribution to the state of a single process."""
        return self._changed(super().state_dict(), contribution)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this process's shard of a complete state."""
        super().load_state_dict(self._changed(state, shard_like))

    def _changed(
        self, state: Mapping[str, Any], change: Callable[[Tensor, Tensor], Tensor]
    ) -> dict[str, Any]:
        """Return a state with other tensors in place of moments and masters."""
        moments = {
            index: {
                name: change(value, self._whole[index])
                if isinstance(value, Tensor) and value.ndim
                else value
                for name, value in of_one.items()
            }
            for index, of_one in state["moments"].items()
        }
        if "masters" not in state:
            return {**state, "moments": moments}
        masters = {
            index: change(master, self._whole[index]) for index, master in state["masters"].items()
        }
        return {**state, "moments": moments, "masters": masters}


Tree = dict[str, Any]
_Loaded = TypeVar("_Loaded")


class Rank:
    """One of the processes, with its shard of the model."""

    trainer: RankTrainer

    def __init__(self, share: RankShare, folder: Path) -> None:
        self.share, self._folder = share, folder

    def answer(self, line: Mapping[str, Any]) -> Tree:
        """Execute the request in a folder, and write the answer there; return an empty one."""
        torch.set_num_threads(line["threads"])
        if line["deterministic"]:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as in the main process
        torch.use_deterministic_algorithms(line["deterministic"], warn_only=line["warn_only"])
        memory: Any = torch.utils.deterministic
        memory.fill_uninitialized_memory = False  # as in the main process
        folder = Path(line["folder"])
        request = load_tree(folder, REQUEST_NAME, copy=False)
        work = {
            "begin": self.begin,
            "put_weights": self.put_weights,
            "put_optimizer": self.put_optimizer,
            "generate": self.generate,
            "learn": self.learn,
            "read_rows": self.read_rows,
            "take_optimizer": self.take_optimizer,
        }[line["do"]]
        save_message(work(request), folder, answer_name(self.share.rank))
        return {}

    def begin(self, request: Tree) -> Tree:
        """Build the trainer, and shard its models."""
        timeout = timedelta(seconds=request["timeout"])
        device = torch.device(request["devices"][self.share.rank])
        mesh = self._join(device, request["meeting"], timeout)
        self.trainer = find_class(request["trainer"])(request["config"])
        self.trainer.share = self.share
        self._load = partial(
            load_language_model,
            self._folder / MODEL_FOLDER,
            base_dir=Path(request["base_dir"]),
            dtype=request["dtype"],
        )
        self._in_turn(partial(self._connect, mesh, request))
        load = partial(self._in_turn, partial(self._load, device=str(self.trainer.model.device)))
        options = self.trainer.language.engine.given
        self._sampler = RankSampler(self.trainer.model, load, options)
        parameters, device = self.trainer._learning_parameters(), self.trainer.model.device
        for parameter in parameters:
            if parameter.device != device:  # not one of the model's
                parameter.data = parameter.data.to(device)
        self.trainer._optimizer = ShardedOptimizer(parameters, self.trainer.language.optimizer)
        return {
            "held_bytes": held_bytes(parameters),
            "fitting_tokens": self.trainer.fitting_tokens(),
        }

    def _in_turn(self, load: Callable[[], _Loaded]) -> _Loaded:
        """Call a function in each process; one model at a time is loaded into the CPU's memory."""
        for turn in range(self.share.world_size):
            if turn == self.share.rank:
                loaded = load()
            dist.barrier()
        return loaded

    def _connect(self, mesh: DeviceMesh, request: Tree) -> None:
        model = self._load()
        model.num_on_device = request["num_on_device"]
        if request["recomputes"]:
            model.recompute_activations()
        with seeded_globals(derive_seed(0, "connect")):  # replaced by the main process's
            self.trainer.connect(model, InProcessEngine(model))
        for each in vars(self.trainer).values():
            if isinstance(each, LanguageModel):
                each.shard(mesh)

    def _join(self, device: torch.device, meeting: str, timeout: timedelta) -> DeviceMesh:
        kind = device.type
        if kind == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            init_method=meeting,
            rank=self.share.rank,
            world_size=self.share.world_size,
            timeout=timeout,
            device_id=device if kind == "cuda" else None,
        )
        return init_device_mesh(kind, (self.share.world_size,))

    def put_weights(self, request: Tree) -> Tree:
        """Load complete weights."""
        params = self.trainer._learning_parameters()
        shapes = [[list(tensor.shape) for tensor in each] for each in (params, request["weights"])]
        if shapes[0] != shapes[1]:
            raise ParameterError(
                f"{type(self.trainer).__name__}: with world_size {self.share.world_size} a rank"
                " has different parameters from the run's main process; expected connect to create"
                " the same ones for the same model."
            )
        for parameter, weight in zip(params, request["weights"], strict=True):
            local_shard(parameter).copy_(shard_like(weight, parameter))
        self.trainer._optimizer.read_weights()
        self._sampler.is_outdated = True
        return {}

    def put_optimizer(self, request: Tree) -> Tree:
        """Load a complete state of the optimizer."""
        self.trainer._optimizer.load_state_dict(request["optimizer"])
        return {}

    def generate(self, request: Tree) -> Tree:
        """Generate completions of this rank's share of the requests."""
        requests = from_json(SampleRequest, request["requests"])
        completions = self._sampler.generate(requests[self.share.part(len(requests))])
        return {"completions": to_json(completions)}

    def learn(self, request: Tree) -> Tree:
        """Take a batch's steps; return this rank's contribution to the new weights."""
        trainer, batch = self.trainer, self._receive(request)
        moment = trainer.moment
        seed = derive_seed(moment.seed, "train", moment.iteration, f"rank.{self.share.rank}")
        with seeded_globals(seed):
            step_figures = trainer._learn(on_device(batch, trainer.model.device))
        self._sampler.is_outdated = True
        figures = [{name: float(value) for name, value in one.items()} for one in step_figures]
        parameters = trainer._learning_parameters()
        weights = [contribution(local_shard(each), each) for each in parameters]
        return {"figures": figures, "weights": weights}

    def _receive(self, request: Tree) -> Batch:
        """Set the trainer's attributes; return the batch."""
        trainer = self.trainer
        trainer.moment = TrainingPosition(**request["moment"])
        for name, value in request["attributes"].items():
            # models that only ranks load are missing in the main process
            if not isinstance(getattr(trainer, name, None), LanguageModel):
                setattr(trainer, name, value)
        assert isinstance(trainer, NamedTrainer)
        put_attributes(trainer, _on_own_device(request["custom"], trainer.model.device))
        return Batch(request["values"], request["metadata"])

    def read_rows(self, request: Tree) -> Tree:
        """Call a method of the trainer on this rank's rows."""
        batch = self._receive(request)
        part = batch.select(self.share.rows(len(batch)))
        read = method_of(self.trainer, request["method"])
        return {"rows": read(self.trainer, on_device(part, self.trainer.model.device))}

    def take_optimizer(self, request: Tree) -> Tree:
        """Return this rank's contribution to the optimizer's state."""
        return {"optimizer": self.trainer._optimizer.state_dict()}


def _on_own_device(stored: Any, device: torch.device) -> Any:  # noqa: ANN401 -- a tree
    """Return stored attributes whose tensors are restored on this process's device."""
    if isinstance(stored, Mapping):
        if DEVICE in stored and device.type == "cuda":
            return {DEVICE: [str(device), stored[DEVICE][1]]}
        return {name: _on_own_device(each, device) for name, each in stored.items()}
    if isinstance(stored, list | tuple):
        return type(stored)(_on_own_device(each, device) for each in stored)
    return stored


if __name__ == "__main__":
    # none of the views is changed in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    serve(Rank(RankShare(int(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3])).answer)
    os._exit(0)  # libraries would wait for the other ranks
