"""vLLM in an interpreter of its own: imports vllm and the standard library alone.

Started with the descriptor of a socket. Reads calls from it as lines of JSON, ``{"method": …,
"arguments": {…}}``, and answers each with a line, ``{"result": …}`` or ``{"error": …, "kind": …}``.
Ends with the socket, and so with the process that started it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
from typing import Any

# one process, which ends with the socket
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB; by default nearly all memory


class Worker:
    """A ``vllm.LLM`` and its current adapter."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._options: dict[str, Any] = {}
        self._adapter: Any = None
        self._number = 0

    def start(self, model: str, options: dict[str, Any]) -> str:
        """Load a model; return vLLM's version. The given options take precedence."""
        import vllm
        from vllm.platforms import current_platform

        self._options = {
            "model": model,
            "logprobs_mode": "processed_logprobs",  # at the request's temperature
            "enable_sleep_mode": current_platform.is_sleep_mode_available(),
            **options,
        }
        self._llm = vllm.LLM(**self._options)
        return str(vllm.__version__)

    def read_weights(self) -> None:
        """Read the weights of the model's folder again."""
        if self._options["enable_sleep_mode"]:
            self._llm.sleep(level=2)
            self._llm.wake_up(tags=["weights"])
            self._llm.collective_rpc("reload_weights")
            self._llm.wake_up(tags=["kv_cache"])
        else:
            self._llm.collective_rpc("reload_weights")

    def read_adapter(self, folder: str) -> None:
        """Use a folder's adapter from now on; vLLM identifies it by number."""
        from vllm.lora.request import LoRARequest

        if self._number:
            self._llm.llm_engine.remove_lora(self._number)
        self._number += 1
        self._adapter = LoRARequest(f"step {self._number}", self._number, folder)

    def generate(
        self, prompts: list[list[int]], sampling: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Complete prompts; return tokens, their log-probabilities and the finish reasons."""
        from vllm import SamplingParams

        # of earlier weights, and of earlier calls: a resumed run has not made those
        self._llm.reset_prefix_cache()
        outputs = self._llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [SamplingParams(**each, logprobs=0, detokenize=False) for each in sampling],
            use_tqdm=False,
            **({} if self._adapter is None else {"lora_request": self._adapter}),
        )
        return [_completion(output.outputs[0]) for output in outputs]


def _completion(answer: Any) -> dict[str, Any]:  # noqa: ANN401 -- vllm.CompletionOutput
    tokens = list(answer.token_ids)
    return {
        "tokens": tokens,
        "log_probs": [
            choices[token].logprob for token, choices in zip(tokens, answer.logprobs, strict=True)
        ],
        "finish_reason": answer.finish_reason,
    }


def _end_with(descriptor: int) -> None:
    """End this process, whatever it computes, when the other end of the socket closes."""
    closed = select.poll()
    closed.register(descriptor, select.POLLRDHUP)
    closed.poll()
    os._exit(1)


def main(descriptor: int) -> None:
    """Answer calls until the socket ends."""
    worker = Worker()
    threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as lines:
        for line in lines:
            call = json.loads(line)
            try:
                answer = {"result": getattr(worker, call["method"])(**call["arguments"])}
            except Exception as error:  # noqa: BLE001 -- the caller raises it
                answer = {"error": str(error), "kind": type(error).__name__}
            lines.write(json.dumps(answer).encode() + b"\n")
            lines.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
