"""Answers without a model: random but seeded, in the right form. For tests of plumbing only."""

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
    """Answer by the request's seed and nothing else of it, in every channel of ``headers``.

    These map a channel to its header; ``may_decide`` and ``must_decide`` say whether a decision
    is an answer, and the only one; ``decisions`` are those there are.
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
    """Make a token of each byte, all equally likely, and one at the end."""
    prompt = "\n".join(message.content for message in request.messages).encode()
    written = (*text.encode(), _END)
    return ReplyTokens((_LOG_PROB,) * len(written), written, (*prompt, _END))
