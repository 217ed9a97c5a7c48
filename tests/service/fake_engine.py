"""An engine that generates words from hashes."""

from __future__ import annotations

import hashlib
import threading
import time

from ratchet.language_models.engines.interface import (
    EmbeddingResult,
    GeneratedToken,
    GenerationChunk,
    GenerationResult,
    RequestRefusedError,
    TokenChoice,
)

WORDS = ("accept", "reject", "line", "return", "loop", "bug", "fine", "no", "yes", "über")
CONTEXT = 2000


class FakeEngine:
    """Generates words that depend only on the request; records its batches."""

    max_batch_size = 64

    def __init__(self, seconds=0.0):
        self.loaded = {}
        self.unloaded = []
        self.batches = []
        self.seconds = seconds
        self.go_on = threading.Event()  # after the first word, if it is streamed
        self.go_on.set()

    def load(self, model_id, folder, adapters=()):
        assert (folder / "config.json").exists()
        self.loaded[model_id] = folder

    def unload(self, model_id):
        del self.loaded[model_id]
        self.unloaded.append(model_id)

    def generate(self, requests):
        assert {request.model for request in requests} <= set(self.loaded)
        self.batches.append(list(requests))
        time.sleep(self.seconds)
        return [self._answer(request) for request in requests]

    def embed(self, requests):
        return [EmbeddingResult((0.6, 0.8), len(request.prompt)) for request in requests]

    def _answer(self, request):
        prompt = sum(len(message.content.split()) + 1 for message in request.messages)
        if prompt > CONTEXT:
            return RequestRefusedError(
                f"The prompt has {prompt} tokens; the model's context holds {CONTEXT}.",
                param="messages",
                code="context_length_exceeded",
            )
        seed = request.seed if request.temperature else 0
        text = repr((request.model, request.messages, seed)).encode()
        digest = hashlib.sha256(text).digest()
        words = [WORDS[byte % len(WORDS)] for byte in digest[: 3 + digest[0] % 20]]
        most = len(words) + 1 if request.max_tokens is None else request.max_tokens
        reason = "length" if most <= len(words) else "stop"
        words = words[:most]
        text = " ".join(words)
        for stop in request.stop:
            if stop in text:
                text, reason = text[: text.index(stop)], "stop"
        top = tuple(TokenChoice(word, -1.5) for word in WORDS[: request.top_logprobs])
        tokens = tuple(GeneratedToken(word, -0.5, top) for word in words)
        if request.on_piece is not None and text:
            request.on_piece(
                GenerationChunk(text.split()[0], tokens[:1] if request.logprobs else ())
            )
            assert self.go_on.wait(10)
        return GenerationResult(
            text, reason, prompt, len(words), tokens if request.logprobs else ()
        )
