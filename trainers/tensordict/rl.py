"""Base class of reinforcement-learning trainers on tensors: everything except the loss.

An iteration: freeze agents by schedule, collect rollouts, estimate advantages, train on
minibatches. It depends only on the previous state, the data and (seed, "train", iteration).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ratchet.errors import ParameterError
from ratchet.fast.adam import clip_gradients
from ratchet.parameters.purposes import Purpose
from ratchet.parameters.test_groups import test_groups
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.dataset import DataCursor
from ratchet.seeding import derive_seed, seeded_globals, torch_generator
from trainers.progress import IterationContext
from trainers.results import (
    TEST_PREFIX,
    Metrics,
    PretrainResult,
    TestResult,
    add_metrics,
    with_test_prefix,
)
from trainers.stage_parameters import StagePurposes
from trainers.staged import STAGE, StagedTrainer
from trainers.tensordict.base import TensorDictTrainer
from trainers.tensordict.collectors import RolloutCollector, with_sample_log_prob
from trainers.tensordict.imitation import behaviour_cloning
from trainers.tensordict.normalization import fit_normalization
from trainers.tensordict.objectives.base import Objective
from trainers.tensordict.objectives.value_estimators import Key, MaskedGae
from trainers.tensordict.optimization.captured import CapturedUpdates, can_capture
from trainers.tensordict.optimization.optimizer import (
    ParamGroupFreezer,
    build_adam,
    learning_rate_scale,
    set_learning_rates,
)
from trainers.tensordict.optimization.replay import EpisodeBuffer, RolloutBuffer, Transform
from trainers.tensordict.solo import pretraining
from trainers.tensordict.states import snapshots
from trainers.tensordict.states.components import (
    Components,
    read_pool,
    sample_from_pool,
)
from trainers.tensordict.states.loaded_agents import load_earlier_agents
from trainers.tensordict.states.state import State as TrainerState
from trainers.tensordict.statistics.log_stats import loss_stats, rollout_stats
from trainers.tensordict.testing import TestPlayer, environment_for, summarise_test

if TYPE_CHECKING:
    from ratchet.agents.actor_critic import PolicyOperator, ValueOperator
    from ratchet.parameters.hyper_parameters import HyperParameters


class TensorDictRlTrainer(TensorDictTrainer, StagedTrainer):
    """Base of RL trainers. Subclasses implement :meth:`build_loss`.

    Everything else has a default that can be overridden: collectors, replay buffer, optimizer
    and freezer, statistics, normalisation, pretraining, loops. A scenario instance belongs to one
    trainer, which changes its agents' weights.
    """

    traits = replace(
        TensorDictTrainer.traits,
        instead_of_callbacks=None,
        samples_rollouts=True,
        samples_tests=True,
        supports_imitation=True,
        supports_phases=True,
    )
    State = TrainerState
    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "clip_value": "it is hyper_params.rl.clip_value",
        "gae": "it is self.components.gae",
        "loss_module": "it is self.components.loss_module",
        "optimizer": "it is self.components.optimizer",
        "param_group_freezer": "it is self.components.freezer",
        "replay_buffer": "it is self.components.replay_buffer",
        "test_collector": "it is self.components.test_collector",
        "train_collector": "it is self.components.collector",
    }
    PRETRAINED_MODEL_CACHE_PARAM_KEYS = ("seed", "rl", "solo_agent")
    """Inputs of a pretrained body other than data, initial weights and the agent's parameters."""

    _tested: Metrics | None = None
    """The statistics of the test that is being logged."""

    # -- for subclasses to implement -------------------------------------------------------

    @abstractmethod
    def build_loss(self) -> tuple[Objective, MaskedGae | None]:
        """Create the loss and, if it uses advantages, their estimator."""

    def _get_loss_module_and_gae(self) -> tuple[Objective, MaskedGae | None]:
        """Create the same; the method's name in nip, by which it can be overridden, too."""
        return self.build_loss()

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        """Let both names refer to the method that a class defines."""
        super().__init_subclass__(**kwargs)
        names = ("build_loss", "_get_loss_module_and_gae")
        for name, other in (names, names[::-1]):
            if name in vars(cls) and other not in vars(cls):
                setattr(cls, other, vars(cls)[name])

    @classmethod
    def reads_num_iterations(cls, hyper_params: HyperParameters) -> bool:
        """Return whether an iteration depends on the number of iterations, e.g. by annealing.

        Override this in a trainer that reads ``rl.num_iterations`` itself: if it is false, a run
        whose ``num_iterations`` is raised continues instead of starting over.
        """
        return bool(hyper_params.rl.anneal_lr)

    @classmethod
    def check_parameters(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Refuse recurrent agents if the loss takes single frames or is compiled."""
        super().check_parameters(hyper_params, base_dir)
        agents = hyper_params.agents
        kinds = {name: getattr(agents[name], "recurrence", None) for name in agents}
        name = next((name for name in kinds if kinds[name]), None)
        if name is None:
            return
        where = f"agents.{name}.recurrence: got {kinds[name]!r} with"
        if not cls.traits.takes_sequences:
            raise ParameterError(
                f"{where} the trainer {hyper_params.trainer_name!r}, which learns from single"
                " frames, expected null. Leave it out, or choose vanilla_ppo."
            )
        if hyper_params.rl.compile_losses:
            raise ParameterError(
                f"{where} rl.compile_losses=true, expected one of the two, since episodes start"
                " at other steps in each minibatch. Set rl.compile_losses: false."
            )

    # -- for subclasses to override --------------------------------------------------------

    def _get_data_collectors(self) -> tuple[RolloutCollector, TestPlayer]:
        """Create the collectors of training and test episodes."""
        seed, agents = self.hyper_params.seed, self.combined_agents
        cursor = DataCursor(len(self.train_environment.dataset), seed, purpose=STAGE)
        train = RolloutCollector(self.train_environment, agents, cursor, seed=seed, stage=STAGE)
        return train, TestPlayer(self.test_environment, agents, seed=seed)

    def _get_replay_buffer(self, transform: Transform | None = None) -> RolloutBuffer:
        """Create the buffer that stores an iteration's frames and yields minibatches.

        For recurrent agents its minibatches are complete rows of steps. ``transform`` is applied to
        rollouts ``[E, T]`` before they are stored.
        """
        buffer = EpisodeBuffer if self.combined_agents.is_recurrent else RolloutBuffer
        return buffer(self.hyper_params.rl.minibatch_size, transform)

    def _get_optimizer_and_param_freezer(
        self, loss_module: Objective
    ) -> tuple[torch.optim.Optimizer, ParamGroupFreezer]:
        """Create the optimizer of agents and loss, and the freezer of agents by schedule."""
        rl, agents = self.hyper_params.rl, self.combined_agents
        groups = agents.parameter_groups(rl)
        loss_tensors = snapshots.loss_tensors(loss_module, agents).values()
        extra = [tensor for tensor in loss_tensors if isinstance(tensor, nn.Parameter)]
        optimizer = build_adam(groups, rl.lr, extra, eps=rl.adam_eps)
        return optimizer, ParamGroupFreezer(groups, self.hyper_params.agents)

    def _get_log_stats(
        self,
        rollouts: TensorDictBase,
        mean_loss_vals: TensorDictBase | None = None,
        *,
        train: bool = True,
    ) -> Metrics:
        """Compute the statistics of rollouts ``[E, T]`` to log.

        Names of a test's statistics start with ``test_``; only its episodes are passed,
        concatenated: ``[1, T]``. ``mean_loss_vals``: losses and metrics averaged over minibatches.
        """
        if not train and self._tested is not None:  # by datapoint, rather than by frame
            return with_test_prefix(self._tested)
        verifiers = list(self.protocol_handler.verifier_names)
        stats = rollout_stats(rollouts, self.agent_names, verifiers)
        losses = loss_stats(mean_loss_vals, self.agent_names)
        add_metrics(stats, losses, f"{type(self.components.loss_module).__name__}.forward")
        return stats if train else with_test_prefix(stats)

    def _add_normalization_transforms(self) -> None:
        """Fit the observation normalisation on frames of the initial agents."""
        rl = self.hyper_params.rl
        fit_normalization(
            self.combined_agents,
            self.train_environment,
            num_frames=1 if self.settings.test_run else rl.num_normalization_steps,
            seed=self.hyper_params.seed,
        )

    # -- components ------------------------------------------------------------------------

    def _build_operators(self) -> None:
        """Do nothing: both operators are created on use."""

    @property
    def policy_operator(self) -> PolicyOperator:
        """All agents as one policy, for losses and collectors."""
        from ratchet.agents.actor_critic import PolicyOperator

        return PolicyOperator(self.combined_agents)

    @property
    def value_operator(self) -> ValueOperator:
        """All agents as one critic."""
        from ratchet.agents.actor_critic import ValueOperator

        return ValueOperator(self.combined_agents)

    @cached_property
    def components(self) -> Components:
        """The components used for training, created on first use."""
        loss_module, gae = self.build_loss()
        loss_module.to(self.device)
        if self.hyper_params.rl.compile_losses:
            loss_module.compile_losses()
        collector, test_collector = self._get_data_collectors()
        optimizer, freezer = self._get_optimizer_and_param_freezer(loss_module)
        return Components(
            agents=self.combined_agents,
            loss_module=loss_module,
            gae=gae,
            collector=collector,
            test_collector=test_collector,
            replay_buffer=self._get_replay_buffer(),
            optimizer=optimizer,
            freezer=freezer,
            replaced=() if self.phase is None else self.phase.replaced,
        )

    @cached_property
    def _captured(self) -> CapturedUpdates:
        return CapturedUpdates(self.components)

    # -- phases ----------------------------------------------------------------------------

    def take_over(
        self,
        folder: Path,
        pool: Mapping[tuple[str, int], Path],
        fresh: Mapping[str, Path],
    ) -> None:
        """Start with the agents of another phase; see :class:`Components`."""
        parts, before = self.components, TrainerState.load(folder)
        first = {name: TrainerState.load(path).agents[name] for name, path in fresh.items()}
        parts.take_over(replace(before, agents={**before.agents, **first}), read_pool(pool))
        self.callbacks.load_spanning(before.callbacks, before.callback_tensors)
        self.iteration, self._stage = before.iteration, "phase_state"

    # -- state -----------------------------------------------------------------------------

    def _take_state(self, iteration: int, stage: str) -> TrainerState:
        """Copy everything that the next iteration depends on."""
        return self.components.take_state(iteration, stage)

    def _load_state(self, state: TrainerState) -> None:
        """Restore the result of :meth:`_take_state`."""
        self.components.load_state(state)

    def initial_state(self) -> TrainerState:
        """Restore the untrained agents, fit the normalisation, and return that state."""
        self.state = self.components.untrained
        normalization = load_earlier_agents(
            self.combined_agents, self.hyper_params.agents, self.state_finder
        )
        if self.hyper_params.rl.normalize_observations and normalization is not None:
            snapshots.load_normalization(self.combined_agents, normalization)
        elif self.hyper_params.rl.normalize_observations and self.combined_agents.normalizer.keys:
            seed = derive_seed(self.hyper_params.seed, "initial_state", 0, "globals")
            with ExitStack() as stack:
                self._build_train_context(stack)
                stack.enter_context(seeded_globals(seed))
                self._add_normalization_transforms()
        state: TrainerState = self.state
        return state

    # -- pretraining -----------------------------------------------------------------------

    @classmethod
    def pretrained_agent_names(cls, hyper_params: HyperParameters) -> list[str]:
        """Return the agents whose bodies are pretrained: those with weights to train."""
        if not hyper_params.pretrain_agents:
            return []
        names = build_protocol_handler(hyper_params).agent_names
        reasons = ("is_random", "use_manual_architecture", "load_checkpoint_and_parameters")
        return [n for n in names if not any(getattr(hyper_params.agents[n], r) for r in reasons)]

    def pretrain(self, agent_name: str) -> PretrainResult:
        """Train an agent's body on its own from the current state, which is not changed."""
        with _unchanged(self):
            return pretraining.pretrain_agent(self, agent_name)

    def load_pretrained(self, agent_name: str, result: PretrainResult) -> None:
        """Load a pretrained body into the state."""
        pretraining.load_pretrained(self.combined_agents, agent_name, result.weights)
        self._stage = "pretrain"

    # -- imitation -------------------------------------------------------------------------

    def imitate(self, agent_name: str, files: Sequence[Path] = ()) -> PretrainResult:
        """Train an agent to imitate its demonstrator, from the state, which is not changed."""
        with _unchanged(self):
            return behaviour_cloning.imitate(self, agent_name, files)

    def load_imitated(self, agent_name: str, result: PretrainResult) -> None:
        """Load the result of imitation into the state."""
        behaviour_cloning.load_imitated(self.combined_agents, agent_name, result.weights)
        self._stage = "imitate"

    # -- training --------------------------------------------------------------------------

    def _do_iteration(self, iteration: int) -> Metrics:
        """Run one iteration, changing agents, optimizer, loss and cursor; return its metrics."""
        rl, parts = self.hyper_params.rl, self.components
        with seeded_globals(derive_seed(self.hyper_params.seed, STAGE, iteration, "globals")):
            done = iteration - self.first_iteration
            learning = parts.freezer.freeze_for(done)
            parts.loss_module.select_agents(learning)
            scale = learning_rate_scale(done, rl.num_iterations, anneal=rl.anneal_lr)
            rates = set_learning_rates(parts.optimizer, rl.lr * scale)
            rollouts = with_sample_log_prob(self._collect(iteration))
            self.callbacks.after_rollouts(rollouts)
            parts.replay_buffer.store(rollouts)
            mean_losses = self._train_on_replay_buffer()
            parts.loss_module.end_iteration(mean_losses)
            parts.freezer.unfreeze()
            stats = self._get_log_stats(rollouts, mean_losses, train=True)
        return stats | {f"{group}.lr": rate for group, rate in rates.items()}

    def _collect(self, iteration: int) -> TensorDictBase:
        """Collect the rollouts of an iteration, ``[E, T]``, and estimate their advantages."""
        parts = self.components
        sample_from_pool(parts.agents, parts.pool, seed=self.hyper_params.seed, iteration=iteration)
        rollouts = parts.collector.collect(iteration)
        return rollouts if parts.gae is None else parts.gae(rollouts)

    def sample_rollouts(self, iteration: int) -> TensorDictBase:
        """Collect an iteration's rollouts ``[E, T]`` as in training, without changing the state."""
        seed = derive_seed(self.hyper_params.seed, STAGE, iteration, "globals")
        with _unchanged(self), seeded_globals(seed):
            return self._collect(iteration)

    def _train_on_replay_buffer(self) -> TensorDict:
        """Train the agents on the stored frames for several epochs.

        Returns losses, metrics and ``grad_norm``, averaged over minibatches.
        """
        rl, parts = self.hyper_params.rl, self.components
        shuffle = torch_generator(self.hyper_params.seed, STAGE, self.iteration, "minibatch")
        params = [p for group in parts.optimizer.param_groups for p in group["params"]]
        params = [param for param in params if param.requires_grad]
        update, captured = partial(_update, self, params), can_capture(self, parts)
        keys: Sequence[Key] | None = parts.loss_module.in_keys
        cache: AbstractContextManager[None] = nullcontext()
        if captured:
            keys = self._captured.start_iteration()
        else:
            self._captured.stop()
            cache = self.combined_agents.remembering(parts.replay_buffer.frames)
        seen: dict[str, list[Tensor]] = {}
        with cache:
            for _ in range(1 if self.settings.test_run else rl.num_epochs):
                batches = parts.replay_buffer.minibatches(shuffle, keys)
                run = self._captured.run(update, batches) if captured else map(update, batches)
                for losses in run:
                    for name, value in losses.items():
                        seen.setdefault(name, []).append(value)
                    if self.settings.test_run:
                        break
        means = {name: torch.stack(values).mean(0) for name, values in seen.items()}
        return TensorDict(means, batch_size=[])

    # -- testing ---------------------------------------------------------------------------

    @property
    def num_test_iterations(self) -> int:
        """The maximum number of batches of datapoints in a test."""
        iterations: int = self.hyper_params.rl.num_test_iterations
        return min(iterations, 1) if self.settings.test_run else iterations

    def _run_test_stage(
        self, dataset: str, iteration_context: IterationContext | None
    ) -> TestResult:
        """Test on a dataset; record videos of the first episodes of the test set."""
        player = self.components.test_collector
        player.num_filmed = self.test_environment.num_films if dataset == "test" else 0
        try:
            result = super()._run_test_stage(dataset, iteration_context)
            return replace(result, films=self.test_environment.film(player.filmed))
        finally:
            player.num_filmed, player.filmed = 0, {}

    def _test_on(self, dataset: str, iteration_context: IterationContext | None) -> TestResult:
        environment = environment_for(self.scenario_instance, dataset)
        player = self.components.test_collector
        if dataset != "test":
            seed = self.hyper_params.seed
            player = TestPlayer(environment, self.combined_agents, seed=seed, purpose=dataset)
        batches = self.num_test_iterations
        seed = derive_seed(self.hyper_params.seed, "test", 0, dataset)
        # a custom method requires a test's rollouts
        log_stats = getattr(self._get_log_stats, "__func__", None)
        player.keeps_rollouts = log_stats is not TensorDictRlTrainer._get_log_stats
        with seeded_globals(seed):
            on_batch = None if iteration_context is None else iteration_context.step
            table = player.play(batches * player.num_envs, on_batch)
        verifiers = list(self.protocol_handler.verifier_names)
        result = summarise_test(
            table,
            environment.dataset,
            self.agent_names,
            verifiers,
            player.measures,
            groups=test_groups(self.hyper_params),
        )
        if player.rollouts is None:
            return result
        self._tested = result.metrics
        try:
            stats = self._get_log_stats(with_sample_log_prob(player.rollouts), train=False)
        finally:
            self._tested = None
        metrics = {name.removeprefix(TEST_PREFIX): float(value) for name, value in stats.items()}
        return replace(result, metrics=metrics)

    @classmethod
    def stage_purposes(cls, hyper_params: HyperParameters) -> StagePurposes:
        """Return the purposes of each stage; with the number of iterations if training reads it."""
        stages = super().stage_purposes(hyper_params)
        if not cls.reads_num_iterations(hyper_params):
            return stages
        return stages | {STAGE: stages[STAGE] | {Purpose.HORIZON}}


@contextmanager
def _unchanged(trainer: TensorDictRlTrainer) -> Iterator[None]:
    """Enter the context of training, and restore the state afterwards."""
    before = trainer.state
    try:
        with ExitStack() as stack:
            trainer._build_train_context(stack)
            yield
    finally:
        trainer.state = before


def _precision(trainer: TensorDictRlTrainer) -> AbstractContextManager[object]:
    """Return the autocast context: bfloat16 if ``rl.mixed_precision`` is set."""
    if not trainer.hyper_params.rl.mixed_precision:
        return nullcontext()
    return torch.autocast(trainer.device.type, torch.bfloat16)


def _update(
    trainer: TensorDictRlTrainer, params: list[nn.Parameter], batch: TensorDictBase
) -> Mapping[str, Tensor]:
    """Update the parameters that learn on a minibatch; return losses, metrics and ``grad_norm``."""
    for param in params:
        param.grad = None
    losses = trainer.components.loss_module.compute_gradients(batch, _precision(trainer))
    trainer.callbacks.after_loss(losses)
    if all(param.grad is None for param in params):  # no learning agent acts in the minibatch
        return {**losses, "grad_norm": torch.zeros((), device=trainer.device)}
    norm = clip_gradients(params, trainer.hyper_params.rl.max_grad_norm)
    trainer.components.optimizer.step()
    return {**losses, "grad_norm": norm}
