"""``LanguageTrainer``: the loop that plays tasks, has models learn from them, and keeps the state.

An iteration: play groups of answers and score them, prepare and optimise, give the new weights to
whoever plays. How a model learns is its :class:`trainers.language.base.BaseTrainer`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ratchet.errors import ParameterError, StateError
from ratchet.parameters.purposes import Purpose
from ratchet.rollouts.dataset import DataOrder
from ratchet.scenarios.language_task.validation import check_options, check_sizes, check_validation
from ratchet.seeding import derive_seed, seeded_globals
from trainers.callbacks.base import CallbackState
from trainers.custom_state import (
    Attributes,
    is_custom,
    is_custom_method,
    put_attributes,
    take_attributes,
)
from trainers.language.base import BaseTrainer, Beginning, LearningMoment, config_of
from trainers.language.models import MADE_HERE, build_model, load_built_model
from trainers.language.player import BesideTrainer
from trainers.language.rollouts import Rollouts
from trainers.language.state import LanguageState
from trainers.language.testing import summarise_answers
from trainers.progress import IterationContext
from trainers.staged import FolderOf, Metrics, TestResult
from trainers.state_tree import flatten_tree, unflatten_tree
from trainers.tensordict.staged import STAGE, StagedTensorDictTrainer

if TYPE_CHECKING:
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.rollouts.transcript_content import Transcript
    from ratchet.scenarios.language_task.instance import LanguageTaskInstance
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters
    from trainers.stage_parameters import StagePurposes

MODELS_FOLDER = "models"
_PLAYED = frozenset({Purpose.GAME, Purpose.SPEECH})
LANGUAGE_STAGES: StagePurposes = {
    "initial_state": frozenset({Purpose.GAME, Purpose.NETWORKS, Purpose.PRETRAINING}),
    "rollouts": _PLAYED | {Purpose.ROLLOUTS},
    "train": _PLAYED | {Purpose.ROLLOUTS, Purpose.LEARNING},
    "test": _PLAYED | {Purpose.TESTS},
}
"""What each stage reads parameters for."""
_BUILT_IN = "trainers."
_OF_NETWORKS = frozenset(
    {
        *("pretrain_agents", "d_representation", "message_size"),
        *("include_linear_message_space", "d_linear_message_space"),
        *("rl", "solo_agent", "dataset_options", "protocol_common", "zk_protocol"),
        "message_regression",
    }
)
"""Parameters of all trainers that are networks', or games', or for the stage of the data alone."""


class LanguageTrainer(StagedTensorDictTrainer):
    """Plays tasks with a language model that learns from its tokens.

    Not written by users, who write a :class:`trainers.language.base.BaseTrainer`: this is made
    around it, by :func:`loop_around`.

    With ``mode: one_step_behind`` a process of its own plays while this one learns, once playing in
    turn has taken ``plays_beside_after`` seconds: less than that, and starting it would not pay.
    None, as it is unless a run sets it, for never.
    """

    plays_beside_after: float | None = None
    only_plays: bool = False
    """Whether another process learns."""
    State = LanguageState
    learns_tokens = True
    learner_class: ClassVar[type[BaseTrainer]]
    scenario_instance: LanguageTaskInstance  # type: ignore[assignment]
    _learner: BaseTrainer | None = None
    _initial: str = ""
    _cursor: int = 0
    _pending: Rollouts | None = None

    def _initialise_state(self) -> None:
        """There is no state before :meth:`initial_state`."""
        self._given: dict[int, Rollouts] = {}
        self._given_ahead: dict[int, Callable[[], Rollouts]] = {}
        self._beside: BesideTrainer | None = None
        self._seconds_ahead = 0.0

    # -- the model and what it learns by -----------------------------------------------------

    @property
    def learner(self) -> BaseTrainer:
        """What the model learns by, made with its model when first asked for."""
        if self._learner is None:
            self._learner = self._connected(None)
        return self._learner

    def _connected(self, models: Path | None) -> BaseTrainer:
        """Make the learner with the first model: as a folder has it, or built anew."""
        name, instance, settings = self.agent_names[0], self.scenario_instance, self.settings

        def build() -> LanguageModel:
            if models is None:
                return build_model(instance, name, settings)
            return load_built_model(instance, name, settings, models / name)

        agent, section = instance.agents[name].parameters, self.learner_class.section
        base_dir = self.settings.base_dir
        seed = derive_seed(self.hyper_params.seed, "initial_state")
        with seeded_globals(derive_seed(self.hyper_params.seed, "initial_state", 0, "trainer")):
            learner = self.learner_class(config_of(self.hyper_params, section, agent, base_dir))
        with self._threads(), seeded_globals(seed):
            intent = f"{instance.train_dataset.hash}:{self.hyper_params.seed}:{name}"
            learner.begin(Beginning(build, agent, settings, intent, self.only_plays))
        return learner

    def close(self) -> None:
        """Let go of what the learner holds, and of the process that plays beside."""
        if self._learner is not None:
            self._learner.close()
        if self._beside is not None:
            self._beside.close()
            self._beside = None

    @classmethod
    def check_parameters(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Refuse what nobody could learn with, or the learner can't."""
        for name in hyper_params.agents:
            _check_agent(name, hyper_params.agents[name])
        check_options(hyper_params.language_task, base_dir)
        check_sizes(hyper_params.language_task, hyper_params.dataset)
        check_validation(hyper_params, base_dir)
        cls.learner_class.check_learner(hyper_params)

    @classmethod
    def needed_packages(cls, hyper_params: HyperParameters) -> Sequence[str]:
        """Return the optional packages that the learner needs."""
        return cls.learner_class.needed_packages(hyper_params)

    @classmethod
    def read_models(cls, hyper_params: HyperParameters) -> dict[str, str]:
        """Return the models that are read from files: what for → folder or name."""
        agents = {name: hyper_params.agents[name].model for name in hyper_params.agents}
        own = {name: model for name, model in agents.items() if model != MADE_HERE}
        return {**own, **cls.learner_class.other_models(hyper_params)}

    @classmethod
    def playing_class(cls) -> type[LanguageTrainer]:
        """Return the class whose code decides what is played: that of all learners' loops.

        Unless the learner says which groups are kept.
        """
        chosen = ("keeps_group", "max_resamples")
        learner = cls.learner_class
        plain = all(getattr(learner, name) is getattr(BaseTrainer, name) for name in chosen)
        return LanguageTrainer if plain else cls

    @property
    def num_train_iterations(self) -> int:
        """The number of training iterations; at most one in a test run."""
        iterations = self.count_train_iterations(self.hyper_params)
        return min(iterations, 1) if self.settings.test_run else iterations

    @property
    def num_test_iterations(self) -> int:
        """The number of tasks of a test; one in a test run."""
        return 1 if self.settings.test_run else len(self.scenario_instance.test_dataset)

    @classmethod
    def is_rebuilt_between_stages(cls, hyper_params: HyperParameters) -> bool:
        """Return whether the learner is a user's and its engine is cheap to start.

        An inference server keeps running: it takes a minute to start, and its GPU memory.
        """
        language = hyper_params.language
        default = type(language).model_fields["engine"].default
        return is_custom(cls.learner_class) and language.engine == default

    @classmethod
    def loads_agents(cls) -> bool:
        """Return False: a model to begin with is the agent's parameter ``model``."""
        return False

    # -- state -------------------------------------------------------------------------------

    def initial_state(self) -> LanguageState:
        """Make the models at the beginning, warmed up if asked for, and continue from them."""
        self.close()
        self._learner, self._pending, self._initial = None, None, ""
        self._iteration, self._stage, self._cursor = 0, "initial_state", 0
        return self._take_state(0, "initial_state")

    def _take_state(self, iteration: int, stage: str) -> LanguageState:
        values, tensors = flatten_tree(self.learner.take_state())
        return LanguageState(
            iteration=iteration,
            stage=stage,
            cursor=self._cursor if self._pending is None else self._pending.cursor,
            dataset_hash=self.scenario_instance.train_dataset.hash,
            initial=self._initial,
            learners={self.agent_names[0]: unflatten_tree(values, tensors)},
            pending=None if self._pending is None else list(self._pending.trajectories),
            pending_metrics={} if self._pending is None else dict(self._pending.metrics),
        )

    def _take_attributes(self) -> Attributes:
        learner = self.learner
        return take_attributes(learner, strict=not is_custom_method(type(learner), "take_state"))

    def _put_attributes(self, attributes: Attributes) -> None:
        put_attributes(self.learner, attributes)

    def _load_state(self, state: LanguageState) -> None:
        found = self.scenario_instance.train_dataset.hash
        if state.dataset_hash != found:
            raise StateError(
                f"state: it is of a training set with the hash {state.dataset_hash}, got one with"
                f" {found}. Train anew, or give the dataset that it was trained on."
            )
        self.learner.put_state(state.learners[self.agent_names[0]])
        self._cursor, self._initial = state.cursor, state.initial
        self._pending = None
        if state.pending is not None:
            self._pending = Rollouts(list(state.pending), dict(state.pending_metrics), state.cursor)

    def save_state(self, folder: Path, key: str) -> None:
        """Write the state as that of a stage; of the first one with the whole model."""
        if self._stage == "initial_state":
            self._initial = key
            self.save_model_in(folder)
        super().save_state(folder, key)

    def save_model_in(self, folder: Path) -> None:
        """Write the model as it is to where :meth:`load_state` reads that at the beginning."""
        self.learner.save_model(folder / MODELS_FOLDER / self.agent_names[0])

    def load_state(self, folder: Path, key: str, folder_of: FolderOf) -> None:
        """Continue from a stage's state, with the model at the beginning from its own stage."""
        state = LanguageState.load(folder)
        if self._learner is None and state.initial:
            self._learner = self._connected(folder_of(state.initial) / MODELS_FOLDER)
        self.state = state

    def take_weights(self) -> CallbackState:
        """Copy the weights that learn, or what names them at a service."""
        return self.learner.take_weights()

    def put_weights(self, weights: CallbackState) -> None:
        """Put in place what :meth:`take_weights` returned."""
        self.learner.put_weights(weights)

    # -- playing -----------------------------------------------------------------------------

    def play_rollouts(self, iteration: int, *, cursor: int | None = None) -> Rollouts:
        """Play an iteration's tasks with the weights as they are; the state stays as it is.

        Groups that the learner can learn nothing from give way to others, where it asks for that.
        ``cursor``: where in the training set to begin, if not where the state says.
        """
        seed = derive_seed(self.hyper_params.seed, "roll_out", iteration, "globals")
        with self._threads(), seeded_globals(seed):
            return self._play_rollouts(iteration, self._cursor if cursor is None else cursor)

    def _play_rollouts(self, iteration: int, cursor: int) -> Rollouts:
        learner, language = self.learner, self.hyper_params.language
        order = DataOrder(self.hyper_params.seed, len(self.scenario_instance.train_dataset))
        rollouts = Rollouts([], {}, cursor)
        missing, tries, parts = language.tasks_per_step, 0, list[Metrics]()
        while missing > 0 and tries <= learner.max_resamples:
            places = order.take(rollouts.cursor, missing).tolist()
            rollouts.cursor += missing
            played = self.scenario_instance.play(
                "train",
                places,
                learner.engine,
                learner.tokenizer,
                iteration=iteration,
                attempt=tries,
                model_version=self._iteration,
            )
            kept = [group for group in _groups(played.trajectories) if learner.keeps_group(group)]
            rollouts.trajectories += [trajectory for group in kept for trajectory in group]
            parts.append(played.metrics)
            missing -= len(kept)
            tries += 1
        rollouts.metrics = _joined(parts)
        return rollouts

    def rollouts_of(self, iteration: int) -> Rollouts:
        """Return what an iteration learns from, which may have been played already."""
        return self._pending or self.play_rollouts(iteration)

    def give_rollouts(self, iteration: int, rollouts: Rollouts) -> None:
        """Have an iteration learn from these rollouts, which :meth:`play_rollouts` has played."""
        self._given[iteration] = rollouts

    def give_ahead(self, iteration: int, wait: Callable[[], Rollouts]) -> None:
        """Have what is played while the iteration before learns taken from elsewhere.

        ``wait`` is called once the step has been taken.
        """
        self._given_ahead[iteration] = wait

    def _play_ahead(self, iteration: int) -> Callable[[], Rollouts]:
        """Begin to play what the next iteration learns from; return how to wait for it."""
        elsewhere = self._given_ahead.pop(iteration, None)
        if elsewhere is not None:
            return elsewhere
        after = self.plays_beside_after
        if after is not None and self._seconds_ahead >= after:
            if self._beside is None:
                given = self.hyper_params, self.settings, self.scenario_instance.datasets
                self._beside = BesideTrainer(*given, self.save_model_in)
            return self._beside.play(self.state, iteration)
        begin = time.monotonic()
        played = self.play_rollouts(iteration)
        self._seconds_ahead += time.monotonic() - begin
        return lambda: played

    # -- training ----------------------------------------------------------------------------

    def _build_train_context(self, stack: ExitStack) -> list[AbstractContextManager[Any]]:
        """Put threads and seeds on the stack."""
        seed = derive_seed(self.hyper_params.seed, STAGE)
        return self._enter(stack, self._threads(), seeded_globals(seed))

    def _build_test_context(self, stack: ExitStack) -> list[AbstractContextManager[Any]]:
        """Put threads and seeds on the stack, and no gradients."""
        seed = derive_seed(self.hyper_params.seed, "test")
        return self._enter(stack, self._threads(), seeded_globals(seed), torch.no_grad())

    def _do_iteration(self, iteration: int) -> Metrics:
        """Play, learn, and hand the new weights to whoever plays."""
        rollouts = self._given.pop(iteration, None) or self.rollouts_of(iteration)
        self._cursor, self._pending = rollouts.cursor, None
        ahead = None
        if self.hyper_params.language.mode == "one_step_behind":
            # behind the last iteration too: a longer run goes on from the same state
            ahead = self._play_ahead(iteration + 1)
        self.callbacks.after_rollouts(rollouts.trajectories)
        learner = self.learner
        learner.moment = LearningMoment(
            self.hyper_params.seed, iteration, self.num_train_iterations
        )
        seed = derive_seed(self.hyper_params.seed, STAGE, iteration, "globals")
        with seeded_globals(seed):
            metrics = learner.train(rollouts.trajectories)
        if ahead is not None:
            self._pending = ahead()
        versions = [trajectory.model_version for trajectory in rollouts.trajectories]
        staleness = {"rollout/staleness": iteration - fmean(versions)} if versions else {}
        return {**rollouts.metrics, **metrics, **staleness}

    # -- testing -----------------------------------------------------------------------------

    def _test_on(self, dataset: str, iteration_context: IterationContext | None) -> TestResult:
        places = list(range(len(self.scenario_instance.datasets[dataset])))
        places = places[:1] if self.settings.test_run else places
        learner = self.learner
        played = self.scenario_instance.play(
            dataset,
            places,
            learner.engine,
            learner.tokenizer,
            iteration=0,
            is_validation=True,
            model_version=self._iteration,
        )
        if iteration_context is not None:
            iteration_context.step(len(places))
        tasks = self.scenario_instance.datasets[dataset]
        result = summarise_answers({tasks[k].task_id: k for k in places}, played.trajectories)
        return replace(result, transcripts=self.transcripts(dataset, played.trajectories))

    def transcripts(self, dataset: str, trajectories: Sequence[Trajectory]) -> list[Transcript]:
        """Write down what was said in tasks of a dataset, for the report."""
        return self.scenario_instance.transcripts(dataset, trajectories, self.learner.tokenizer)

    # -- keys --------------------------------------------------------------------------------

    @classmethod
    def stage_purposes(cls, hyper_params: HyperParameters) -> StagePurposes:
        """Return what each stage reads parameters for."""
        if not cls.learner_class.reads_horizon(hyper_params):
            return LANGUAGE_STAGES
        return {**LANGUAGE_STAGES, "train": LANGUAGE_STAGES["train"] | {Purpose.HORIZON}}

    @classmethod
    def stage_key_parameters(
        cls, hyper_params: HyperParameters, stage: str, agent_name: str | None = None
    ) -> dict[str, Any]:
        """Return the parameters that a stage reads: of Ratchet's own learners none of networks'."""
        found = super().stage_key_parameters(hyper_params, stage, agent_name)
        if not cls.__module__.startswith(_BUILT_IN):  # who may read what they like
            return found
        horizon = found.get("rl", {}).keys() & {"num_iterations"}
        rl = {"rl": {name: found["rl"][name] for name in horizon}} if horizon else {}
        language = {k: v for k, v in found.get("language", {}).items() if k != "algorithm"}
        if cls.learner_class.has_model_here and "train_service" in language:
            world_size = language["train_service"]["world_size"]  # sums are rounded otherwise
            language["train_service"] = {"world_size": world_size}
        kept = {name: value for name, value in found.items() if name not in _OF_NETWORKS}
        return {**kept, **rl, **({"language": language} if language else {})}


@cache
def loop_around(learner: type[BaseTrainer]) -> type[LanguageTrainer]:
    """Return the loop whose model learns by a trainer."""
    names = {"learner_class": learner, "__module__": learner.__module__, "__doc__": learner.__doc__}
    return type(learner.__name__, (LanguageTrainer,), names)


def _check_agent(name: str, agent: LanguageAgentParameters) -> None:
    """Refuse answers that are not drawn, and an adapter of a model that is made here."""
    if agent.temperature == 0:
        raise ParameterError(
            f"agents.{name}.temperature: got 0, expected more: answers to a task are compared, and"
            " all would be the same. Tests have a temperature of their own,"
            " language.test_temperature."
        )
    if agent.lora.rank is not None and agent.model == MADE_HERE:
        raise ParameterError(
            f"agents.{name}.lora.rank: got {agent.lora.rank} with the model {MADE_HERE!r}, which is"
            " made here and trained as a whole; leave it out, or give a model's folder or name."
        )


def _groups(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return list(groups.values())


def _joined(parts: Sequence[Mapping[str, float]]) -> Metrics:
    """Sum counts and average the rest over what was played one after the other."""
    names = dict.fromkeys(name for part in parts for name in part)
    found = {name: [part[name] for part in parts if name in part] for name in names}
    return {
        name: sum(values) if name.startswith("rollout/num_") else sum(values) / len(values)
        for name, values in found.items()
    }
