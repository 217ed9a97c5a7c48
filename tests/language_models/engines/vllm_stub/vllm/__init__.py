"""A stand-in for vLLM: completes each prompt with the first tokens of the weights' digest.

A prompt that starts with token 8 ends the process.
"""

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

__version__ = "stand-in"


class LLM:
    """Generates from the weights that it has read, and writes its calls to ``calls``."""

    def __init__(self, model, *, logprobs_mode, enable_sleep_mode, dtype, **options):
        if "speed" in options:
            raise TypeError("unexpected argument 'speed'")
        assert logprobs_mode == "processed_logprobs"
        self._file = Path(model) / "model.safetensors"
        self._loras = {}
        self.llm_engine = SimpleNamespace(remove_lora=self._loras.pop)
        self._say(f"start sleep={enable_sleep_mode} dtype={dtype} {sorted(options.items())}")
        if devices := os.environ.get("CUDA_VISIBLE_DEVICES"):
            self._say(f"devices {devices}")
        self.collective_rpc("reload_weights")

    def generate(self, prompts, sampling, *, use_tqdm, lora_request=None):
        weights = self._weights
        if lora_request is not None:
            file = Path(lora_request.folder) / "adapter_model.safetensors"
            weights = self._loras.setdefault(lora_request.number, file.read_bytes())
        digest = hashlib.sha256(weights).digest()
        outputs = []
        for prompt, parameters in zip(prompts, sampling, strict=True):
            if prompt["prompt_token_ids"][0] == 8:
                os.write(1, b"the last line\n")
                os._exit(3)
            tokens = [3 + digest[k] % 2 for k in range(parameters.values["max_tokens"])]
            choices = [{token: SimpleNamespace(logprob=-0.5)} for token in tokens]
            answer = SimpleNamespace(token_ids=tokens, logprobs=choices, finish_reason="length")
            outputs.append(SimpleNamespace(outputs=[answer]))
        return outputs

    def sleep(self, level):
        self._say(f"sleep {level}")
        self._weights = None

    def wake_up(self, tags):
        self._say(f"wake_up {tags}")

    def collective_rpc(self, method):
        assert method == "reload_weights"
        self._weights = self._file.read_bytes()

    def reset_prefix_cache(self):
        self._say("reset_prefix_cache")

    def _say(self, call):
        with Path(os.environ["STUB_CALLS"]).open("a") as calls:
            calls.write(call + "\n")


class SamplingParams:
    """Keeps its arguments."""

    def __init__(self, **values):
        self.values = values
