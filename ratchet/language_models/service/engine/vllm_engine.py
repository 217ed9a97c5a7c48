"""An engine that stands on vLLM, for a machine with a GPU (``--engine vllm``).

vLLM is not among Ratchet's dependencies; install it beside them. It holds one model at a time and
takes another's place in memory when that is asked for: good for few models and many requests. Its
results may depend on the batch in their last digits; ``VLLM_BATCH_INVARIANT=1`` makes them not.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ratchet.errors import DataError, LanguageServiceError, ParameterError
from ratchet.language_models.service.engine.interface import (
    GeneratedToken,
    GenerationRequest,
    GenerationResult,
    RequestRefusedError,
    TokenChoice,
)
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer, ContextLengthError

MAX_BATCH_SIZE = 256


class VllmEngine:
    """Runs models with vLLM.

    Raises
    ------
    ParameterError
        If vLLM is not installed.
    """

    def __init__(self) -> None:
        try:
            self._vllm: Any = importlib.import_module("vllm")
        except ImportError as error:
            raise ParameterError(
                "The engine 'vllm' needs vLLM and a GPU. Install vLLM in this environment, or take"
                " --engine torch."
            ) from error
        self._folders: dict[str, Path] = {}
        self._tokenizers: dict[
            str, ChatTokenizer
        ] = {}  # ours: what is said is text, in each engine
        self._resident: tuple[str, Any] | None = None

    @property
    def max_batch_size(self) -> int:
        """Most requests that one call of ``generate`` takes."""
        return MAX_BATCH_SIZE

    def load(self, model_id: str, folder: Path) -> None:
        """Make a model known, and resident if none is."""
        if not (folder / "config.json").is_file():
            raise LanguageServiceError(f"{folder} holds no model: it has no config.json.")
        self._folders[model_id] = folder
        self._tokenizers[model_id] = ChatTokenizer(folder)
        if self._resident is None:
            self._model(model_id)

    def unload(self, model_id: str) -> None:
        """Forget a model."""
        del self._folders[model_id], self._tokenizers[model_id]
        if self._resident is not None and self._resident[0] == model_id:
            self._free()

    def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[GenerationResult | RequestRefusedError]:
        """Answer requests to one model."""
        model = self._model(requests[0].model)
        tokenizer = self._tokenizers[requests[0].model]
        context = int(model.llm_engine.model_config.max_model_len)
        results: list[GenerationResult | RequestRefusedError | None] = [None] * len(requests)
        prompts, samplings, places = [], [], []
        for place, request in enumerate(requests):
            try:
                ids = tokenizer.prompt_ids(
                    request.messages, request.template_variables, most=context
                )
            except ContextLengthError as error:
                results[place] = _refused(error, "context_length_exceeded")
                continue
            except DataError as error:
                results[place] = _refused(error, "invalid_messages")
                continue
            if len(ids) >= context:
                results[place] = _too_long(len(ids), context)
                continue
            prompts.append({"prompt_token_ids": ids})
            samplings.append(self._sampling(request, context - len(ids)))
            places.append(place)
        outputs = model.generate(prompts, samplings, use_tqdm=False) if prompts else []
        for place, output in zip(places, outputs, strict=True):
            results[place] = _to_result(requests[place], output)
        return [result for result in results if result is not None]

    def _model(self, model_id: str) -> Any:  # noqa: ANN401 -- vllm.LLM
        if self._resident is None or self._resident[0] != model_id:
            self._free()
            self._resident = (model_id, self._vllm.LLM(model=str(self._folders[model_id])))
        return self._resident[1]

    def _free(self) -> None:
        self._resident = None
        gc.collect()

    def _sampling(self, request: GenerationRequest, room: int) -> Any:  # noqa: ANN401
        most = room if request.max_tokens is None else min(room, request.max_tokens)
        return self._vllm.SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            repetition_penalty=request.repetition_penalty,
            max_tokens=most,
            stop=list(request.stop) or None,
            seed=request.seed,
            logprobs=request.top_logprobs if request.logprobs else None,
        )


def _refused(error: DataError, code: str) -> RequestRefusedError:
    return RequestRefusedError(str(error), param="messages", code=code)


def _too_long(length: int, context: int) -> RequestRefusedError:
    return RequestRefusedError(
        f"The prompt has {length} tokens; the model's context holds {context}, and at least one"
        " must be left for the answer.",
        param="messages",
        code="context_length_exceeded",
    )


def _to_result(request: GenerationRequest, output: Any) -> GenerationResult:  # noqa: ANN401
    answer = output.outputs[0]
    reason: Literal["stop", "length"] = "length" if answer.finish_reason == "length" else "stop"
    tokens: list[GeneratedToken] = []
    if request.logprobs:
        for token_id, choices in zip(answer.token_ids, answer.logprobs, strict=True):
            chosen = choices[token_id]
            likeliest = sorted(choices.values(), key=lambda choice: -choice.logprob)
            top = likeliest[: request.top_logprobs]
            tokens.append(
                GeneratedToken(
                    chosen.decoded_token or "",
                    chosen.logprob,
                    tuple(
                        TokenChoice(choice.decoded_token or "", choice.logprob) for choice in top
                    ),
                )
            )
    return GenerationResult(
        text=answer.text,
        finish_reason=reason,
        prompt_tokens=len(output.prompt_token_ids),
        completion_tokens=len(answer.token_ids),
        tokens=tuple(tokens),
    )
