"""Seeded random completions in the right format, without a model; for tests of plumbing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ratchet.language_models.types import ChatRequest, Completion
from ratchet.rollouts.tokens import ReplyTokens

_WORDS = ("the", "value", "loop", "is", "returned", "first", "branch", "sum", "wrong", "right")
_DECISION_SHARE = 0.4
_END = 256
_LOG_PROB = -5.5


def dummy_completion(
    request: ChatRequest,
    headers: Mapping[str, str],
    *,
    may_decide: bool,
    must_decide: bool,
    decisions: Sequence[str] = ("accept", "reject"),
) -> Completion:
    """Generate a completion that depends only on the request's seed, in every channel.

    ``headers`` maps channels to their headers. ``may_decide`` and ``must_decide``: whether a
    decision is a possible, or the only, content; ``decisions``: the possible ones.
    """
    random = Random(request.seed)
    decides = may_decide and (must_decide or not headers or random.random() < _DECISION_SHARE)
    if decides:
        text = f"Decision: {random.choice(decisions)}"
    else:
        text = "\n\n".join(
            f"{header} {' '.join(random.choices(_WORDS, k=random.randint(3, 12)))}"
            for header in headers.values()
        )
    prompt_words = sum(len(message.content.split()) for message in request.messages)
    tokens = _tokens(request, text) if request.logprobs and request.return_token_ids else None
    return Completion(text, "stop", prompt_words, len(text.split()), request.model, tokens=tokens)


def _tokens(request: ChatRequest, text: str) -> ReplyTokens:
    """Return one token per byte, all equally likely, and an end token."""
    prompt = "\n".join(message.content for message in request.messages).encode()
    written = (*text.encode(), _END)
    return ReplyTokens((_LOG_PROB,) * len(written), written, (*prompt, _END))
