"""Evaluation suite: an inspect-ai task with small sums.

    ratchet run examples/language/my_suites.yaml

Run it separately with ``inspect eval sums.py --model …``.
"""

from itertools import product

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate


@task
def sums(largest: int = 9) -> Task:
    """Build a task with the sum of each pair of numbers up to ``largest``."""
    pairs = product(range(largest + 1), repeat=2)
    samples = [Sample(id=f"{a}+{b}", input=f"{a}+{b}=", target=str(a + b)) for a, b in pairs]
    return Task(dataset=MemoryDataset(samples), solver=generate(), scorer=match(location="exact"))
