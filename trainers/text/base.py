"""Base class of text trainers: sample rollouts, evaluate them, fine-tune the models, repeat.

A subclass implements ``_stage_create_fine_tune_jobs``. :meth:`PureTextRlTrainer.train` runs the
stages in plain Python; tasks run the same stages and store each.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ratchet.errors import FineTuneError, ParameterError, UnknownNameError, nearest
from ratchet.language_models.budget_reservations import BudgetReservation
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.pricing import PriceTable
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
from trainers.custom_state import is_custom_method
from trainers.progress import describe, progress_path, show
from trainers.stage_parameters import StagePurposes, stage_parameters
from trainers.text.components import TextTrainerComponents
from trainers.text.jobs import await_jobs, no_job_stats, without_jobs
from trainers.text.loop_files import LoopFiles, refuse_changed_parameters
from trainers.text.plans import PlannedRollout, call_seed, test_plan, train_plan
from trainers.text.redraws import continued_calls, last_turn
from trainers.text.sampling import Calls, play_rollouts
from trainers.text.staged import TEXT_STAGES, Metrics, StagedTextTrainer
from trainers.text.state import State as TrainerState
from trainers.text.state import TrainLoopStage

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from ratchet.scenarios.pure_text.episode import AgentAction, Position


_SAMPLING = {"sample_rollouts", "_sample_rollouts", "_sample_one"}


class PureTextRlTrainer(TextTrainerComponents, StagedTextTrainer):
    """Base of trainers whose agents are chat models.

    Subclasses implement :meth:`_stage_create_fine_tune_jobs`; they may override
    :meth:`_sample_rollouts` and :meth:`_get_log_stats`. If a subclass overrides sampling,
    :meth:`responses_per_step` must return its number of replies at each step, which plans need.
    """

    training_usage: UsageMeter | None = None
    """Usage of the jobs awaited last."""
    _calls: Calls | None = None

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

    # -- the loop --------------------------------------------------------------------------

    def train(self) -> None:
        """Train and test, from the current state, the run's checkpoint, or the initial state.

        A run with an id saves a checkpoint after each stage; a killed one continues after its last
        finished stage, and repeats no finished call.
        """
        base = self.checkpoint_base_dir if self._saves_checkpoints else None
        with LoopFiles.open(base, self.settings.budget) as files:
            self.ledger = files.ledger
            self._start(files)
            while self._stage != "done":
                self._run_stage(files, self._iteration)
                self._save()
                files.remove("journals")  # their stage is saved

    @property
    def _saves_checkpoints(self) -> bool:
        return self.checkpoint_files.name is not None and not self.settings.test_run

    def _save(self) -> None:
        if self._saves_checkpoints:
            self.save_checkpoint(log=False)

    def _start(self, files: LoopFiles) -> None:
        """Set the state: the current one, else the checkpoint's, else the initial one."""
        if self._saves_checkpoints:
            if not self.has_state:
                self.prepare_training()
            parameters = self.hyper_params.to_saved_dict()
            refuse_changed_parameters(self.checkpoint_params_path, parameters)
        if not self.has_state:
            self.initial_state()
            files.remove("journals", "rollouts")  # of a checkpoint that was deleted
            self._save()  # with the parameters
        if self._stage == "sample_rollouts" and self._iteration >= self.num_train_iterations:
            self._stage = "test"

    def _run_stage(self, files: LoopFiles, iteration: int) -> None:
        """Run the state's stage and set the next one.

        Callbacks may replace weights in the statistics stage; these are tested last.
        """
        train, last = f"train_{iteration}", self.num_train_iterations - 1
        evaluation: list[TrainLoopStage] = ["log_stats", "test_during_training"]
        if self.callbacks.may_change_tests:
            evaluation.reverse()
        match self._stage:
            case "sample_rollouts":
                rollouts, _ = self.sample_rollouts(iteration, files.journal(train))
                self._keep(files, train, rollouts)
                self._log_added("sample_rollouts", iteration)
                self._stage = evaluation[0]
            case "log_stats" | "test_during_training" as stage:
                self._evaluate(stage, files, iteration)
                if stage == evaluation[0]:
                    self._stage = evaluation[1]
                    return
                self._iteration = last if self.has_stopped else iteration
                self._stage = "test" if self._iteration == last else "create_fine_tune_jobs"
            case "create_fine_tune_jobs":
                uses_all = self.hyper_params.text_rl.fine_tune_on_all_previous_rollouts
                earlier = range(iteration if uses_all else 0)
                previous = [files.load(f"train_{each}") for each in earlier]
                self.create_fine_tune_jobs(iteration, files.load(train), previous)
                self.log_stats(self.job_stats(), iteration=iteration, stage="create_fine_tune_jobs")
            case "await_fine_tune_jobs":
                try:
                    self.await_fine_tune_jobs(iteration)
                except FineTuneError:
                    self.state = without_jobs(self.state)  # so that failed jobs are restarted
                    self._save()
                    raise
                self._log_added("await_fine_tune_jobs", iteration)
            case _:
                self._test_finally(files, iteration)
                self._stage = "done"

    def _evaluate(self, stage: TrainLoopStage, files: LoopFiles, iteration: int) -> None:
        if stage == "log_stats":
            stats = self.compute_stats(iteration, files.load(f"train_{iteration}"))
            self.log_stats(stats, iteration=iteration, stage="train")
        elif self.tests_during_training(self.hyper_params, iteration):
            name = f"test_{iteration}"
            rollouts, stats, _ = self.test(iteration, files.journal(name))
            self._keep(files, name, rollouts)
            self.log_stats(stats, iteration=iteration, stage=stage)

    def _test_finally(self, files: LoopFiles, iteration: int) -> None:
        """Test on every test set, or reuse the last iteration's equal test."""
        tested = f"test_{iteration}"
        is_repeated = self.callbacks.may_change_tests or self.callbacks.add_to_tests
        for dataset in self.scenario_instance.test_environments:
            name = "test" if dataset == "test" else f"test.{dataset}"
            if name == "test" and files.has(tested) and not is_repeated:
                rollouts = files.load(tested)
                stats = self.test_stats(rollouts)
            else:
                rollouts, stats, _ = self.test("test", files.journal(name), dataset)
            self._keep(files, name, rollouts)
            self.log_stats(stats, iteration=iteration, stage=name)

    def _keep(self, files: LoopFiles, name: str, rollouts: NestedArrayDict) -> None:
        """Write rollouts, and their transcripts if requested."""
        files.save(name, rollouts)
        if self.hyper_params.text_rl.save_transcripts:
            write_transcripts(
                files.transcripts(name),
                rollouts,
                self.agent_names,
                list(self.protocol_handler.message_channel_names),
                verifier_name=self.protocol_handler.verifier_names[0],
                format=self.hyper_params.text_rl.transcript_format,
            )

    def _log_added(self, stage: TrainLoopStage, iteration: int) -> None:
        """Log metrics that callbacks add to a stage without own metrics."""
        if self.stage_metrics:
            self.log_stats(self.stage_metrics, iteration=iteration, stage=stage)

    # -- the stages of an iteration --------------------------------------------------------

    @property
    def num_train_iterations(self) -> int:
        """The number of training iterations."""
        return self.count_train_iterations(self.hyper_params)

    def sample_rollouts(
        self, iteration: int, journal_path: Path
    ) -> tuple[NestedArrayDict, UsageMeter]:
        """Collect the iteration's rollouts; see :class:`StagedTextTrainer`."""
        self._check_iteration(iteration)
        self._describe("Sampling rollouts", iteration)
        with (
            self.callbacks.stage("sample_rollouts", iteration) as self.stage_metrics,
            self._open_calls(journal_path, "sample_rollouts") as calls,
        ):
            rollouts = self._sample_rollouts(self.train_environment, iteration, use_tqdm=True)
        return rollouts, calls.usage

    @classmethod
    def declares_sample_count(cls) -> bool:
        """Return whether a subclass that overrides sampling also declares ``responses_per_step``.

        A base class's declaration does not apply to a subclass that overrides sampling.
        """
        namespaces = [vars(each) for each in cls.__mro__[: cls.__mro__.index(PureTextRlTrainer)]]
        for names in namespaces:
            if "responses_per_step" in names:
                return True
            if not _SAMPLING.isdisjoint(names):
                return False
        return True

    def compute_stats(self, iteration: int, rollouts: NestedArrayDict) -> Metrics:
        """Return the statistics of the iteration's rollouts; see :class:`StagedTextTrainer`."""

        def work() -> Metrics:
            self.callbacks.after_rollouts(rollouts)
            return self._get_log_stats(rollouts, train=True)

        last = iteration + 1 == self.num_train_iterations
        metrics = self.callbacks.iterate(iteration, work, last=last) or {}
        show(metrics)
        return metrics

    def test_stats(self, rollouts: NestedArrayDict) -> Metrics:
        """Return the statistics of a test's rollouts."""
        return self._get_log_stats(rollouts, train=False)

    def test(
        self, iteration: int | Literal["test"], journal_path: Path, dataset: str = "test"
    ) -> tuple[NestedArrayDict, Metrics, UsageMeter]:
        """Collect and evaluate test rollouts; see :class:`StagedTextTrainer`."""
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
            metrics.update(self.test_stats(rollouts))
        show(metrics)
        return rollouts, metrics, calls.usage

    def create_fine_tune_jobs(
        self,
        iteration: int,
        rollouts: NestedArrayDict,
        previous_rollouts: Sequence[NestedArrayDict] = (),
    ) -> TrainerState:
        """Create the jobs that train the next models; see :class:`StagedTextTrainer`."""
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
            if len(previous_rollouts) != iteration:
                raise ParameterError(
                    f"create_fine_tune_jobs: got the rollouts of {len(previous_rollouts)} earlier"
                    f" iterations, expected {iteration}."
                )
            batches = [*previous_rollouts, rollouts]
            even_out_tokens(batches)
            rollouts = concatenate_nested_array_dicts(batches)
        self._set_learning_agents()
        self._set_training_allowance()
        self._stage_create_fine_tune_jobs(rollouts)

    def await_fine_tune_jobs(self, iteration: int) -> TrainerState:
        """Wait for the state's jobs and switch models; see :class:`StagedTextTrainer`."""
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
        return f"iteration {iteration + 1} of {self.num_train_iterations}"

    def _describe(self, description: str, iteration: int | Literal["test"]) -> None:
        """Report the current stage and iteration to the progress reporter."""
        with progress_path(*([] if iteration == "test" else [self._place(iteration)])):
            describe(description)

    def job_stats(self) -> Metrics:
        """Return, as 0 or 1, which groups have no job: too few examples, or frozen."""
        return {**no_job_stats(self.shared_model_groups), **self.stage_metrics}

    @classmethod
    def supports_stages(cls) -> bool:
        """Return whether stages equal :meth:`train`, i.e. no subclass overrides the loop."""
        return not is_custom_method(cls, "train")

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
        """Return the parameters that a stage reads; see :class:`StagedTextTrainer`."""
        return stage_parameters(hyper_params, cls, cls.stage_purposes(hyper_params), stage)

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
