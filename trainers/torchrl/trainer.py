"""``TorchRlTrainer``: base of TorchRL trainers that are run, stored and resumed in stages."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType
from torchrl.trainers import Trainer

from ratchet.errors import ParameterError, StateError
from ratchet.seeding import derive_seed, seeded_globals
from trainers.base import torch_threads
from trainers.custom_state import take_attributes
from trainers.named import TrainerTraits
from trainers.progress import IterationContext
from trainers.results import FolderOf, Metrics, TestResult
from trainers.staged import STAGE, StagedTrainer
from trainers.state_tree import flatten_tree, unflatten_tree
from trainers.torchrl.assembly import (
    Assembly,
    assemble,
    enter_environments,
    has_copied_policy,
    has_workers,
    library_warnings_hidden,
    place_samples,
    push_weights,
    quiet_library,
    seeded_resets,
)
from trainers.torchrl.environment import make_environment
from trainers.torchrl.evaluation_environment import copy_normalization
from trainers.torchrl.evaluation_rollouts import Episode, play_episodes
from trainers.torchrl.hooks import Evaluation, KeepBest, StopAt
from trainers.torchrl.recorder import (
    begin_iteration,
    count_values,
    finished_returns,
    take_metrics,
)
from trainers.torchrl.replay import take_replay
from trainers.torchrl.snapshots import load_trainer, replay_buffers, take_trainer
from trainers.torchrl.state import Stored, TorchRlState
from trainers.torchrl.workers import end_processes, is_running, run_with_workers

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from torch import nn

    from ratchet.scenarios.base import ScenarioInstance

KEEP_BEST = "keep_best"
_Result = TypeVar("_Result")


class TorchRlTrainer(StagedTrainer):
    """Base for a custom ``torchrl.trainers.Trainer``. Subclasses implement :meth:`build_trainer`.

    The hooks of the trainer are called in the library's order. An iteration is
    ``torchrl.batches_per_iteration`` (default 1) collected batches with their optimisation
    steps; there are ``rl.num_iterations`` of them. Environments are seeded and reset at the
    start of each iteration, so that neither stage boundaries nor interruptions affect results.
    """

    State = TorchRlState
    traits = TrainerTraits(
        plays_text=False,
        acts_alone=True,
        instead_of_callbacks=(
            "is TorchRL's, which has its own hooks. Leave callbacks out; use torchrl.keep_best and"
            " torchrl.stop_at_return instead of keep_best and early_stopping, and register other"
            " hooks in build_trainer."
        ),
    )
    exploration_in_losses: ClassVar[ExplorationType | None] = None
    """Type of policies' actions inside losses; None: the library's default."""
    scenario_instance: ScenarioInstance
    _assembly: Assembly | None = None
    _environment: EnvBase | None = None
    _workers: frozenset[BaseProcess] = frozenset()
    _stored: dict[str, Stored]

    # -- for subclasses to implement or override ---------------------------------------------

    @abstractmethod
    def build_trainer(self) -> Trainer:
        """Build the TorchRL trainer, with its hooks; called inside a seeded context.

        Its ``seed``, ``logger``, ``total_frames`` and checkpoint arguments may be omitted: the
        experiment's replace them.
        """

    def build_environment(self) -> EnvBase:
        """Create an environment for evaluation and tests; by default that of ``dataset``."""
        section = self.hyper_params.gymnasium
        return make_environment(
            self.hyper_params.dataset,
            section.environment_kwargs,
            section.max_episode_steps,
            [wrapper.to_dict() for wrapper in section.wrappers],
            base_dir=self.settings.base_dir,
        )

    @property
    def policy(self) -> nn.Module:
        """The policy of evaluations and tests: the loss's actor or value network."""
        network = self.torchrl_trainer._checkpoint_policy()
        if network is None:
            raise ParameterError(
                f"{type(self).__name__}: the loss has no actor_network or value_network, so no"
                " policy can be tested. Override `policy`."
            )
        policy: nn.Module = network
        return policy

    @property
    def batches_per_iteration(self) -> int:
        """The number of collected batches in an iteration."""
        return self.hyper_params.torchrl.batches_per_iteration or 1

    @property
    def device(self) -> torch.device:
        """The device of the agent and its environments."""
        return torch.device(self.settings.device)

    # -- the library's trainer ---------------------------------------------------------------

    @property
    def torchrl_trainer(self) -> Trainer:
        """The TorchRL trainer, built on first use."""
        return self._assembled.trainer

    @property
    def _assembled(self) -> Assembly:
        if self._assembly is None:
            self._assembly = self._assemble()
        return self._assembly

    def _assemble(self) -> Assembly:
        seed = derive_seed(self.hyper_params.seed, "initial_state", 0, "trainer")
        resets = derive_seed(self.hyper_params.seed, "initial_state", 0, "environments")
        with (
            torch_threads(self.settings.num_threads),
            seeded_globals(seed),
            seeded_resets(resets),
            library_warnings_hidden(),
        ):
            quiet_library()
            assembly, self._workers = run_with_workers(self._build_assembly, ())
        weakref.finalize(self, end_processes, self._workers)  # without close(), and at exit
        return assembly

    def _build_assembly(self) -> Assembly:
        trainer = self.build_trainer()
        self._register_hooks(trainer)
        place_samples(trainer, self.settings.device)
        return assemble(
            trainer,
            refresh_each_epoch=self.hyper_params.torchrl.refresh_each_epoch,
            exploration=self.exploration_in_losses,
        )

    def _watched(self, work: Callable[[], _Result]) -> _Result:
        """Call the library, and watch its workers; a failure releases all, so that use rebuilds."""
        try:
            if not self._workers:
                return work()
            result, self._workers = run_with_workers(work, self._workers)
        except BaseException:
            self.close()
            raise
        return result

    def _register_hooks(self, trainer: Trainer) -> None:
        """Register evaluation, early stopping and the best policy as configured."""
        section = self.hyper_params.torchrl
        if section.evaluation_period is None:
            if section.stop_at_return is not None or section.keep_best:
                raise ParameterError(
                    "torchrl.evaluation_period: got None, but stop_at_return and keep_best need"
                    " evaluations; expected a number of iterations."
                )
            return
        policy, seed = trainer._checkpoint_policy(), self.hyper_params.seed
        evaluation = Evaluation(
            self.build_environment,
            policy,
            [
                derive_seed(seed, "evaluation", i) % 2**31
                for i in range(section.evaluation_episodes)
            ],
            period=section.evaluation_period * self.batches_per_iteration,
            prepare=lambda environment: copy_normalization(trainer.collector, environment),
        )
        evaluation.register(trainer)
        if section.keep_best:
            KeepBest(policy).register(trainer, KEEP_BEST)
        if section.stop_at_return is not None:
            StopAt(section.stop_at_return).register(trainer)

    def close(self) -> None:
        """Release environments and workers; later use rebuilds them."""
        assembly, workers = self._assembly, self._workers
        self._assembly, self._environment, self._workers = None, None, frozenset()
        try:  # the library cannot release dead workers
            if assembly is not None and all(is_running(worker) for worker in workers):
                assembly.close()
        finally:
            end_processes(workers)

    # -- state -------------------------------------------------------------------------------

    def initial_state(self) -> TorchRlState:
        """Rebuild the TorchRL trainer, and continue from it."""
        self.close()
        self.iteration, self._stage, self._stored = 0, "initial_state", {}
        return self._take_state(0, "initial_state")

    def _take_state(self, iteration: int, stage: str) -> TorchRlState:
        return self._state_since(iteration, stage, {})

    def _state_since(self, iteration: int, stage: str, stored: dict[str, Stored]) -> TorchRlState:
        """Copy the inputs of the next iteration except frames stored elsewhere."""
        trainer = self.torchrl_trainer
        values, tensors = flatten_tree(self._watched(lambda: take_trainer(trainer)))
        buffers = {
            name: take_replay(buffer, stored[name].write_count if name in stored else 0)
            for name, buffer in replay_buffers(trainer).items()
        }
        attributes = take_attributes(self)
        return TorchRlState(iteration, stage, values, tensors, buffers, attributes)

    def _load_state(self, state: TorchRlState) -> None:
        trainer = self.torchrl_trainer
        tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}

        def load() -> None:
            load_trainer(trainer, unflatten_tree(state.values, tensors), state.buffers)
            if has_workers(trainer) or has_copied_policy(trainer):
                push_weights(trainer)

        self._watched(load)
        self._stored = {}

    def save_state(self, folder: Path, key: str) -> None:
        """Write the state of a stage; frames stored by earlier stages are left out."""
        if self._stage is None:
            raise StateError("save_state: no state yet. Call initial_state() first.")
        state = self._state_since(self.iteration, self._stage, self._stored)
        state.save(folder, self._stored)
        self._note_stored(state, key)

    def load_state(self, folder: Path, key: str, folder_of: FolderOf) -> None:
        """Continue from a stage's state, with the frames that earlier stages store."""
        state = TorchRlState.load(folder, folder_of)
        self.state = state
        self._note_stored(state, key)

    def _note_stored(self, state: TorchRlState, key: str) -> None:
        self._stored = {n: Stored(key, buffer.write_count) for n, buffer in state.buffers.items()}

    # -- training ----------------------------------------------------------------------------

    def _do_iteration(self, iteration: int) -> Metrics:
        """Collect batches and learn from each; skipped after a request to stop."""
        assembly = self._assembled
        trainer = assembly.trainer
        if trainer._stop_training:
            return {}
        begin_iteration(trainer)
        before = count_values(trainer)
        with seeded_globals(derive_seed(self.hyper_params.seed, STAGE, iteration, "globals")):
            returns = self._watched(lambda: self._run_batches(assembly, iteration))
        metrics = take_metrics(trainer, before)
        metrics["collected_frames"] = float(trainer.collected_frames)
        if returns:
            metrics["episode_return"] = fmean(returns)
        return metrics

    def _run_batches(self, assembly: Assembly, iteration: int) -> list[float]:
        """Collect the batches of an iteration and learn from them; return episodes' returns."""
        trainer = assembly.trainer
        seed = derive_seed(self.hyper_params.seed, STAGE, iteration, "environments")
        enter_environments(trainer, seed)
        returns: list[float] = []
        for _ in range(self.batches_per_iteration):
            batch = next(assembly.batches)
            returns += finished_returns(batch)
            assembly.loop.run_batch(batch)
            if trainer._stop_training:
                break
        if trainer._stop_training or iteration + 1 == self.num_train_iterations:
            trainer._shutdown_hook()
        return returns

    # -- testing -----------------------------------------------------------------------------

    def _test_on(self, dataset: str, iteration_context: IterationContext | None) -> TestResult:
        trainer = self.torchrl_trainer
        if self._environment is None:
            self._environment = self.build_environment()
        environment = self._environment
        self._watched(lambda: copy_normalization(trainer.collector, environment))
        seeds = self.scenario_instance.datasets[dataset]["seed"].tolist()
        seeds = seeds[:1] if self.settings.test_run else seeds
        with self._best_weights():
            episodes = play_episodes(environment, self.policy, seeds)
        if iteration_context is not None:
            iteration_context.step(len(seeds))
        return summarise_episodes(episodes, self.agent_names[0])

    @contextmanager
    def _best_weights(self) -> Iterator[None]:
        """Use the best weights if stored, and restore the last ones."""
        best = self.torchrl_trainer._modules.get(KEEP_BEST)
        if not isinstance(best, KeepBest) or best.weights is None:
            yield
            return
        last = {name: value.detach().clone() for name, value in self.policy.state_dict().items()}
        self.policy.load_state_dict(best.weights)
        try:
            yield
        finally:
            self.policy.load_state_dict(last)


def summarise_episodes(episodes: Sequence[Episode], agent_name: str) -> TestResult:
    """Summarise test episodes like tests of Ratchet's trainers: means, and a row for each.

    ``agent_name`` replaces empty group names.
    """
    lengths = [episode.length for episode in episodes]
    table: dict[str, list[Any]] = {"datapoint_id": list(range(len(episodes))), "rounds": lengths}
    metrics = {
        "num_datapoints": float(len(episodes)),
        "mean_episode_length": fmean(lengths),
    }
    for group in episodes[0].returns:
        returns = [episode.returns[group] for episode in episodes]
        table[f"reward.{group or agent_name}"] = returns
        metrics[f"{group or agent_name}.mean_episode_reward"] = fmean(returns)
    return TestResult(metrics, table)
