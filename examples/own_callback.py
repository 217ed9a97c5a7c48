"""Write a callback of your own: record a number with each iteration, and end training by it.

Run it:  python examples/own_callback.py
Use it:  callbacks: [{name: own_callback.py:RoundsUsed, enough: 0.5}]     (in an experiment file)

It is the same for networks and chat models. Its number stands in ``metrics.jsonl``, in MLflow and
in the report; once it stops the run, what is left of the iterations is neither done nor paid for.
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
    """Training ends after ``times`` iterations in a row with a share of at most ``enough``."""

    enough: float = Field(default=0.5, gt=0, le=1)
    times: PositiveInt = 2


class RoundsUsed(Callback):
    """Records the share of the allowed rounds that episodes take, and ends when it is small."""

    Parameters = RoundsUsedParameters
    parameters: RoundsUsedParameters
    steers = True  # it may stop the run, and does not only look on
    in_a_row = 0

    def end_iteration(self, now: Moment) -> dict[str, float]:
        """Return what is added to the iteration's metrics."""
        share = now.metrics["mean_episode_length"] / self.trainer.max_message_rounds
        self.in_a_row = self.in_a_row + 1 if share <= self.parameters.enough else 0
        if self.in_a_row >= self.parameters.times:
            self.stop(f"episodes take {share:.0%} of their rounds")
        return {"rounds_used": share}

    def take_state(self) -> CallbackState:
        """Return what the next iteration depends on: a run may be interrupted after any."""
        return CallbackState({"in_a_row": self.in_a_row})

    def load_state(self, state: CallbackState) -> None:
        """Go on counting."""
        self.in_a_row = state.values["in_a_row"]


def main() -> Trainer:
    """Train for eight iterations at most, and print the share of rounds in each."""
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="er100",
        graph_isomorphism={"graph_sizes": [7, 8]},
        rl={"num_iterations": 8, "frames_per_batch": 64, "num_test_iterations": 1},
        callbacks=[{"name": "own_callback.py:RoundsUsed", "enough": 0.3}],
    )
    settings = ExperimentSettings(base_dir=str(Path(__file__).parent))
    trainer = build_trainer(hyper_params, build_scenario_instance(hyper_params, settings), settings)
    trainer.train()
    for record in trainer.history:
        if record.stage == "train":
            print(f"iteration {record.iteration}: {record.values['rounds_used']:.0%} of the rounds")
    print("stopped early" if trainer.has_stopped else "went on to the end")
    return trainer


if __name__ == "__main__":
    main()
