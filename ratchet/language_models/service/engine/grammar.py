"""Completions constrained to a JSON schema: the allowed next tokens, by llguidance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ratchet.errors import DataError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

    from ratchet.language_models.service.engine.tokenizer import ChatTokenizer


class GrammarTokenizer:
    """A model's tokens in llguidance's format.

    Raises
    ------
    DataError
        If llguidance is not installed.
    """

    def __init__(self, tokenizer: ChatTokenizer, vocabulary: int) -> None:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise DataError(
                "Completions for a schema need llguidance, which is not installed here: `pip"
                " install 'ratchet-experiments[llm]'`."
            ) from error
        file = str(tokenizer.folder / "tokenizer.json")
        self.tokens: LLTokenizer = LLTokenizer(
            file, n_vocab=vocabulary, eos_token=list(tokenizer.end_ids)
        )
        self.vocabulary = vocabulary


class Grammar:
    """The state of a constrained completion, token by token.

    Raises
    ------
    DataError
        If the schema is not supported.
    """

    def __init__(self, tokenizer: GrammarTokenizer, schema: str) -> None:
        from llguidance import LLMatcher

        try:
            # no whitespace: a small model would write it until its token limit
            compact: JsonCompileOptions = {"whitespace_flexible": False}
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=compact)
        except ValueError as error:
            raise DataError(f"The schema is not supported: {error}") from error
        self._matcher: LLMatcher = LLMatcher(tokenizer.tokens, grammar, log_level=0)
        self._vocabulary = tokenizer.vocabulary
        self._check()

    def allowed(self) -> Tensor:
        """Return which tokens may come next, bool[V]."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocabulary]
        return torch.from_numpy(allowed.astype(bool))

    def take(self, token: int) -> bool:
        """Append a token; return whether the completion is complete."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def _check(self) -> None:
        if self._matcher.is_error():
            problem = self._matcher.get_error().partition("\n")[0]
            raise DataError(f"The schema is not supported: {problem}")
