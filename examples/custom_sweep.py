"""Custom sweep strategy: Latin hypercube samples.

Run it:  python examples/custom_sweep.py
Use it:  sweep: {kind: examples/custom_sweep.py:LatinHypercubeSweep, …}   (in an experiment file)
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt
from scipy.stats import qmc

from ratchet.parameters.sweeps import (
    SWEEPS,
    Distribution,
    Point,
    SweepSpec,
    Values,
    read_sweep_spec,
)


@SWEEPS.register("latin_hypercube")
class LatinHypercubeSweep(SweepSpec):
    """``num_samples`` points; each parameter has one sample in each of ``num_samples`` strata."""

    samples: ClassVar[bool] = True  # `parameters` may be distributions

    parameters: Annotated[dict[str, Distribution], Field(min_length=1)]
    num_samples: PositiveInt
    seed: NonNegativeInt = 0
    for_each: Values = Field(default_factory=dict)  # e.g. seeds, combined with each point

    def points(self) -> list[Point]:
        """Return the changes of each member: dotted path → value."""
        rows = qmc.LatinHypercube(len(self.parameters), rng=self.seed).random(self.num_samples)
        items = self.parameters.items()
        return [{p: each.at(float(u)) for (p, each), u in zip(items, r, strict=True)} for r in rows]


def main() -> None:
    """Print the points of a ``sweep`` section of an experiment file."""
    section = {
        "kind": "latin_hypercube",
        "num_samples": 4,
        "parameters": {
            "rl.lr": {"kind": "log_uniform", "low": 1e-4, "high": 0.1},
            "rl.num_epochs": {"kind": "integers", "low": 1, "high": 8},
        },
    }
    for point in read_sweep_spec(section).points():
        print(point)


if __name__ == "__main__":
    main()
