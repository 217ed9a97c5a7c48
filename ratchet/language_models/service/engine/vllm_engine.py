"""An engine that stands on vLLM, for a machine with a GPU (``--engine vllm``).

vLLM is not among Ratchet's dependencies; install it beside them (0.15 or newer). One whole model is
in memory at a time, with as many adapters to it as are asked for, in one batch; another whole model
takes its place when it is asked. Results may depend on the batch in their last digits;
``VLLM_BATCH_INVARIANT=1`` makes them not.
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

from ratchet.errors import LanguageServiceError, ParameterError
from ratchet.language_models.service.engine.interface import (
    EmbeddingRequest,
    EmbeddingResult,
    GenerationRequest,
    GenerationResult,
    RequestRefusedError,
)
from ratchet.language_models.service.engine.prompts import read_prompt
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer
from ratchet.language_models.service.engine.vllm_results import to_result
from ratchet.models.folders import ADAPTER_CONFIG_FILE, read_json
from ratchet.models.low_rank import compose

MAX_BATCH_SIZE = 256
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What ``max_lora_rank`` may be."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A model by its parts: the whole one, and the adapter to it, if it is one."""

    whole: Path
    tokenizer: ChatTokenizer  # ours: what is said is text, in each engine
    adapter: Path | None = None
    rank: int = 0


class _Resident(NamedTuple):
    """What is in memory; ``rank`` is the highest of adapters that it has room for."""

    whole: Path
    llm: Any
    rank: int


@dataclass(slots=True)
class _Asked:
    """A request as vLLM takes it, and its place among all."""

    place: int
    prompt: dict[str, list[int]]
    sampling: Any
    adapter: Any


class VllmEngine:
    """Runs models with vLLM.

    Parameters
    ----------
    max_loras
        How many adapters are applied in one batch.
    sleep_level
        vLLM's: 1 keeps the weights in the machine's memory while a job trains, 2 reads them again,
        0 keeps all memory.

    Raises
    ------
    ParameterError
        If vLLM is not installed.
    """

    shares_base = True

    def __init__(self, *, max_loras: int = 4, sleep_level: int = 1) -> None:
        try:
            self._vllm: Any = importlib.import_module("vllm")
        except ImportError as error:
            raise ParameterError(
                "The engine 'vllm' needs vLLM and a GPU. Install vLLM in this environment, or take"
                " --engine torch."
            ) from error
        self._max_loras = max_loras
        self._sleep_level = sleep_level
        self._known: dict[str, _Known] = {}
        self._numbers: dict[str, int] = {}  # vLLM knows an adapter again by its number
        self._last_number = 0
        self._resident: _Resident | None = None
        self._composed = tempfile.TemporaryDirectory(prefix="ratchet-adapters-")

    @property
    def max_batch_size(self) -> int:
        """Most requests that one call of ``generate`` takes."""
        return MAX_BATCH_SIZE

    def load(self, model_id: str, folder: Path, adapters: Sequence[Path] = ()) -> None:
        """Make a model known, and resident if none is.

        vLLM applies one adapter to a request: a chain of several becomes one whose rank is the sum.
        """
        if not (folder / "config.json").is_file():
            raise LanguageServiceError(f"{folder} holds no model: it has no config.json.")
        known = _Known(folder, ChatTokenizer(folder))
        if adapters:
            rank = sum(int(read_json(each / ADAPTER_CONFIG_FILE)["r"]) for each in adapters)
            if rank > _RANKS[-1]:
                raise LanguageServiceError(
                    f"{model_id} is a chain of {len(adapters)} adapters of rank {rank} together;"
                    f" vLLM takes {_RANKS[-1]}. Write it out as a whole model with `ratchet llm"
                    " export` and serve that, or take --engine torch."
                )
            known = _Known(folder, known.tokenizer, self._as_one(adapters), rank)
        self._known[model_id] = known
        if self._resident is None:
            self._llm(known)

    def unload(self, model_id: str) -> None:
        """Forget a model; its base goes with the last one that stands on it."""
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
        """Answer requests to models that stand on one whole model."""
        llm = self._llm(self._known[requests[0].model])
        context = int(llm.llm_engine.model_config.max_model_len)
        results: dict[int, GenerationResult | RequestRefusedError] = {}
        asked: list[_Asked] = []
        for place, request in enumerate(requests):
            read = self._read(place, request, context)
            if isinstance(read, _Asked):
                asked.append(read)
            else:
                results[place] = read
        for each, output in zip(asked, _ask(llm, asked), strict=True):
            request = requests[each.place]
            tokenizer = self._known[request.model].tokenizer
            if isinstance(output, ValueError):
                results[each.place] = _refusal(request, output)
            else:
                results[each.place] = to_result(request, output, tokenizer)
        return [results[place] for place in range(len(requests))]

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

    @property
    def sleeps(self) -> bool:
        """Whether it gives memory away while a job trains."""
        return self._sleep_level > 0

    def sleep(self) -> None:
        """Give the GPU's memory away until :meth:`wake_up`."""
        if self._resident is not None:
            self._resident.llm.sleep(level=self._sleep_level)

    def wake_up(self) -> None:
        """Take the memory back, with the same weights."""
        if self._resident is None:
            return
        llm = self._resident.llm
        if self._sleep_level == 1:
            llm.wake_up()
            return
        llm.wake_up(tags=["weights"])
        llm.collective_rpc("reload_weights")
        llm.wake_up(tags=["kv_cache"])
        for number in self._numbers.values():  # what was read of adapters is gone as well
            llm.llm_engine.remove_lora(number)
        self._numbers.clear()

    def _as_one(self, adapters: Sequence[Path]) -> Path:
        if len(adapters) == 1:
            return adapters[0]
        folder = Path(tempfile.mkdtemp(dir=self._composed.name)) / "adapter"
        compose(adapters, folder)
        return folder

    def _llm(self, known: _Known) -> Any:  # noqa: ANN401 -- vllm.LLM
        """Return what runs a model and all known ones on its base; make it where it is not."""
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
        self, place: int, request: GenerationRequest, context: int
    ) -> _Asked | RequestRefusedError:
        known = self._known[request.model]
        ids = read_prompt(known.tokenizer, request, context)
        if isinstance(ids, RequestRefusedError):
            return ids
        try:
            sampling = self._sampling(request, context - len(ids), known.tokenizer.end_ids)
        except ValueError as error:
            return _refusal(request, error)
        return _Asked(place, {"prompt_token_ids": ids}, sampling, self._adapter(request.model))

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
            max_tokens=max(1, most),  # vLLM makes one at least; see to_result
            stop=list(request.stop) or None,
            stop_token_ids=list(ends),
            seed=request.seed,
            logprobs=request.top_logprobs if request.logprobs else None,
            **more,
        )


def lora_room(rank: int) -> int:
    """Return the smallest room for adapters that vLLM has and that takes this rank.

    Raises ParameterError if there is none.
    """
    found = next((room for room in _RANKS if room >= rank), None)
    if found is None:
        raise ParameterError(f"lora rank: got {rank}, but vLLM takes {_RANKS[-1]} at most.")
    return found


def _ask(llm: Any, asked: Sequence[_Asked]) -> list[Any]:  # noqa: ANN401 -- vllm.LLM
    """Return vLLM's outputs, or for a request that it refuses the ValueError.

    It refuses a whole batch for one request, before it has begun; then each is asked by itself.
    """
    if not asked:
        return []
    adapters = [each.adapter for each in asked]
    more = {"lora_request": adapters} if any(adapters) else {}
    try:
        found: list[Any] = llm.generate(
            [each.prompt for each in asked],
            [each.sampling for each in asked],
            use_tqdm=False,
            **more,
        )
        return found
    except ValueError as error:
        if len(asked) == 1:
            return [error]
        return [output for each in asked for output in _ask(llm, [each])]


def _refusal(request: GenerationRequest, error: ValueError) -> RequestRefusedError:
    param = "messages" if request.prompt is None else "prompt"
    param = param if request.schema is None else request.schema_param
    return RequestRefusedError(f"vLLM refuses it: {error}", param=param, code="invalid_value")
