"""Names of tests where agents are tested twice: by their likeliest actions, and by drawing them.

The first has the dataset's name; the second one that no dataset has. Light: no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

BY_SAMPLING = "by-sampling"
_MAIN = "test"


def tests_both_ways(hyper_params: HyperParameters) -> bool:
    """Return whether the parameters ask for both."""
    return bool(hyper_params.rl.test_by_sampling == "both")


def sampled_test(dataset: str) -> str:
    """Return the name of a dataset's test by drawn actions: "by-sampling", "NAME-by-sampling"."""
    return BY_SAMPLING if dataset == _MAIN else f"{dataset}-{BY_SAMPLING}"


def dataset_of(test: str) -> tuple[str, bool]:
    """Return which dataset a test is on, and whether it is named as one by drawn actions."""
    if test == BY_SAMPLING:
        return _MAIN, True
    dataset = test.removesuffix(f"-{BY_SAMPLING}")
    return dataset, dataset != test


def test_names(datasets: Sequence[str], *, both: bool) -> list[str]:
    """Return the tests on some datasets, which may be given as tests: each likeliest first."""
    plain = list(dict.fromkeys(dataset_of(name)[0] for name in datasets))
    return [name for each in plain for name in ((each, sampled_test(each)) if both else (each,))]


test_names.__test__ = False  # type: ignore[attr-defined]  # not a test case, whatever its name
tests_both_ways.__test__ = False  # type: ignore[attr-defined]
