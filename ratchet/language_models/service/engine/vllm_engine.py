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

from ratchet.errors import LanguageServiceError, ParameterError
from ratchet.language_models.service.engine.interface import (
    EmbeddingRequest,
    EmbeddingResult,
    GeneratedToken,
    GenerationRequest,
    GenerationResult,
    PromptToken,
    RequestRefusedError,
    TokenChoice,
)
from ratchet.language_models.service.engine.prompts import read_prompt
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer

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
            ids = read_prompt(tokenizer, request, context)
            if isinstance(ids, RequestRefusedError):
                results[place] = ids
                continue
            prompts.append({"prompt_token_ids": ids})
            samplings.append(self._sampling(request, context - len(ids)))
            places.append(place)
        outputs = model.generate(prompts, samplings, use_tqdm=False) if prompts else []
        for place, output in zip(places, outputs, strict=True):
            first = tokenizer.token_text(output.prompt_token_ids[0])
            results[place] = _to_result(requests[place], output, first)
        return [result for result in results if result is not None]

    def embed(
        self, requests: Sequence[EmbeddingRequest]
    ) -> list[EmbeddingResult | RequestRefusedError]:
        """Refuse: vLLM makes vectors of models that are loaded for nothing else."""
        return [
            RequestRefusedError(
                "The engine 'vllm' has no embeddings. Start the service with --engine torch.",
                param="model",
                code="unsupported_model",
            )
            for _ in requests
        ]

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
        more: dict[str, Any] = {}
        if request.echo:
            more["prompt_logprobs"] = request.top_logprobs
        if request.schema is not None:
            params: Any = importlib.import_module("vllm.sampling_params")
            more["structured_outputs"] = params.StructuredOutputsParams(json=request.schema)
        return self._vllm.SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            repetition_penalty=request.repetition_penalty,
            max_tokens=max(1, most),  # vLLM makes one at least; see _to_result
            stop=list(request.stop) or None,
            seed=request.seed,
            logprobs=request.top_logprobs if request.logprobs else None,
            **more,
        )


def _to_result(
    request: GenerationRequest,
    output: Any,  # noqa: ANN401 -- vllm.RequestOutput
    first: str,
) -> GenerationResult:
    """Make the result; vLLM says nothing of the prompt's ``first`` token."""
    answer = output.outputs[0]
    reason: Literal["stop", "length"] = "length" if answer.finish_reason == "length" else "stop"
    echo: list[PromptToken] = []
    if request.echo:
        places = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        for token, choices in places:
            if choices is None:
                echo.append(PromptToken(first))
                continue
            found = _described(request, token, choices)
            logprob = found.logprob if request.logprobs else None
            echo.append(PromptToken(found.token, logprob, found.top))
    if request.max_tokens == 0:
        return GenerationResult("", "length", len(output.prompt_token_ids), 0, (), tuple(echo))
    tokens: list[GeneratedToken] = []
    if request.logprobs:
        for token, choices in zip(answer.token_ids, answer.logprobs, strict=True):
            tokens.append(_described(request, token, choices))
    return GenerationResult(
        text=answer.text,
        finish_reason=reason,
        prompt_tokens=len(output.prompt_token_ids),
        completion_tokens=len(answer.token_ids),
        tokens=tuple(tokens),
        prompt=tuple(echo),
    )


def _described(request: GenerationRequest, token: int, choices: Any) -> GeneratedToken:  # noqa: ANN401
    likeliest = sorted(choices.values(), key=lambda choice: -choice.logprob)
    top = tuple(
        TokenChoice(choice.decoded_token or "", choice.logprob)
        for choice in likeliest[: request.top_logprobs]
    )
    return GeneratedToken(choices[token].decoded_token or "", choices[token].logprob, top)
