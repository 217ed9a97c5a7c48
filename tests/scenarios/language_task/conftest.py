"""A tokenizer of characters, and a scripted engine."""

import pytest

from ratchet.language_models.engines.rollouts import Completion
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.language_models.local.tokenizer import ChatTokenizer

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789=+-*/ .,:?!'\"()[]\nABCRW<>_"


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "small"
    make_small_model(folder, alphabet=CHARACTERS, shape=SmallModelShape(d_model=4, heads=2))
    return ChatTokenizer(folder)


class ScriptedEngine:
    """Returns the result of ``reply(prompt's text, request)``; stores its requests."""

    def __init__(self, tokenizer, reply):
        self.tokenizer, self.reply = tokenizer, reply
        self.asked = []

    def generate(self, requests):
        self.asked.append(list(requests))
        return [self._complete(request) for request in requests]

    def _complete(self, request):
        text = self.reply(self.tokenizer.decode(request.prompt), request)
        ids = [*self.tokenizer.encode(text), self.tokenizer.end_ids[0]]
        reason = "length" if len(ids) > request.max_tokens else "stop"
        ids = ids[: request.max_tokens]
        return Completion(tuple(ids), tuple(-0.25 * (i + 1) for i in range(len(ids))), reason)

    def update(self, model):
        """Nothing learns here."""


@pytest.fixture
def engine_saying(tokenizer):
    """Make an engine whose replies a function finds: (text of the prompt, request) → reply."""
    return lambda reply: ScriptedEngine(tokenizer, reply)
