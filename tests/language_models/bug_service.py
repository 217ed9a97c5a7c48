"""A service that writes bugs into programs, or fails to, in every supported way."""

from __future__ import annotations

import hashlib
from collections import Counter

from local_services import Answer, LocalService, Request, chat_answer

from ratchet.scenarios.code_validation.bug_writer import read_program
from ratchet.scenarios.code_validation.mutation import mutants, normalize
from ratchet.seeding import numpy_generator

USELESS = {
    "no_program": "I would rather not.",
    "not_new": "```python\n{solution}\n```",
    "explained": '```python\n"""The bug is here."""\n{solution}\n```',
    "not_run": "```python\nraise ValueError\n{solution}\n```",
    "no_bug": "```python\nunused = 0\n{solution}\n```",
}


class BugService(LocalService):
    """Responds depending only on the request. ``bodies`` counts repetitions of each request.

    ``manners``: its failure modes; "mutant" is a program with a change that may be a bug.
    """

    def __init__(self, manners: tuple[str, ...] = ("mutant", *USELESS), delay: float = 0.0) -> None:
        super().__init__()
        self.manners = manners
        self.delay = delay
        self.bodies: Counter[bytes] = Counter()

    def answer(self, request: Request) -> Answer:
        with self.lock:
            self.bodies[request.body] += 1
            if self.script:
                return self.script.pop(0)
        number = int.from_bytes(hashlib.sha256(request.body).digest()[:4], "big")
        manner = self.manners[number % len(self.manners)]
        solution = read_program(request.json["messages"][-1]["content"]) or ""
        if manner == "mutant":
            changed = mutants(normalize(solution), numpy_generator(number, "bugs"))
            program = next((mutant.source for mutant in changed), solution)
            text = f"Here it is:\n```python\n{program}\n```\n"
        else:
            text = USELESS[manner].format(solution=solution)
        return Answer(body=chat_answer(text), delay=self.delay)
