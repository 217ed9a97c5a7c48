"""Generation by vLLM with the trainer's weights, for a machine with a GPU.

vLLM is not among Ratchet's dependencies; install it separately (0.15 or newer). Weights are passed
through a folder: of an adapted model only the adapter, which vLLM applies to the base; of any other
model all, which replace those in memory while the key-value cache is released.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import ParameterError
from ratchet.language_models.engines.rollouts import ENGINES, Completion, SampleRequest
from ratchet.language_models.engines.vllm_engine import import_vllm, lora_room, reload_weights
from ratchet.language_models.local.adapters import AdapterBase
from ratchet.language_models.local.model import LanguageModel
from ratchet.models.folders import ADAPTER_CONFIG_FILE, read_json


@ENGINES.register("vllm")
class VllmRollouts:
    """Generates with vLLM.

    Parameters
    ----------
    model
        The model whose weights are used.
    options
        Arguments of ``vllm.LLM``, e.g. ``gpu_memory_utilization``: the trainer's model is in the
        same memory.
    """

    def __init__(self, model: LanguageModel, **options: Any) -> None:  # noqa: ANN401 -- vLLM's
        self._vllm = import_vllm("the default of language.engine")
        self._model, self._options = model, options
        self._place = tempfile.TemporaryDirectory(prefix="ratchet-rollouts-")
        self._folder = Path(self._place.name) / "model"
        self._llm: Any = None
        self._adapter: Any = None
        self._number = 0
        self._is_stale = True

    def update(self, model: LanguageModel) -> None:
        """Use this model's weights from the next call on."""
        self._model, self._is_stale = model, True

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Generate completions in one batch."""
        if any(request.top_p < 1 for request in requests):
            raise ParameterError(
                "top_p: got less than 1 with the engine 'vllm', whose log-probabilities would be of"
                " the truncated distribution; expected 1."
            )
        if not requests:
            return []
        self._take_weights()
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(request.prompt)} for request in requests],
            [self._sampling(request) for request in requests],
            use_tqdm=False,
            **({} if self._adapter is None else {"lora_request": self._adapter}),
        )
        return [_completion(output.outputs[0]) for output in outputs]

    def _sampling(self, request: SampleRequest) -> Any:  # noqa: ANN401 -- vllm.SamplingParams
        return self._vllm.SamplingParams(
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            seed=request.seed,
            stop_token_ids=[*self._model.end_ids, *request.stop_ids],
            logprobs=0,
            detokenize=False,
        )

    def _take_weights(self) -> None:
        if not self._is_stale:
            return
        self._model.save(self._folder)
        if (self._folder / ADAPTER_CONFIG_FILE).is_file():
            self._take_adapter()
        elif self._llm is None:
            self._llm = self._make(self._folder)
        else:
            self._llm.sleep(level=2)
            reload_weights(self._llm)
        self._is_stale = False

    def _take_adapter(self) -> None:
        """Use the adapter's current weights from the next call on; vLLM identifies it by number."""
        if self._llm is None:
            base = AdapterBase.read(self._folder)
            assert base is not None  # it is an adapter
            rank = lora_room(int(read_json(self._folder / ADAPTER_CONFIG_FILE)["r"]))
            self._llm = self._make(Path(base.folder), enable_lora=True, max_lora_rank=rank)
        else:
            self._llm.llm_engine.remove_lora(self._number)
        self._number += 1
        lora: Any = importlib.import_module("vllm.lora.request")
        self._adapter = lora.LoRARequest(f"step {self._number}", self._number, str(self._folder))

    def _make(self, folder: Path, **more: Any) -> Any:  # noqa: ANN401 -- vllm.LLM
        return self._vllm.LLM(
            model=str(folder),
            enable_sleep_mode=True,
            logprobs_mode="processed_logprobs",  # at the request's temperature
            **more,
            **self._options,
        )


def _completion(answer: Any) -> Completion:  # noqa: ANN401 -- vllm.CompletionOutput
    log_probs = [
        choices[token].logprob
        for token, choices in zip(answer.token_ids, answer.logprobs, strict=True)
    ]
    is_cut = answer.finish_reason == "length"
    return Completion(tuple(answer.token_ids), tuple(log_probs), "length" if is_cut else "stop")
