"""Runs one task of ``inspect-ai``: started by path, by an interpreter that need not know Ratchet.

Standard library and ``inspect_ai`` alone. Reads a JSON file of what is asked; the model's key comes
in the environment. Ends with its parent, whose pipe it reads. What the task does without a seed is
seeded here.
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
NOT_BEGUN = 3
"""The exit code where the task cannot be had, or not be asked like this."""
_COMPATIBLE = "inspect_ai.model._providers.openai_compatible"


def main() -> int:
    """Run the task of the file that is named on the command line; return the exit code."""
    sys.path.pop(0)  # this file's folder: its neighbours are no modules of the task's
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    with open(sys.argv[1], encoding="utf-8") as file:
        asked: dict[str, Any] = json.load(file)
    _seed(asked["seed"])
    try:
        logs = _evaluate(asked)
    except BaseException as error:  # noqa: BLE001 -- this process's outermost border
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return NOT_BEGUN
    if len(logs) != 1:
        print(f"{len(logs)} tasks were found, expected one", file=sys.stderr)  # noqa: T201
        return NOT_BEGUN
    return 0


def _evaluate(asked: dict[str, Any]) -> list[Any]:
    inspect_ai = importlib.import_module("inspect_ai")
    # what speaks chat completions alone; versions before it had one for all that is OpenAI's
    provider = "openai-api/ratchet" if importlib.util.find_spec(_COMPATIBLE) else "openai"
    model = importlib.import_module("inspect_ai.model").get_model(
        f"{provider}/{asked['model']}",
        base_url=asked["url"],
        api_key=os.environ.pop(KEY_VARIABLE),
    )
    _tell_repetitions_apart(asked["seed"])
    logs: list[Any] = inspect_ai.eval(
        asked["task"],
        model=model,
        task_args=asked["arguments"],
        limit=asked["limit"],
        log_dir=asked["log_dir"],
        log_format="json",
        display="none",
        seed=asked["seed"],
        temperature=asked["temperature"],
        max_tokens=asked["max_tokens"],
        max_connections=asked["max_connections"],
    )
    return logs


def _tell_repetitions_apart(seed: int) -> None:
    """Give a conversation that comes again, as in a second epoch, another seed.

    With one seed its answer would be the same. Not in versions without such a hook.
    """
    try:
        module = importlib.import_module("inspect_ai.hooks")
    except ImportError:
        return
    if not hasattr(module.Hooks, "on_before_model_generate"):
        return
    seen: Counter[str] = Counter()

    async def on_before_model_generate(_: object, data: Any) -> None:  # noqa: ANN401 -- inspect's
        said = [[message.role, message.text] for message in data.input]
        name = json.dumps(said, sort_keys=True)
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


def _leave_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
