"""A text trainer's complete loop in plain Python, resumable after each of its stages.

The stages are the same as the tasks'; their results are stored in the run's checkpoint folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ratchet.errors import FineTuneError
from ratchet.rollouts.transcripts import write_transcripts
from trainers.text.jobs import without_jobs
from trainers.text.run_files import RunFiles

if TYPE_CHECKING:
    from ratchet.language_models.usage import UsageMeter
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from trainers.text.base import PureTextRlTrainer
    from trainers.text.staged import Metrics
    from trainers.text.state import State, TrainLoopStage


class TextTrainLoop:
    """Runs the stages of a trainer sequentially, starting with its current state."""

    def __init__(self, trainer: PureTextRlTrainer) -> None:
        self.trainer = trainer
        self._rollouts: dict[str, NestedArrayDict] = {}

    def run(self) -> None:
        """Run until the training is done."""
        steps = {
            "sample_rollouts": self._sample_rollouts,
            "log_stats": self._log_stats,
            "test_during_training": self._test_during_training,
            "create_fine_tune_jobs": self._create_fine_tune_jobs,
            "await_fine_tune_jobs": self._await_fine_tune_jobs,
            "test": self._test,
        }
        with (
            self._open_files() as files,
            closing(files.ledger(self.trainer.settings.budget)) as self.trainer.ledger,
        ):
            self.files = files
            self._initialise()
            while (stage := self.trainer.state.train_loop_stage) != "done":
                steps[stage](self.trainer.state)
                files.save_metrics(self.trainer.history)
                files.save_state(self.trainer.state)

    @contextmanager
    def _open_files(self) -> Iterator[RunFiles]:
        """Open the run's checkpoint folder; a temporary one if the run has no id."""
        settings = self.trainer.settings
        if settings.run_id is not None and not settings.test_run:
            yield RunFiles(self.trainer.checkpoint_base_dir)
            return
        with TemporaryDirectory(prefix="ratchet-text-") as folder:
            yield RunFiles(Path(folder))

    def _initialise(self) -> None:
        """Set the state: the trainer's, else the saved one, else the initial one."""
        trainer, files = self.trainer, self.files
        files.check_parameters(trainer.hyper_params.to_dict())
        if not trainer.has_state:
            if files.has_state:
                trainer.state = files.load_state()
            else:
                trainer.initial_state()
            trainer.history[:0] = files.load_metrics()
        state = trainer.state
        if state.train_loop_stage == "sample_rollouts" and not self._is_to_train(state):
            self._go_to("test")

    def _is_to_train(self, state: State) -> bool:
        return state.iteration < self.trainer.num_train_iterations

    def _go_to(self, stage: TrainLoopStage) -> None:
        self.trainer.state = replace(self.trainer.state, train_loop_stage=stage)

    # -- stages ----------------------------------------------------------------------------

    def _sample_rollouts(self, state: State) -> None:
        name = _train_name(state.iteration)
        rollouts, usage = self.trainer.sample_rollouts(state.iteration, self.files.journal(name))
        self._store(name, rollouts, usage)
        self._log_added(state, "sample_rollouts")
        self._go_to(self._evaluation_stages[0])

    def _log_stats(self, state: State) -> None:
        name = _train_name(state.iteration)
        rollouts = self._get(name)
        stats = self.trainer.compute_stats(state.iteration, rollouts)
        self.trainer.log_stats(stats, iteration=state.iteration, stage="train")
        self._write_transcripts(name, rollouts)
        self._after_evaluation("log_stats")

    def _test_during_training(self, state: State) -> None:
        trainer = self.trainer
        if trainer.tests_during_training(trainer.hyper_params, state.iteration):
            name = _test_name(state.iteration)
            journal = self.files.journal(name)
            rollouts, stats, usage = trainer.test(state.iteration, journal)
            self._store(name, rollouts, usage)
            self._write_transcripts(name, rollouts)
            trainer.log_stats(stats, iteration=state.iteration, stage="test_during_training")
        self._after_evaluation("test_during_training")

    @property
    def _evaluation_stages(self) -> tuple[TrainLoopStage, TrainLoopStage]:
        """The stages that evaluate an iteration, in order.

        Callbacks may replace weights in the statistics stage; these are tested last.
        """
        if self.trainer.callbacks.may_change_tests:
            return "test_during_training", "log_stats"
        return "log_stats", "test_during_training"

    def _after_evaluation(self, stage: TrainLoopStage) -> None:
        """Continue after a stage that evaluates an iteration; skip to the end if stopped."""
        if stage == self._evaluation_stages[0]:
            self._go_to(self._evaluation_stages[1])
            return
        trainer, last = self.trainer, self.trainer.num_train_iterations - 1
        if trainer.has_stopped:
            trainer.state = replace(trainer.state, iteration=last)
        self._go_to("test" if trainer.state.iteration == last else "create_fine_tune_jobs")

    def _create_fine_tune_jobs(self, state: State) -> None:
        previous = []
        if self.trainer.hyper_params.text_rl.fine_tune_on_all_previous_rollouts:
            previous = [self._get(_train_name(earlier)) for earlier in range(state.iteration)]
        rollouts = self._get(_train_name(state.iteration))
        self.trainer.create_fine_tune_jobs(state.iteration, rollouts, previous)
        stats = self.trainer.job_stats()
        self.trainer.log_stats(stats, iteration=state.iteration, stage="create_fine_tune_jobs")

    def _await_fine_tune_jobs(self, state: State) -> None:
        try:
            self.trainer.await_fine_tune_jobs(state.iteration)
        except FineTuneError:
            self.files.save_state(without_jobs(state))  # so that failed jobs are restarted
            raise
        self._log_added(state, "await_fine_tune_jobs")
        if self.trainer.training_usage is not None:
            self.files.save_usage(f"training_{state.iteration}", self.trainer.training_usage)
        if not self.trainer.hyper_params.text_rl.fine_tune_on_all_previous_rollouts:
            self._rollouts.clear()

    def _test(self, state: State) -> None:
        """Test on every test set."""
        for dataset in self.trainer.scenario_instance.test_environments:
            name = "test" if dataset == "test" else f"test.{dataset}"
            rollouts, stats = self._last_test(state, dataset) or self._play(name, dataset)
            self._write_transcripts(name, rollouts)
            self.trainer.log_stats(stats, iteration=state.iteration, stage=name)
        self._go_to("done")

    def _play(self, name: str, dataset: str) -> tuple[NestedArrayDict, Metrics]:
        rollouts, stats, usage = self.trainer.test("test", self.files.journal(name), dataset)
        self._store(name, rollouts, usage)
        return rollouts, stats

    def _log_added(self, state: State, stage: str) -> None:
        """Log metrics that callbacks add to a stage without own metrics."""
        if self.trainer.stage_metrics:
            self.trainer.log_stats(
                self.trainer.stage_metrics, iteration=state.iteration, stage=stage
            )

    def _last_test(self, state: State, dataset: str) -> tuple[NestedArrayDict, Metrics] | None:
        """Return the last iteration's test, if any: it has the same models and rollouts."""
        name = _test_name(state.iteration)
        if self.trainer.callbacks.may_change_tests:
            return None
        if dataset != "test" or not (name in self._rollouts or self.files.has_rollouts(name)):
            return None
        rollouts = self._get(name)
        return rollouts, self.trainer.test_stats(rollouts)

    # -- rollouts --------------------------------------------------------------------------

    def _store(self, name: str, rollouts: NestedArrayDict, usage: UsageMeter) -> None:
        self._rollouts[name] = rollouts
        self.files.save_usage(name, usage)
        self.files.save_rollouts(name, rollouts)

    def _get(self, name: str) -> NestedArrayDict:
        if name not in self._rollouts:
            self._rollouts[name] = self.files.load_rollouts(name)
        return self._rollouts[name]

    def _write_transcripts(self, name: str, rollouts: NestedArrayDict) -> None:
        trainer = self.trainer
        if not trainer.hyper_params.text_rl.save_transcripts:
            return
        write_transcripts(
            self.files.transcripts(name),
            rollouts,
            trainer.agent_names,
            list(trainer.protocol_handler.message_channel_names),
            verifier_name=trainer.protocol_handler.verifier_names[0],
            format=trainer.hyper_params.text_rl.transcript_format,
        )


def _train_name(iteration: int) -> str:
    return f"train_{iteration}"


def _test_name(iteration: int) -> str:
    return f"test_{iteration}"
