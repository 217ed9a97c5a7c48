"""Base class of text trainers: its ``train()`` runs the stages in this process, one by one.

Next to the run's checkpoint it stores rollouts, transcripts, the ledger, and the finished calls of
the current stage. Tasks run the same stages and store each.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ratchet.errors import CheckPointNotFoundError, FineTuneError, ParameterError, StateError
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from ratchet.rollouts.files import load_nested_array_dict, save_nested_array_dict
from trainers.text.jobs import without_jobs
from trainers.text.stages import TextTrainerStages

if TYPE_CHECKING:
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from trainers.text.state import TrainLoopStage


class PureTextRlTrainer(TextTrainerStages):
    """Base of trainers whose agents are chat models.

    Subclasses implement :meth:`_stage_create_fine_tune_jobs`; they may override
    :meth:`_sample_rollouts` and :meth:`_get_log_stats`. If a subclass overrides sampling,
    :meth:`responses_per_step` must return its number of replies at each step, which plans need.

    The inputs of each stage are :attr:`state` and its arguments; it does not depend on earlier
    stages of the process. Not thread-safe: concurrent stages need separate trainers.
    """

    def train(self) -> None:
        """Train and test, from the current state, the run's checkpoint, or the initial state.

        A run with an id saves a checkpoint after each stage; a killed one continues after its last
        finished stage, and repeats no finished call. Without an id, files are temporary.
        Raises ParameterError if there are phases, each of which needs a separate trainer.
        """
        if self.hyper_params.phases:
            raise ParameterError(
                f"phases: got {len(self.hyper_params.phases)}, which train() does not support,"
                " expected none. Run the experiment with `ratchet run`, or run_experiment."
            )
        saves = self.checkpoint_files.name is not None and not self.settings.test_run
        with ExitStack() as stack:
            if saves:
                base = self.checkpoint_base_dir
                folder = base.with_name(f"{base.name}@files")
            else:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="ratchet-text-")))
            ledger = Ledger(Budget(self.settings.budget), folder / "ledger.jsonl")
            self.ledger = stack.enter_context(closing(ledger))
            _TrainLoop(self, folder, saves).run()


@dataclass(frozen=True)
class _TrainLoop:
    """One call of ``train()``; ``saves``: whether it saves checkpoints."""

    trainer: PureTextRlTrainer
    folder: Path
    saves: bool

    def run(self) -> None:
        """Run all remaining stages; each is complete once the next one is in the saved state."""
        trainer = self.trainer
        self._start()
        while trainer._stage is not None and trainer._stage != "done":
            stage, iteration = trainer._stage, trainer._iteration
            if stage == "test":
                self._test_finally(iteration)
                trainer._stage = "done"
            else:
                metrics = self._run_stage(stage, iteration)
                if metrics:
                    name = "train" if stage == "log_stats" else stage
                    trainer.log_stats(metrics, iteration=iteration, stage=name)
                if stage != "await_fine_tune_jobs":  # it sets the next iteration
                    trainer._stage = self._stage_after(stage, iteration)
            self._save()
            self._remove("journals")

    def _start(self) -> None:
        """Set the state: the current one, else the checkpoint's, else the initial one."""
        trainer = self.trainer
        if self.saves:
            if not trainer.has_state:
                trainer.prepare_training()
            self._refuse_changed_parameters()
        if not trainer.has_state:
            trainer.initial_state()
            self._remove("journals", "rollouts")  # of a checkpoint that was deleted
            self._save()  # with the parameters
        is_trained = trainer._iteration >= trainer.num_train_iterations
        if trainer._stage == "sample_rollouts" and is_trained:
            trainer._stage = "test"

    def _refuse_changed_parameters(self) -> None:
        from ratchet.tracking.mirrors.payload import flatten

        path = self.trainer.checkpoint_params_path
        if not path.is_file():
            return
        parameters = json.loads(json.dumps(self.trainer.hyper_params.to_saved_dict()))
        before, now = flatten(json.loads(path.read_text(encoding="utf-8"))), flatten(parameters)
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                raise StateError(
                    f"run {path.parent.name}: {name} was {before.get(name)!r} and is"
                    f" {now.get(name)!r} now. A run resumes with the parameters it started with;"
                    " choose another settings.run_id."
                )

    def _stage_after(self, stage: TrainLoopStage, iteration: int) -> TrainLoopStage:
        """Return the stage that follows; no jobs once a callback has stopped the run."""
        trainer = self.trainer
        stages = trainer.iteration_stages(trainer.hyper_params, iteration)
        if stage not in stages:  # in checkpoints of earlier versions
            stages.insert(2, stage)
        if trainer.callbacks.may_change_tests:  # the statistics may replace what is tested last
            stages.sort(key=lambda each: each not in ("sample_rollouts", "test_during_training"))
        following = stages[stages.index(stage) + 1 :]
        if trainer.has_stopped:
            following = [each for each in following if "jobs" not in each]
        if following:
            return following[0]
        trainer._iteration = trainer.num_train_iterations - 1
        return "test"

    def _run_stage(self, stage: TrainLoopStage, iteration: int) -> Mapping[str, float]:
        """Run a stage of an iteration; return its metrics."""
        trainer, train, test = self.trainer, f"train_{iteration}", f"test_{iteration}"
        match stage:
            case "sample_rollouts":
                rollouts, _ = trainer.sample_rollouts(iteration, self._journal(train))
                self._write(train, rollouts)
            case "log_stats":
                return trainer.compute_stats(iteration, self._read(train))
            case "test_during_training":
                rollouts, metrics, _ = trainer.test(iteration, self._journal(test))
                self._write(test, rollouts)
                return metrics
            case "create_fine_tune_jobs":
                uses_all = trainer.hyper_params.text_rl.fine_tune_on_all_previous_rollouts
                earlier = range(iteration if uses_all else 0)
                previous = [self._read(f"train_{each}") for each in earlier]
                trainer.create_fine_tune_jobs(iteration, self._read(train), previous)
                return trainer.job_stats()
            case _:
                try:
                    trainer.await_fine_tune_jobs(iteration)
                except FineTuneError:
                    trainer.state = without_jobs(trainer.state)  # so that failed jobs are restarted
                    self._save()
                    raise
        return trainer.stage_metrics

    def _test_finally(self, iteration: int) -> None:
        """Test on every test set, or reuse the last iteration's equal test."""
        trainer = self.trainer
        for dataset in trainer.scenario_instance.test_environments:
            name = "test" if dataset == "test" else f"test.{dataset}"
            metrics = self._metrics_before(dataset, iteration)
            if metrics is not None:
                rollouts = self._read(f"test_{iteration}")
            else:
                rollouts, metrics, _ = trainer.test("test", self._journal(name), dataset)
            self._write(name, rollouts)
            trainer.log_stats(metrics, iteration=iteration, stage=name)

    def _metrics_before(self, dataset: str, iteration: int) -> Mapping[str, float] | None:
        """Return the metrics of a test in the last iteration that equals the final one."""
        if dataset != "test" or self.trainer.callbacks.may_change_tests:
            return None
        if not self._rollouts_path(f"test_{iteration}").is_file():
            return None
        for record in reversed(self.trainer.history):
            if (record.stage, record.iteration) == ("test_during_training", iteration):
                return record.values
        return None

    # -- files -----------------------------------------------------------------------------

    def _save(self) -> None:
        if self.saves:
            self.trainer.save_checkpoint(log=False)

    def _remove(self, *folders: str) -> None:
        for name in folders:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _journal(self, name: str) -> Path:
        return self.folder / "journals" / f"{name}.jsonl"

    def _rollouts_path(self, name: str) -> Path:
        return self.folder / "rollouts" / f"{name}.parquet"

    def _write(self, name: str, rollouts: NestedArrayDict) -> None:
        """Write rollouts, and their transcripts if requested."""
        save_nested_array_dict(rollouts, self._rollouts_path(name))
        self.trainer.save_transcripts(self.folder / "transcripts" / name, rollouts)

    def _read(self, name: str) -> NestedArrayDict:
        path = self._rollouts_path(name)
        if not path.is_file():
            raise CheckPointNotFoundError(
                f"no rollouts {name!r} in {self.folder}, but the state is after them. Set"
                " settings.run_id to the run of the state, or start a new run."
            )
        return load_nested_array_dict(path)
