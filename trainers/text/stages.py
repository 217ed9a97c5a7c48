"""The stages of text trainers: sample rollouts, evaluate them, fine-tune the models, test.

:meth:`PureTextRlTrainer.train` runs them in plain Python; tasks run the same stages and store each.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.language_models.budget_reservations import BudgetReservation
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget, PriceTable
from ratchet.language_models.usage import UsageMeter
from ratchet.parameters.purposes import Purpose
from ratchet.rollouts.concatenation import concatenate_nested_array_dicts
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.outcomes import rollout_statistics
from ratchet.rollouts.tokens import even_out_tokens
from ratchet.rollouts.transcripts import write_transcripts
from ratchet.scenarios.pure_text.agents.whole_agent import CallContext
from ratchet.scenarios.pure_text.rollout import sample_rollout
from ratchet.scenarios.pure_text.rules import rules_of
from ratchet.scenarios.pure_text.views import view_of
from trainers.progress import describe, progress_path, show
from trainers.results import Metrics
from trainers.stage_parameters import TEXT_STAGES, StagePurposes, stage_parameters
from trainers.text.components import TextTrainerComponents
from trainers.text.jobs import AroundJob, await_jobs, no_job_stats
from trainers.text.plans import PlannedRollout, call_seed, test_plan, train_plan
from trainers.text.redraws import continued_calls, last_turn
from trainers.text.sampling import Calls, play_rollouts
from trainers.text.state import State as TrainerState
from trainers.text.state import TrainLoopStage

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from ratchet.scenarios.pure_text.episode import AgentAction, Position


_SAMPLING = {"sample_rollouts", "_sample_rollouts", "_sample_one"}


class TextTrainerStages(TextTrainerComponents):
    """The stages of :class:`trainers.text.base.PureTextRlTrainer`."""

    stage_metrics: Mapping[str, float] = {}
    """Metrics that callbacks added to the last stage, if it has no other metrics."""
    training_usage: UsageMeter | None = None
    """Usage of the jobs awaited last."""
    around_job: AroundJob | None = None
    """Wrapper that awaits each group's job, e.g. in a separate task; default: the trainer."""
    _calls: Calls | None = None

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of calls and jobs; a run's stages receive the run's ledger."""
        return Ledger(Budget(self.settings.budget))

    # -- for subclasses --------------------------------------------------------------------

    @abstractmethod
    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        """Create a fine-tune job for each learning shared model group.

        Call ``create_supervised_fine_tune_job`` or ``create_dpo_fine_tune_job`` of each of
        :attr:`learning_model_groups`. The rollouts, batch [N], are the iteration's, preceded by
        those of all earlier ones if ``text_rl.fine_tune_on_all_previous_rollouts`` is set.
        """

    def _sample_rollouts(
        self, environment: PureTextEnvironment, iteration: int, use_tqdm: bool = False
    ) -> NestedArrayDict:
        """Collect the rollouts of an iteration or a test concurrently: batch [N].

        A test's rollouts don't depend on the iteration. See
        :func:`ratchet.rollouts.specs.rollout_spec`. Raises RolloutError if some failed.
        """
        plan = self._plan_rollouts(environment, iteration)
        workers = self.settings.num_rollout_workers
        with self._open_calls() as opened:
            calls = replace(opened, slots=asyncio.Semaphore(workers))
            parts = asyncio.run(
                play_rollouts(
                    plan,
                    lambda planned: self._sample_one(environment, iteration, planned, calls),
                    workers=workers,
                    show_progress=use_tqdm,
                )
            )
        rollouts = concatenate_nested_array_dicts(parts)
        rollouts["rollout_id"] = np.arange(len(rollouts))
        return rollouts

    async def _sample_one(
        self,
        environment: PureTextEnvironment,
        iteration: int,
        planned: PlannedRollout,
        calls: Calls,
    ) -> NestedArrayDict:
        """Collect one planned rollout; batch [1].

        If a subclass requests more than one reply at each step, it must override
        :meth:`responses_per_step`, and :meth:`examples_per_rollout` with the resulting number of
        examples: estimates and budgets depend on them.
        """
        context = self._call_context(environment, iteration, calls)
        return await sample_rollout(
            environment,
            self.text_agents,
            planned.datapoint_id,
            planned.seed,
            planned.rollout_id,
            context,
        )

    def _get_log_stats(self, rollouts: NestedArrayDict, *, train: bool = True) -> Metrics:
        """Return the statistics of rollouts, those of a test with the prefix ``test_``."""
        return rollout_statistics(
            rollouts,
            self.agent_names,
            self.protocol_handler.verifier_names[0],
            prefix="" if train else "test_",
        )

    def save_transcripts(self, folder: Path, rollouts: NestedArrayDict) -> None:
        """Write readable transcripts and prompts, if ``text_rl.save_transcripts`` is set."""
        text_rl, protocol = self.hyper_params.text_rl, self.protocol_handler
        if text_rl.save_transcripts:
            write_transcripts(
                folder,
                rollouts,
                self.agent_names,
                protocol.message_channel_names,
                verifier_name=protocol.verifier_names[0],
                format=text_rl.transcript_format,
            )

    def replay_last_turns(
        self,
        rollouts: NestedArrayDict,
        agent: str,
        edit: Callable[[Position], Position],
        name: str,
    ) -> list[AgentAction]:
        """Return an agent's actions in its last turn of a test's rollouts [N], after an edit.

        ``edit`` changes the agent's position, e.g. a fact or another agent's message. The calls
        have the seeds of the test: with the same prompt, a model with seeds repeats its reply.
        ``name`` distinguishes them in the stage's journal. Raises RolloutError if a call fails or
        an agent has no turn.
        """
        handler, workers = self.protocol_handler, self.settings.num_rollout_workers

        async def replay(planned: PlannedRollout) -> AgentAction:
            position = edit(last_turn(handler, rollouts, planned.rollout_id, agent))
            view = view_of(rules_of(handler), position, agent)
            original = replace(context, call_prefix=f"r{planned.rollout_id}")
            prefix = f"{original.call_prefix}/{name}"
            return await self.text_agents[agent].act(view, continued_calls(original, prefix))

        columns = (rollouts[key].tolist() for key in ("rollout_id", "datapoint_id", "seed"))
        plan = [PlannedRollout(*row) for row in zip(*columns, strict=True)]
        with self._open_calls() as calls:
            context = self._call_context(self.test_environment, 0, calls)
            return asyncio.run(play_rollouts(plan, replay, workers=workers, show_progress=False))

    # -- what plans and keys read ----------------------------------------------------------

    @classmethod
    def count_train_iterations(cls, hyper_params: HyperParameters) -> int:
        """Return the number of training iterations, before any component is built."""
        return int(hyper_params.rl.num_iterations)

    @classmethod
    def tests_during_training(cls, hyper_params: HyperParameters, iteration: int) -> bool:
        """Return whether the agents are tested in an iteration, by ``text_rl.test_scheme``."""
        last = cls.count_train_iterations(hyper_params) - 1
        tested = {"all": {iteration}, "last": {last}, "first_and_last": {0, last}}
        return iteration in tested.get(hyper_params.text_rl.test_scheme, ())

    @classmethod
    def iteration_stages(
        cls, hyper_params: HyperParameters, iteration: int
    ) -> list[TrainLoopStage]:
        """Return the stages of an iteration in their order; the last iteration has no jobs."""
        stages: list[TrainLoopStage] = ["sample_rollouts", "log_stats"]
        if cls.tests_during_training(hyper_params, iteration):
            stages.append("test_during_training")
        if iteration < cls.count_train_iterations(hyper_params) - 1:
            stages += ["create_fine_tune_jobs", "await_fine_tune_jobs"]
        return stages

    @classmethod
    def responses_per_step(cls, hyper_params: HyperParameters) -> int:
        """Return the number of replies sampled at each step: 1 for a game, more for a tree."""
        return 1

    @classmethod
    def redraws_per_turn(cls, hyper_params: HyperParameters) -> Mapping[str, int]:
        """Return how often each turn of an agent is sampled again from its prefix, by agent."""
        return {}

    @classmethod
    def examples_per_rollout(cls, hyper_params: HyperParameters, num_rounds: int) -> float:
        """Return the largest number of an agent's examples from a game or a tree."""
        return 1.0

    @classmethod
    def declares_sample_count(cls) -> bool:
        """Return whether a subclass that overrides sampling also declares ``responses_per_step``.

        A base class's declaration does not apply to a subclass that overrides sampling.
        """
        namespaces = [vars(each) for each in cls.__mro__[: cls.__mro__.index(TextTrainerStages)]]
        for names in namespaces:
            if "responses_per_step" in names:
                return True
            if not _SAMPLING.isdisjoint(names):
                return False
        return True

    @classmethod
    def stage_purposes(cls, hyper_params: HyperParameters) -> StagePurposes:
        """Return the purposes of each stage; tests depend on rollouts if they use a subset."""
        if hyper_params.text_rl.test_on_whole_dataset:
            return TEXT_STAGES
        tests = ("test_during_training", "test")
        return TEXT_STAGES | {name: TEXT_STAGES[name] | {Purpose.ROLLOUTS} for name in tests}

    @classmethod
    def stage_key_parameters(
        cls, hyper_params: HyperParameters, stage: str, iteration: int = 0
    ) -> dict[str, Any]:
        """Return the parameters that a stage reads, as plain data.

        Raises UnknownNameError for a stage that is not in :meth:`stage_purposes`.
        """
        parameters = stage_parameters(hyper_params, cls, cls.stage_purposes(hyper_params), stage)
        protocol = parameters.get(f"{hyper_params.interaction_protocol}_protocol", {})
        if "played_message_rounds" in protocol:
            parameters["announced"] = "last played round"  # earlier versions: of all rounds
        return parameters

    # -- the stages of an iteration --------------------------------------------------------

    @property
    def num_train_iterations(self) -> int:
        """The number of training iterations, with those of earlier phases."""
        return self.first_iteration + self.count_train_iterations(self.hyper_params)

    def sample_rollouts(
        self, iteration: int, journal_path: Path
    ) -> tuple[NestedArrayDict, UsageMeter]:
        """Collect the rollouts of the state's iteration with its models.

        Finished calls are stored in the journal until the rollouts are; those already in it are not
        repeated. Raises RolloutError if a rollout failed, after all others were completed and
        journalled.
        """
        self._check_iteration(iteration)
        self._describe("Sampling rollouts", iteration)
        with (
            self.callbacks.stage("sample_rollouts", iteration) as self.stage_metrics,
            self._open_calls(journal_path, "sample_rollouts") as calls,
        ):
            rollouts = self._sample_rollouts(self.train_environment, iteration, use_tqdm=True)
        return rollouts, calls.usage

    def compute_stats(self, iteration: int, rollouts: NestedArrayDict) -> Metrics:
        """Return the statistics of the iteration's rollouts, including those of callbacks.

        Afterwards the state contains the callbacks' states, and whether one has stopped the run.
        """

        def work() -> Metrics:
            self.callbacks.after_rollouts(rollouts)
            return self._get_log_stats(rollouts, train=True)

        last = iteration + 1 == self.num_train_iterations
        metrics = self.callbacks.iterate(iteration, work, last=last) or {}
        show(metrics)
        return metrics

    def test(
        self, iteration: int | Literal["test"], journal_path: Path, dataset: str = "test"
    ) -> tuple[NestedArrayDict, Metrics, UsageMeter]:
        """Collect and evaluate test rollouts with the models of the state, which is not changed.

        Datapoints and seeds depend neither on the iteration nor on the models, so that tests are
        paired. ``iteration`` is the state's, or ``"test"`` for the test after training; the journal
        is as in :meth:`sample_rollouts`.
        """
        if iteration != "test":
            self._check_iteration(iteration)
        environments = self.scenario_instance.test_environments
        if dataset not in environments:
            raise UnknownNameError(
                f"test: unknown dataset {dataset!r}.{nearest(dataset, environments)}"
            )
        stage = "test" if iteration == "test" else "test_during_training"
        self._describe("Testing" if dataset == "test" else f"Testing on {dataset}", iteration)
        with (
            self._open_calls(journal_path, stage) as calls,
            self.callbacks.stage(stage, self._iteration) as metrics,
        ):
            rollouts = self._sample_rollouts(environments[dataset], self._iteration, use_tqdm=True)
            self.callbacks.tested_rollouts = rollouts
            metrics.update(self._get_log_stats(rollouts, train=False))
        show(metrics)
        return rollouts, metrics, calls.usage

    def create_fine_tune_jobs(
        self,
        iteration: int,
        rollouts: NestedArrayDict,
        previous_rollouts: Sequence[NestedArrayDict] = (),
    ) -> TrainerState:
        """Create the jobs that train the next models; return the state with their ids.

        None are created once a callback has stopped the run. A repeated call with the same
        arguments finds the existing jobs. Not for the last iteration. ``previous_rollouts`` are
        those of all earlier iterations of the phase, in order, if
        ``text_rl.fine_tune_on_all_previous_rollouts`` is set.
        """
        self._check_iteration(iteration)
        if not self.has_stopped:
            self._describe("Creating fine-tune jobs", iteration)
            with self.callbacks.stage("create_fine_tune_jobs", iteration) as self.stage_metrics:
                self._create_fine_tune_jobs(iteration, rollouts, previous_rollouts)
        self._stage = "await_fine_tune_jobs"
        return self.state

    def _create_fine_tune_jobs(
        self,
        iteration: int,
        rollouts: NestedArrayDict,
        previous_rollouts: Sequence[NestedArrayDict],
    ) -> None:
        if self.hyper_params.text_rl.fine_tune_on_all_previous_rollouts:
            expected = iteration - self.first_iteration
            if len(previous_rollouts) != expected:
                raise ParameterError(
                    f"create_fine_tune_jobs: got the rollouts of {len(previous_rollouts)} earlier"
                    f" iterations, expected {expected}."
                )
            batches = [*previous_rollouts, rollouts]
            even_out_tokens(batches)
            rollouts = concatenate_nested_array_dicts(batches)
        self._set_learning_agents()
        self._set_training_allowance()
        self._stage_create_fine_tune_jobs(rollouts)

    def await_fine_tune_jobs(self, iteration: int) -> TrainerState:
        """Wait for the jobs and switch to their models; return the next iteration's initial state.

        Raises FineTuneError if a job failed, with the service's reason.
        """
        self._check_iteration(iteration)
        self.training_usage = None
        if not self.has_stopped:
            self.training_usage = UsageMeter("await_fine_tune_jobs", self.ledger)
            self._set_training_allowance()
            with (
                progress_path(self._place(iteration)),
                self.callbacks.stage("await_fine_tune_jobs", iteration) as self.stage_metrics,
            ):
                groups, usage = self.shared_model_groups, self.training_usage
                asyncio.run(await_jobs(groups, usage, self.around_job))
        self._iteration, self._stage = iteration + 1, "sample_rollouts"
        return self.state

    def _place(self, iteration: int) -> str:
        count = self.count_train_iterations(self.hyper_params)
        progress = f"iteration {iteration - self.first_iteration + 1} of {count}"
        return progress if self.phase is None else f"phase {self.phase.name}, {progress}"

    def _describe(self, description: str, iteration: int | Literal["test"]) -> None:
        """Report the current stage and iteration to the progress reporter."""
        with progress_path(*([] if iteration == "test" else [self._place(iteration)])):
            describe(description)

    def job_stats(self) -> Metrics:
        """Return, as 0 or 1, which groups have no job: too few examples, or frozen.

        For the state after :meth:`create_fine_tune_jobs`.
        """
        return {**no_job_stats(self.shared_model_groups), **self.stage_metrics}

    # -- sampling --------------------------------------------------------------------------

    def _is_training(self, environment: PureTextEnvironment) -> bool:
        return environment is self.train_environment

    def _call_context(
        self, environment: PureTextEnvironment, iteration: int, calls: Calls
    ) -> CallContext:
        """Return the context of calls: journal, usage meter and base seed."""
        training = self._is_training(environment)
        seed = call_seed(self.hyper_params.seed, training=training, iteration=iteration)
        return CallContext(journal=calls.journal, usage=calls.usage, call_prefix="", seed=seed)

    def _plan_rollouts(
        self, environment: PureTextEnvironment, iteration: int
    ) -> list[PlannedRollout]:
        """Plan the rollouts' datapoints and seeds."""
        seed, size = self.hyper_params.seed, len(environment.dataset)
        text_rl = self.hyper_params.text_rl
        each = text_rl.rollouts_per_datapoint
        datapoints = self.train_environment.num_rollouts_per_iteration // each
        if self._is_training(environment):
            return train_plan(seed, iteration, size, datapoints, each)
        tested = None if text_rl.test_on_whole_dataset else datapoints
        return test_plan(seed, size, tested, text_rl.test_rollouts_per_datapoint)

    def _set_training_allowance(self) -> None:
        """Let the ledger bill the iteration's jobs."""
        allowance = BudgetReservation(self.ledger, PriceTable.load(self.settings.prices))
        for group in self.shared_model_groups.values():
            group.allowance = allowance

    @contextmanager
    def _open_calls(self, journal_path: Path | None = None, stage: str = "") -> Iterator[Calls]:
        """Open the journal of a stage; within a stage, return the current one.

        Without a path, and outside of a stage, finished calls are stored only until it is closed.
        """
        if self._calls is not None:
            yield self._calls
            return
        for group in self.shared_model_groups.values():
            group.make_callable()
        with ExitStack() as stack:
            if journal_path is None:
                journal_path = Path(stack.enter_context(TemporaryDirectory())) / "calls.jsonl"
            journal = stack.enter_context(CallJournal(journal_path))
            self._calls = Calls(journal, UsageMeter(stage, self.ledger))
            try:
                yield self._calls
            finally:
                self._calls = None
