"""Custom callback: record a metric in each iteration and stop training early.

Run it:  python examples/custom_callback.py
Use it:  callbacks: [{name: custom_callback.py:RoundsUsed, enough: 0.5}]     (in an experiment file)

Callbacks work the same way for networks and chat models. The metric is written to
``metrics.jsonl``, MLflow and the report. Iterations after the stop are neither run nor billed.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PositiveInt

from ratchet import ExperimentSettings, HyperParameters
from ratchet.parameters import SubParameters
from ratchet.scenarios import build_scenario_instance
from trainers import Callback, CallbackState, Moment, Trainer
from trainers.registry import build_trainer


class RoundsUsedParameters(SubParameters):
    """Stop after ``times`` consecutive iterations with a share of at most ``enough``."""

    enough: float = Field(default=0.5, gt=0, le=1)
    times: PositiveInt = 2


class RoundsUsed(Callback):
    """Record the share of allowed rounds that episodes use, and stop when it is small."""

    Parameters = RoundsUsedParameters
    parameters: RoundsUsedParameters
    steers = True  # may stop the run, not only observe it
    in_a_row = 0

    def end_iteration(self, now: Moment) -> dict[str, float]:
        """Return metrics to add to the iteration's."""
        share = now.metrics["mean_episode_length"] / self.trainer.max_message_rounds
        self.in_a_row = self.in_a_row + 1 if share <= self.parameters.enough else 0
        if self.in_a_row >= self.parameters.times:
            self.stop(f"episodes take {share:.0%} of their rounds")
        return {"rounds_used": share}

    def take_state(self) -> CallbackState:
        """Return the state that the next iteration needs, so that a run can resume."""
        return CallbackState({"in_a_row": self.in_a_row})

    def load_state(self, state: CallbackState) -> None:
        """Restore the counter."""
        self.in_a_row = state.values["in_a_row"]


def main() -> Trainer:
    """Train for at most eight iterations and print the share of rounds in each."""
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="er100",
        graph_isomorphism={"graph_sizes": [7, 8]},
        rl={"num_iterations": 8, "frames_per_batch": 64, "num_test_iterations": 1},
        callbacks=[{"name": "custom_callback.py:RoundsUsed", "enough": 0.3}],
    )
    settings = ExperimentSettings(base_dir=str(Path(__file__).parent))
    trainer = build_trainer(hyper_params, build_scenario_instance(hyper_params, settings), settings)
    trainer.train()
    for record in trainer.history:
        if record.stage == "train":
            print(f"iteration {record.iteration}: {record.values['rounds_used']:.0%} of the rounds")
    print("stopped early" if trainer.has_stopped else "completed all iterations")
    return trainer


if __name__ == "__main__":
    main()
