"""Custom task for language models: write a word twice.

Train it:  ratchet run examples/language/custom_task.yaml
"""

from __future__ import annotations

import numpy as np

from ratchet.scenarios.language_task.sources.base import DrawnTasks
from ratchet.scenarios.language_task.task import Task


class Doubling(DrawnTasks):
    """Words written twice: ``xyz=`` is answered by ``xyzxyz``."""

    def draw(self, rng: np.random.Generator) -> Task:
        """Sample a task: its id, prompt and answer."""
        word = "".join(rng.choice(list("abcdefgh"), size=self.section.task_options["length"]))
        return Task(word, f"{word}=", word * 2)
