"""Names of tests of agents that are tested twice: with greedy and with sampled actions.

The greedy test has the dataset's name. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

BY_SAMPLING = "by-sampling"
_MAIN = "test"


def tests_both_ways(hyper_params: HyperParameters) -> bool:
    """Return whether the parameters request both tests."""
    return bool(hyper_params.rl.test_by_sampling == "both")


def sampled_test(dataset: str) -> str:
    """Return the name of a dataset's sampled test: "by-sampling", or "NAME-by-sampling"."""
    return BY_SAMPLING if dataset == _MAIN else f"{dataset}-{BY_SAMPLING}"


def dataset_of(test: str) -> tuple[str, bool]:
    """Return the dataset of a test, and whether the name is that of a sampled test."""
    if test == BY_SAMPLING:
        return _MAIN, True
    dataset = test.removesuffix(f"-{BY_SAMPLING}")
    return dataset, dataset != test


def test_names(datasets: Sequence[str], *, both: bool) -> list[str]:
    """Return the tests of some datasets (names of tests are accepted): each greedy first."""
    plain = list(dict.fromkeys(dataset_of(name)[0] for name in datasets))
    return [name for each in plain for name in ((each, sampled_test(each)) if both else (each,))]


test_names.__test__ = False  # type: ignore[attr-defined]  # not a test case
tests_both_ways.__test__ = False  # type: ignore[attr-defined]
