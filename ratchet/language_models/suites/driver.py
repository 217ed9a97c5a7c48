"""Runs one task of ``inspect-ai``; a script for interpreters without Ratchet.

Imports only the standard library and ``inspect_ai``. Reads the request from a JSON file and the
model's key from the environment. Exits with its parent, whose pipe it reads. Seeds the global
generators for tasks without a seed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import random
import sys
import threading
import traceback
from collections import Counter
from typing import Any

KEY_VARIABLE = "RATCHET_SUITE_KEY"
NOT_STARTED = 3
"""Exit code if the task cannot be loaded or run with these arguments."""
_COMPATIBLE = "inspect_ai.model._providers.openai_compatible"


def main() -> int:
    """Run the task of the file named on the command line; return the exit code."""
    sys.path.pop(0)  # this file's folder: the task must not import its neighbours
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with open(sys.argv[1], encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    _seed(request["seed"])
    try:
        logs = _evaluate(request)
    except BaseException as error:  # noqa: BLE001 -- this process's outermost border
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return NOT_STARTED
    if len(logs) != 1:
        print(f"{len(logs)} tasks found, expected one", file=sys.stderr)  # noqa: T201
        return NOT_STARTED
    return 0


def _evaluate(request: dict[str, Any]) -> list[Any]:
    inspect_ai = importlib.import_module("inspect_ai")
    # the provider for plain chat completions; earlier versions had one for all OpenAI-compatible
    # services
    provider = "openai-api/ratchet" if importlib.util.find_spec(_COMPATIBLE) else "openai"
    model = importlib.import_module("inspect_ai.model").get_model(
        f"{provider}/{request['model']}",
        base_url=request["url"],
        api_key=os.environ.pop(KEY_VARIABLE),
    )
    _reseed_repetitions(request["seed"])
    logs: list[Any] = inspect_ai.eval(
        request["task"],
        model=model,
        task_args=request["arguments"],
        limit=request["limit"],
        log_dir=request["log_dir"],
        log_format="json",
        display="none",
        seed=request["seed"],
        temperature=request["temperature"],
        max_tokens=request["max_tokens"],
        max_connections=request["max_connections"],
    )
    return logs


def _reseed_repetitions(seed: int) -> None:
    """Change the seed of a repeated conversation, as in a second epoch.

    With one seed its completion would be the same. Skipped in versions without such a hook.
    """
    try:
        module = importlib.import_module("inspect_ai.hooks")
    except ImportError:
        return
    if not hasattr(module.Hooks, "on_before_model_generate"):
        return
    seen: Counter[str] = Counter()

    async def on_before_model_generate(_: object, data: Any) -> None:  # noqa: ANN401 -- inspect's
        messages = [[message.role, message.text] for message in data.input]
        name = json.dumps(messages, sort_keys=True)
        text = f"{seed}/{seen[name]}/{name}"
        seen[name] += 1
        data.config.seed = int(hashlib.sha256(text.encode()).hexdigest()[:7], 16)

    methods = {"on_before_model_generate": on_before_model_generate}
    hook = type("Repetitions", (module.Hooks,), methods)
    module.hooks(name="ratchet_repetitions", description="tells repetitions apart")(hook)


def _seed(seed: int) -> None:
    random.seed(seed)
    if importlib.util.find_spec("numpy"):
        importlib.import_module("numpy").random.seed(seed)


def _exit_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
