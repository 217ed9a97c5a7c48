"""Which metrics are shown first: beside the progress, and as a mirror's first charts."""

from __future__ import annotations

from collections.abc import Mapping

_SHOWN = ("accuracy", "mean_episode_reward", "reward", "return", "loss")
_NOT_SHOWN = ("std_", "worst_", "datapoint_")
_TEST = "test_"
_NOISE = ("mean_", "episode_", "step_")


def metrics_that_matter(metrics: Mapping[str, float], most: int = 2) -> dict[str, float]:
    """Choose those to be shown first, ``most`` at most, under short names.

    Accuracies first, then the rewards of episodes, else of steps; losses only where there are
    neither.
    """
    chosen: dict[str, float] = {}
    for word in _SHOWN:
        if word == "loss" and chosen:
            break
        for name, value in metrics.items():
            short = _short(name)
            if (
                not any(part in name for part in _NOT_SHOWN)
                and name.endswith(word)
                and short not in chosen
                and len(chosen) < most
            ):
                chosen[short] = value
    return chosen


def _short(name: str) -> str:
    """Write "prover.mean_episode_reward" as "prover reward"; accuracy is the verifier's anyway."""
    agent, _, what = name.rpartition(".")
    for noise in _NOISE:
        what = what.replace(noise, "")
    agent = agent.removeprefix(_TEST)
    test = "test" if name.startswith(_TEST) else ""
    what = what.removeprefix(_TEST).replace("_", " ")
    return " ".join(filter(None, [test, "" if what == "accuracy" else agent, what]))
