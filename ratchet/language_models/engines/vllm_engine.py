"""Engine based on vLLM, for a machine with a GPU (``--engine vllm``).

vLLM is not among Ratchet's dependencies; install it separately (0.15 or newer). One complete model
is in memory at a time, with all its requested adapters in one batch; a request to another complete
model replaces it. Last digits may depend on the batch; ``VLLM_BATCH_INVARIANT=1`` prevents this.
"""

from __future__ import annotations

import gc
import importlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.errors import LanguageServiceError, MissingPackageError, ParameterError
from ratchet.language_models.engines.interface import (
    EmbeddingRequest,
    EmbeddingResult,
    FinishReason,
    GeneratedToken,
    GenerationRequest,
    GenerationResult,
    PromptToken,
    RequestRefusedError,
    TokenChoice,
    tokens_within,
)
from ratchet.language_models.engines.prompts import read_prompt
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.models.folders import ADAPTER_CONFIG_FILE, read_json
from ratchet.models.low_rank import compose

MAX_BATCH_SIZE = 256
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Valid values of ``max_lora_rank``."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A model by its parts: the complete one, and its adapter, if any."""

    whole: Path
    tokenizer: ChatTokenizer  # Ratchet's: message text is never a control token, in each engine
    adapter: Path | None = None
    rank: int = 0


class _Resident(NamedTuple):
    """The model in memory; ``rank`` is the highest adapter rank that fits."""

    whole: Path
    llm: Any
    rank: int


@dataclass(slots=True)
class _VllmRequest:
    """A request in vLLM's format, and its index."""

    index: int
    prompt: dict[str, list[int]]
    sampling: Any
    adapter: Any


class VllmEngine:
    """Runs models with vLLM.

    Parameters
    ----------
    max_loras
        Number of adapters in one batch.
    sleep_level
        vLLM's: 1 keeps the weights in main memory while a job trains, 2 reloads them, 0 keeps all
        memory.
    """

    shares_base = True

    def __init__(self, *, max_loras: int = 4, sleep_level: int = 1) -> None:
        self._vllm = import_vllm("--engine torch")
        self._max_loras = max_loras
        self._sleep_level = sleep_level
        self._known: dict[str, _Known] = {}
        self._numbers: dict[str, int] = {}  # vLLM identifies an adapter by number
        self._last_number = 0
        self._resident: _Resident | None = None
        self._composed = tempfile.TemporaryDirectory(prefix="ratchet-adapters-")

    @property
    def max_batch_size(self) -> int:
        """Maximal number of requests in one call of ``generate``."""
        return MAX_BATCH_SIZE

    def load(self, model_id: str, folder: Path, adapters: Sequence[Path] = ()) -> None:
        """Register a model, and load it if none is in memory.

        vLLM applies one adapter per request: a chain of several becomes one whose rank is the sum.
        """
        if not (folder / "config.json").is_file():
            raise LanguageServiceError(f"{folder} contains no model: config.json is missing.")
        known = _Known(folder, ChatTokenizer(folder))
        if adapters:
            rank = sum(int(read_json(each / ADAPTER_CONFIG_FILE)["r"]) for each in adapters)
            if rank > _RANKS[-1]:
                raise LanguageServiceError(
                    f"{model_id} is a chain of {len(adapters)} adapters of rank {rank} together;"
                    f" vLLM supports {_RANKS[-1]}. Export it as a complete model with `ratchet llm"
                    " export` and serve that, or use --engine torch."
                )
            known = _Known(folder, known.tokenizer, self._as_one(adapters), rank)
        self._known[model_id] = known
        if self._resident is None:
            self._llm(known)

    def unload(self, model_id: str) -> None:
        """Unregister a model; its base is unloaded with its last adapter."""
        known = self._known.pop(model_id)
        if known.adapter is not None and known.adapter.is_relative_to(self._composed.name):
            shutil.rmtree(known.adapter.parent)
        number = self._numbers.pop(model_id, None)
        resident = self._resident
        if resident is None or resident.whole != known.whole:
            return
        if all(other.whole != known.whole for other in self._known.values()):
            self._free()
        elif number is not None:
            resident.llm.llm_engine.remove_lora(number)

    def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[GenerationResult | RequestRefusedError]:
        """Complete requests to models with the same base model."""
        llm = self._llm(self._known[requests[0].model])
        context = int(llm.llm_engine.model_config.max_model_len)
        results: dict[int, GenerationResult | RequestRefusedError] = {}
        batch: list[_VllmRequest] = []
        for index, request in enumerate(requests):
            read = self._read(index, request, context)
            if isinstance(read, _VllmRequest):
                batch.append(read)
            else:
                results[index] = read
        for each, output in zip(batch, _generate_batch(llm, batch), strict=True):
            request = requests[each.index]
            tokenizer = self._known[request.model].tokenizer
            if isinstance(output, ValueError):
                results[each.index] = _refusal(request, output)
            else:
                results[each.index] = to_result(request, output, tokenizer)
        return [results[index] for index in range(len(requests))]

    def embed(
        self, requests: Sequence[EmbeddingRequest]
    ) -> list[EmbeddingResult | RequestRefusedError]:
        """Refuse: vLLM embeds only with models loaded only for it."""
        return [
            RequestRefusedError(
                "The engine 'vllm' has no embeddings. Start the service with --engine torch.",
                param="model",
                code="unsupported_model",
            )
            for _ in requests
        ]

    @property
    def sleeps(self) -> bool:
        """Whether it releases memory while a job trains."""
        return self._sleep_level > 0

    def sleep(self) -> None:
        """Release the GPU's memory until :meth:`wake_up`."""
        if self._resident is not None:
            self._resident.llm.sleep(level=self._sleep_level)

    def wake_up(self) -> None:
        """Restore the memory, with the same weights."""
        if self._resident is None:
            return
        llm = self._resident.llm
        if self._sleep_level == 1:
            llm.wake_up()
            return
        reload_weights(llm)
        for number in self._numbers.values():  # loaded adapters are lost as well
            llm.llm_engine.remove_lora(number)
        self._numbers.clear()

    def _as_one(self, adapters: Sequence[Path]) -> Path:
        if len(adapters) == 1:
            return adapters[0]
        folder = Path(tempfile.mkdtemp(dir=self._composed.name)) / "adapter"
        compose(adapters, folder)
        return folder

    def _llm(self, known: _Known) -> Any:  # noqa: ANN401 -- vllm.LLM
        """Return the vLLM instance of a model and its base's adapters; create it if missing."""
        whole, resident = known.whole, self._resident
        rank = max(other.rank for other in (known, *self._known.values()) if other.whole == whole)
        if resident is not None and resident.whole == whole and resident.rank >= rank:
            return resident.llm
        self._free()
        options: dict[str, Any] = {}
        if rank:
            rank = lora_room(rank)
            options = {"enable_lora": True, "max_loras": self._max_loras, "max_lora_rank": rank}
        if self.sleeps:
            options["enable_sleep_mode"] = True
        self._resident = _Resident(whole, self._vllm.LLM(model=str(whole), **options), rank)
        return self._resident.llm

    def _free(self) -> None:
        self._resident = None
        self._numbers.clear()
        gc.collect()

    def _read(
        self, index: int, request: GenerationRequest, context: int
    ) -> _VllmRequest | RequestRefusedError:
        known = self._known[request.model]
        ids = read_prompt(known.tokenizer, request, context)
        if isinstance(ids, RequestRefusedError):
            return ids
        try:
            sampling = self._sampling(request, context - len(ids), known.tokenizer.end_ids)
        except ValueError as error:
            return _refusal(request, error)
        return _VllmRequest(
            index, {"prompt_token_ids": ids}, sampling, self._adapter(request.model)
        )

    def _adapter(self, model_id: str) -> Any:  # noqa: ANN401 -- vllm.lora.request.LoRARequest
        adapter = self._known[model_id].adapter
        if adapter is None:
            return None
        if model_id not in self._numbers:
            self._last_number += 1
            self._numbers[model_id] = self._last_number
        lora: Any = importlib.import_module("vllm.lora.request")
        return lora.LoRARequest(model_id, self._numbers[model_id], str(adapter))

    def _sampling(self, request: GenerationRequest, room: int, ends: Sequence[int]) -> Any:  # noqa: ANN401
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
            max_tokens=max(1, most),  # vLLM generates at least one; see to_result
            stop=list(request.stop) or None,
            stop_token_ids=list(ends),
            seed=request.seed,
            logprobs=request.top_logprobs if request.logprobs else None,
            **more,
        )


def import_vllm(otherwise: str) -> Any:  # noqa: ANN401 -- a module
    """Import vLLM.

    Raises MissingPackageError, which names what to use otherwise, if it is not installed.
    """
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise MissingPackageError(
            "The engine 'vllm' needs vLLM and a GPU. Install vLLM in this environment, or use"
            f" {otherwise}."
        ) from error


def reload_weights(llm: Any) -> None:  # noqa: ANN401 -- vllm.LLM
    """Wake vLLM up with the weights of its model's folder."""
    llm.wake_up(tags=["weights"])
    llm.collective_rpc("reload_weights")
    llm.wake_up(tags=["kv_cache"])


def lora_room(rank: int) -> int:
    """Return vLLM's smallest maximal rank that supports this rank.

    Raises ParameterError if no such value exists.
    """
    found = next((room for room in _RANKS if room >= rank), None)
    if found is None:
        raise ParameterError(f"lora rank: got {rank}, expected at most {_RANKS[-1]} with vLLM.")
    return found


def _generate_batch(llm: Any, batch: Sequence[_VllmRequest]) -> list[Any]:  # noqa: ANN401 -- vllm.LLM
    """Return vLLM's outputs, or the ValueError of a refused request.

    vLLM refuses a complete batch for one request before it starts; then each is sent separately.
    """
    if not batch:
        return []
    adapters = [each.adapter for each in batch]
    more = {"lora_request": adapters} if any(adapters) else {}
    try:
        found: list[Any] = llm.generate(
            [each.prompt for each in batch],
            [each.sampling for each in batch],
            use_tqdm=False,
            **more,
        )
        return found
    except ValueError as error:
        if len(batch) == 1:
            return [error]
        return [output for each in batch for output in _generate_batch(llm, [each])]


def _refusal(request: GenerationRequest, error: ValueError) -> RequestRefusedError:
    param = "messages" if request.prompt is None else "prompt"
    param = param if request.schema is None else request.schema_param
    return RequestRefusedError(f"vLLM refuses it: {error}", param=param, code="invalid_value")


def to_result(
    request: GenerationRequest,
    output: Any,  # noqa: ANN401 -- vllm.RequestOutput
    tokenizer: ChatTokenizer,
) -> GenerationResult:
    """Build the result; an end token is counted, but listed only if ids are requested."""
    answer, prompt = output.outputs[0], output.prompt_token_ids
    reason: FinishReason = "length" if answer.finish_reason == "length" else "stop"
    echo = _echo(request, output, tokenizer) if request.echo else ()
    if request.max_tokens == 0:
        return GenerationResult("", "length", len(prompt), 0, (), echo)
    tokens: list[GeneratedToken] = []
    if request.logprobs:
        tokens = [
            _described(request, token, choices)
            for token, choices in zip(answer.token_ids, answer.logprobs, strict=True)
            if request.token_ids or token not in tokenizer.end_ids
        ]
        if (
            isinstance(answer.stop_reason, str) and not request.token_ids
        ):  # the text ends before its stop
            tokens = tokens_within(tokens, len(answer.text))
    return GenerationResult(
        text=answer.text,
        finish_reason=reason,
        prompt_tokens=len(prompt),
        completion_tokens=len(answer.token_ids),
        tokens=tuple(tokens),
        prompt=echo,
        token_ids=tuple(answer.token_ids) if request.token_ids else (),
        prompt_ids=tuple(prompt) if request.token_ids else (),
    )


def _echo(
    request: GenerationRequest,
    output: Any,  # noqa: ANN401
    tokenizer: ChatTokenizer,
) -> tuple[PromptToken, ...]:
    """Return the prompt's tokens; vLLM reports none for the first."""
    shown: list[PromptToken] = []
    for token, choices in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
        if choices is None:
            shown.append(PromptToken(tokenizer.token_text(token)))
            continue
        found = _described(request, token, choices)
        logprob = found.logprob if request.logprobs else None
        shown.append(PromptToken(found.token, logprob, found.top))
    return tuple(shown)


def _described(request: GenerationRequest, token: int, choices: Any) -> GeneratedToken:  # noqa: ANN401
    likeliest = sorted(choices.values(), key=lambda choice: -choice.logprob)
    top = tuple(
        TokenChoice(choice.decoded_token or "", choice.logprob)
        for choice in likeliest[: request.top_logprobs]
    )
    return GeneratedToken(choices[token].decoded_token or "", choices[token].logprob, top)
