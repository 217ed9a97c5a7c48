"""``LanguageTrainer``: the training loop around a language model's trainer.

An iteration: sample groups of completions and score them, prepare and optimise, update the
sampler's weights. :class:`trainers.language.base.BaseTrainer` defines the training step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import ParameterError, StateError
from ratchet.games.match import Game
from ratchet.parameters.purposes import Purpose
from ratchet.protocols.registry import playing_agents
from ratchet.rollouts.dataset import DataOrder
from ratchet.scenarios.language_task.instance import SampledModel
from ratchet.scenarios.language_task.validation import check_options, check_sizes, check_validation
from ratchet.seeding import derive_seed, seeded_globals
from trainers.base import deterministic_kernels, torch_threads
from trainers.callbacks.base import CallbackState
from trainers.custom_state import is_custom
from trainers.language.agents import check_agent, check_models, shared_models
from trainers.language.base import BaseTrainer, TrainingPosition
from trainers.language.learners import (
    build_learners,
    put_learner,
    put_weights,
    read_state,
    replaced_learners,
    take_learner,
    take_weights,
)
from trainers.language.models import MODELS_FOLDER
from trainers.language.ranks.rows import ranks_sample
from trainers.language.rollout_worker import TrainerRolloutWorker
from trainers.language.rollouts import Rollouts, joined_metrics
from trainers.language.state import LanguageState
from trainers.language.testing import summarise_answers
from trainers.pools import sampled_members
from trainers.progress import IterationContext
from trainers.results import FolderOf, Metrics, TestResult, add_metrics
from trainers.staged import STAGE, StagedTrainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.rollouts.transcript_content import Transcript
    from ratchet.scenarios.language_task.instance import LanguageTaskInstance
    from trainers.named import NamedTrainer
    from trainers.stage_parameters import StagePurposes

_PLAYED = frozenset({Purpose.GAME, Purpose.SPEECH})
LANGUAGE_STAGES: StagePurposes = {
    "initial_state": frozenset({Purpose.GAME, Purpose.NETWORKS, Purpose.PRETRAINING}),
    "rollouts": _PLAYED | {Purpose.ROLLOUTS},
    "train": _PLAYED | {Purpose.ROLLOUTS, Purpose.LEARNING},
    "test": _PLAYED | {Purpose.TESTS},
}
"""Stage → purposes for which it reads parameters."""
_OF_NETWORKS = frozenset(
    {
        *("pretrain_agents", "d_representation", "message_size"),
        *("include_linear_message_space", "d_linear_message_space"),
        *("rl", "solo_agent", "dataset_options", "protocol_common", "zk_protocol"),
        "message_regression",
    }
)
"""Parameters of all trainers that only networks, games or the data stage read."""


class LanguageTrainer(StagedTrainer):
    """Collects completions of tasks and trains a language model on its tokens.

    Users write a :class:`trainers.language.base.BaseTrainer`; :func:`loop_around` builds this
    class around it.

    With ``mode: one_step_behind`` a separate process samples while this one learns, once
    sequential sampling has taken ``plays_beside_after`` seconds: below that, starting the process
    would cost more than it saves. None, the default, disables it.
    """

    plays_beside_after: float | None = None
    only_plays: bool = False
    """Whether another process trains."""
    State = LanguageState
    traits = BaseTrainer.traits
    learner_class: ClassVar[type[BaseTrainer]]
    scenario_instance: LanguageTaskInstance
    _learners: Mapping[str, BaseTrainer] | None = None
    _initial: str = ""
    _cursor: int = 0
    _pending: Rollouts | None = None
    _pool: Mapping[str, str] = MappingProxyType({})
    _folder_of: FolderOf | None = None

    def _initialise_state(self) -> None:
        """Set no state: :meth:`initial_state` creates it."""
        self._given, self._given_ahead = dict[int, Rollouts](), dict[int, Callable[[], Rollouts]]()
        self._beside: TrainerRolloutWorker | None = None
        self._seconds_ahead = 0.0

    # -- the model and its trainer ------------------------------------------------------------

    @cached_property
    def model_names(self) -> dict[str, str]:
        """Agent → the name of its model, for agents that learn: its group, or itself."""
        agents = self.scenario_instance.agents
        return shared_models({name: agent.parameters for name, agent in agents.items()})

    @property
    def learners(self) -> Mapping[str, BaseTrainer]:
        """The models' trainers by model, created with their models on first use."""
        if self._learners is None:
            self._learners = self._build_learners()
        return self._learners

    @property
    def learner(self) -> BaseTrainer:
        """The model's trainer, in experiments with one model."""
        if len(self.learners) > 1:
            raise ParameterError(
                f"agents: got the models {', '.join(self.learners)}, expected one. What was"
                " requested uses a single model: give all agents one shared_model_group."
            )
        (learner,) = self.learners.values()
        return learner

    def _build_learners(self, initial: Path | None = None) -> Mapping[str, BaseTrainer]:
        """Create the learners with new models, or those in the folder of an initial state."""
        return build_learners(
            self.learner_class,
            self.hyper_params,
            self.settings,
            self.scenario_instance,
            self.model_names,
            initial=initial,
            find=self.state_finder,
            only_plays=self.only_plays,
        )

    def close(self) -> None:
        """Release the learner's resources, and end the rollout worker."""
        for learner in (self._learners or {}).values():
            learner.close()
        self._learners = None  # this object may live on, in a cycle of references
        if self._beside is not None:
            self._beside.close()
            self._beside = None

    @classmethod
    def check_parameters(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Refuse parameters that no learner, or not this one, can use."""
        agents = playing_agents(hyper_params, base_dir)
        for name, agent in agents.items():
            check_agent(name, agent)
        shared_models(agents)
        if hyper_params.phases and hyper_params.language.mode != "synchronous":
            raise ParameterError(
                f"phases: got {len(hyper_params.phases)} with language.mode="
                f"{hyper_params.language.mode}, expected synchronous: rollouts ahead of a phase"
                " would be those of the phase before."
            )
        check_options(hyper_params.language_task, base_dir)
        check_sizes(hyper_params.language_task, hyper_params.dataset)
        check_validation(hyper_params, base_dir)
        cls.learner_class.check_learner(hyper_params, agents)

    @classmethod
    def read_models(cls, hyper_params: HyperParameters, agents: Sequence[str]) -> dict[str, str]:
        """Return the models that are read from files: purpose → folder or name.

        ``agents`` are the names of the protocol's agents.
        """
        sections = {name: hyper_params.agents[name] for name in agents}
        read = {name: agent.model for name, agent in sections.items() if agent.reads_files}
        return {**read, **cls.learner_class.other_models(hyper_params)}

    @classmethod
    def playing_class(cls) -> type[LanguageTrainer]:
        """Return the class whose code determines rollouts: the common loop.

        If the learner filters groups, its own loop.
        """
        chosen = ("keeps_group", "max_resamples", "redraws")
        learner = cls.learner_class
        plain = all(getattr(learner, name) is getattr(BaseTrainer, name) for name in chosen)
        return LanguageTrainer if plain else cls

    # -- state -------------------------------------------------------------------------------

    def initial_state(self) -> LanguageState:
        """Build the initial models, warmed up if configured, and continue from them."""
        self.close()
        self._pending, self._initial, self._pool = None, "", {}
        self.iteration, self._stage, self._cursor = 0, "initial_state", 0
        return self._take_state(0, "initial_state")

    def _take_state(self, iteration: int, stage: str) -> LanguageState:
        return LanguageState(
            iteration=iteration,
            stage=stage,
            cursor=self._cursor if self._pending is None else self._pending.cursor,
            dataset_hash=self.scenario_instance.train_dataset.hash,
            initial=self._initial,
            learners={model: take_learner(self.learners, model) for model in self.learners},
            pending=None if self._pending is None else list(self._pending.trajectories),
            pending_metrics={} if self._pending is None else dict(self._pending.metrics),
            pool=dict(self._pool),
        )

    @property
    def _attribute_owner(self) -> NamedTrainer:
        """The learner: the user's class. Several learners store theirs next to their states."""
        return self.learner if len(self.learners) == 1 else self

    def _load_state(self, state: LanguageState) -> None:
        check_models(self.model_names, state.learners)
        dataset_hash = self.scenario_instance.train_dataset.hash
        if state.dataset_hash != dataset_hash:
            raise StateError(
                f"state: it belongs to the training set with the hash {state.dataset_hash}, got"
                f" {dataset_hash}. Train from scratch, or use the dataset that it was trained on."
            )
        for model in self.learners:
            put_learner(self.learners, model, state.learners[model])
        self._cursor, self._initial, self._pool = state.cursor, state.initial, state.pool
        self._pending = None
        if state.pending is not None:
            self._pending = Rollouts(list(state.pending), dict(state.pending_metrics), state.cursor)

    def save_state(self, folder: Path, key: str) -> None:
        """Write the state of a stage; for the initial state with the complete model."""
        if self._stage == "initial_state":
            self._initial = key
            self.save_model_in(folder)
        super().save_state(folder, key)

    def save_model_in(self, folder: Path) -> None:
        """Write the current models where :meth:`load_state` reads the initial ones."""
        for model, learner in self.learners.items():
            learner.save_model(folder / MODELS_FOLDER / model)

    def load_state(self, folder: Path, key: str, folder_of: FolderOf) -> None:
        """Continue from a stage's state, with the initial model from its own stage."""
        read = read_state(self.learner_class, folder, sampled=self.only_plays)
        self._continue_from(read, folder_of)

    def _continue_from(self, state: LanguageState, folder_of: FolderOf) -> None:
        check_models(self.model_names, state.learners)
        if self._learners is None and state.initial:
            self._learners = self._build_learners(folder_of(state.initial))
        self.state, self._folder_of = state, folder_of

    # -- phases ----------------------------------------------------------------------------

    def begin_phase(
        self, folder: Path, folder_of: FolderOf, pool: Mapping[str, str], fresh: Mapping[str, Path]
    ) -> None:
        """Start with the learners of another phase's state: unlike networks, with optimizers.

        ``pool``: member of an agent's pool → the key of its state; ``fresh``: agent → the folder of
        the state whose learner it starts with instead.
        """
        read, names = partial(read_state, self.learner_class), self.model_names
        before, first = read(folder), {names[agent]: read(path) for agent, path in fresh.items()}
        begun = replace(
            before,
            stage="phase_state",
            learners={**before.learners, **{m: state.learners[m] for m, state in first.items()}},
            callbacks={},
            callback_tensors={},
            pool=dict(pool),
        )
        if first and len(self.learners) == 1:  # whose class's attributes are not in its state
            begun = replace(begun, attributes=next(iter(first.values())).attributes)
        self._continue_from(begun, folder_of)
        self.callbacks.load_spanning(before.callbacks, before.callback_tensors)

    @property
    def _learning(self) -> frozenset[str]:
        """The models that learn in this phase."""
        names = self.model_names if self.phase is None else self.phase.learners
        return frozenset(self.model_names[name] for name in names)

    def take_weights(self) -> CallbackState:
        """Copy the trained weights, or their names at a service."""
        return take_weights(self.learners)

    def put_weights(self, weights: CallbackState) -> None:
        """Restore the result of :meth:`take_weights`."""
        put_weights(self.learners, weights)

    # -- rollouts ----------------------------------------------------------------------------

    def play_rollouts(self, iteration: int, *, cursor: int | None = None) -> Rollouts:
        """Collect an iteration's rollouts with the current weights; the state is not changed.

        Groups that the learner rejects are replaced by others if it allows resampling. ``cursor``:
        start position in the training set, if not the state's.
        """
        seed = derive_seed(self.hyper_params.seed, "roll_out", iteration, "globals")
        kernels = deterministic_kernels(self.settings)
        chosen = sampled_members(self._pool, seed=self.hyper_params.seed, iteration=iteration)
        states = {self.model_names[agent]: self._pool[name] for agent, name in chosen.items()}
        earlier = replaced_learners(self.learners, states, self._folder_of)
        with torch_threads(self.settings.num_threads), kernels, seeded_globals(seed), earlier:
            return self._play_rollouts(iteration, self._cursor if cursor is None else cursor)

    def _play_rollouts(self, iteration: int, cursor: int) -> Rollouts:
        language, learning = self.hyper_params.language, self._learning
        max_resamples = max(self.learners[model].max_resamples for model in learning)
        redraws = self.learners[min(learning)].redraws  # the same for all learners
        redraws = {a: number for a, number in redraws.items() if self.model_names[a] in learning}
        order = DataOrder(self.hyper_params.seed, len(self.scenario_instance.train_dataset))
        rollouts = Rollouts([], {}, cursor)
        missing, tries, parts = language.tasks_per_step, 0, list[Metrics]()
        accepted_runs: dict[str, set[str]] = {model: set() for model in learning}
        while missing > 0 and tries <= max_resamples:
            indices = order.take(rollouts.cursor, missing).tolist()
            rollouts.cursor += missing
            played = self.scenario_instance.play(
                "train",
                indices,
                self.sampled_models,
                iteration=iteration,
                attempt=tries,
                model_version=self.iteration,
                redraws=redraws,
            )
            groups: dict[str, list[Trajectory]] = {}
            for trajectory in played.trajectories:
                groups.setdefault(trajectory.group_id, []).append(trajectory)
            parts.append(played.metrics)
            for group in groups.values():
                model = self.model_names[group[0].agent]
                if model not in learning:
                    rollouts.trajectories += group
                elif self.learners[model].keeps_group(group):
                    rollouts.trajectories += group
                    accepted_runs[model].add(f"{tries}/{group[0].run_id}")
            missing = language.tasks_per_step - min(map(len, accepted_runs.values()))
            tries += 1
        rollouts.metrics = joined_metrics(parts)
        return rollouts

    @property
    def sampled_models(self) -> dict[str, SampledModel]:
        """The engine and tokenizer of each agent with a model."""
        return {
            agent: SampledModel(self.learners[model].engine, self.learners[model].tokenizer)
            for agent, model in self.model_names.items()
        }

    def rollouts_of(self, iteration: int) -> Rollouts:
        """Return the rollouts of an iteration, which may have been collected already."""
        return self._pending or self.play_rollouts(iteration)

    def give_rollouts(self, iteration: int, rollouts: Rollouts) -> None:
        """Set the rollouts of an iteration, collected by :meth:`play_rollouts`."""
        self._given[iteration] = rollouts

    def give_ahead(self, iteration: int, wait: Callable[[], Rollouts]) -> None:
        """Set an external source of the rollouts collected while the previous iteration trains.

        ``wait`` is called after the step.
        """
        self._given_ahead[iteration] = wait

    def _play_ahead(self, iteration: int) -> Callable[[], Rollouts]:
        """Start the next iteration's rollouts; return a function that waits for them."""
        provided_rollouts = self._given_ahead.pop(iteration, None)
        if provided_rollouts is not None:
            return provided_rollouts
        after = self.plays_beside_after
        if after is not None and self._seconds_ahead >= after:
            if self._beside is None:
                experiment = self.hyper_params, self.settings, self.scenario_instance.datasets
                self._beside = TrainerRolloutWorker(*experiment, self.save_model_in)
            return self._beside.play(self.state, iteration)
        begin = time.monotonic()
        played = self.play_rollouts(iteration)
        self._seconds_ahead += time.monotonic() - begin
        return lambda: played

    # -- training ----------------------------------------------------------------------------

    def _do_iteration(self, iteration: int) -> Metrics:
        """Collect rollouts, train, and update the sampler's weights."""
        rollouts = self._given.pop(iteration, None) or self.rollouts_of(iteration)
        self._cursor, self._pending = rollouts.cursor, None
        ahead = None
        if self.hyper_params.language.mode == "one_step_behind":
            # after the last iteration too: a longer run continues from the same state
            ahead = self._play_ahead(iteration + 1)
        self.callbacks.after_rollouts(rollouts.trajectories)
        metrics = self._train_learners(iteration, rollouts.trajectories)
        if ahead is not None:
            self._pending = ahead()
        versions = [trajectory.model_version for trajectory in rollouts.trajectories]
        staleness = {"rollout/staleness": iteration - fmean(versions)} if versions else {}
        counts = {**rollouts.metrics, **staleness}
        counts.pop("rollout/num_trajectories", None)  # the learner counts those that it uses
        add_metrics(counts, metrics, f"{self.learner_class.__name__}.train")
        return {**rollouts.metrics, **metrics, **staleness}

    def _train_learners(self, iteration: int, trajectories: list[Trajectory]) -> Metrics:
        """Train each model on its agents' trajectories; of several, metrics have its name."""
        metrics: Metrics = {}
        for model in [name for name in self.learners if name in self._learning]:
            learner, only = self.learners[model], len(self.learners) == 1
            learner.moment = TrainingPosition(
                self.hyper_params.seed, iteration, self.num_train_iterations, self.first_iteration
            )
            which = "" if only else model
            seed = derive_seed(self.hyper_params.seed, STAGE, iteration, "globals", which)
            its = [each for each in trajectories if self.model_names[each.agent] == model]
            with deterministic_kernels(self.settings, strict=True), seeded_globals(seed):
                learned = learner.train(trajectories if only else its)
            metrics |= learned if only else {f"{model}/{n}": v for n, v in learned.items()}
        return metrics

    # -- testing -----------------------------------------------------------------------------

    def _test_on(self, dataset: str, iteration_context: IterationContext | None) -> TestResult:
        tasks = self.scenario_instance.datasets[dataset]
        indices = range(len(tasks))[:1] if self.settings.test_run else range(len(tasks))
        played = self.scenario_instance.play(
            dataset,
            indices,
            self.sampled_models,
            iteration=0,
            is_validation=True,
            model_version=self.iteration,
        )
        if iteration_context is not None:
            iteration_context.step(len(indices))
        environment = self.scenario_instance.environments[dataset].rules.environment
        seats = environment.seats if isinstance(environment, Game) else ()
        places = {tasks[k].task_id: k for k in indices}
        result = summarise_answers(places, played.trajectories, seats)
        return replace(result, transcripts=self.transcripts(dataset, played.trajectories))

    def transcripts(self, dataset: str, trajectories: Sequence[Trajectory]) -> list[Transcript]:
        """Return transcripts of tasks of a dataset, for the report."""
        tokenizers = {agent: model.tokenizer for agent, model in self.sampled_models.items()}
        return self.scenario_instance.transcripts(dataset, trajectories, tokenizers)

    # -- keys --------------------------------------------------------------------------------

    @classmethod
    def stage_purposes(cls, hyper_params: HyperParameters) -> StagePurposes:
        """Return the purposes for which each stage reads parameters."""
        if not cls.learner_class.reads_horizon(hyper_params):
            return LANGUAGE_STAGES
        return {**LANGUAGE_STAGES, "train": LANGUAGE_STAGES["train"] | {Purpose.HORIZON}}

    @classmethod
    def stage_key_parameters(
        cls, hyper_params: HyperParameters, stage: str, agent_name: str | None = None
    ) -> dict[str, Any]:
        """Return the parameters that a stage reads; Ratchet's learners read none of networks."""
        parameters = super().stage_key_parameters(hyper_params, stage, agent_name)
        rounds = any(agent.precision != "float32" for agent in hyper_params.agents.values())
        language = hyper_params.language
        is_split = language.micro_batch_size is not None and not cls.traits.is_remote
        if stage == "train" and is_split and rounds:
            parameters["gradients"] = "float32"  # earlier versions added rounded ones
        if stage == "train" and is_split and language.train_service.world_size > 1:
            parameters["split"] = "by rank"  # earlier versions split rows before sharing them
        if stage != "initial_state" and ranks_sample(language):
            parameters["sampling_processes"] = language.train_service.world_size
        if is_custom(cls):  # custom trainers may read all parameters
            return parameters
        horizon = parameters.get("rl", {}).keys() & {"num_iterations"}
        rl = {"rl": {name: parameters["rl"][name] for name in horizon}} if horizon else {}
        section = {k: v for k, v in parameters.get("language", {}).items() if k != "algorithm"}
        if not cls.traits.is_remote and "train_service" in section:
            world_size = section["train_service"]["world_size"]  # it affects the rounding of sums
            section["train_service"] = {"world_size": world_size}
        rest = {name: value for name, value in parameters.items() if name not in _OF_NETWORKS}
        return {**rest, **rl, **({"language": section} if section else {})}


@cache
def loop_around(learner: type[BaseTrainer]) -> type[LanguageTrainer]:
    """Return the loop class that trains its model with ``learner``."""
    names = {
        "learner_class": learner,
        "traits": learner.traits,
        "__module__": learner.__module__,
        "__doc__": learner.__doc__,
    }
    return type(learner.__name__, (LanguageTrainer,), names)
