"""Run tinker-cookbook's training loops as published, with local data; interrupt and resume them.

``cookbook_loops.py URL`` runs in an environment with ``tinker-cookbook``, in the folder of its
data. Each loop is interrupted after a checkpoint; once the parent has replied on the standard
input, each continues from there. A line on the standard output announces each event.
"""

from __future__ import annotations

import asyncio
import os
import sys

import tinker
from tinker_cookbook import model_info
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl
from tinker_cookbook.recipes import rl_loop, sl_loop
from tinker_cookbook.recipes.math_rl import math_env
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.supervised import train as supervised_train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

MODEL = "Qwen/Qwen3-8B"
STEPS_BEFORE_INTERRUPTION = 5  # after the checkpoint of the third, also where steps overlap
_SHARED = {"model_name": MODEL, "lora_rank": 2, "save_every": 2, "base_url": sys.argv[1]}


class LoopEndedError(Exception):
    """Ends a loop as a crash of its process would."""


class Steps:
    """Counts optimizer steps; interrupts at the last of ``left``, or calls ``on_first``."""

    left: int | None = None
    is_announced = True

    @classmethod
    def count(cls) -> None:
        if cls.left is not None:
            cls.left -= 1
            if cls.left == 0:
                raise LoopEndedError
        if not cls.is_announced:
            cls.is_announced = True
            announce("training")


def announce(event: str) -> None:
    sys.stdout.write(f"\n@{event}\n")
    sys.stdout.flush()


def reward(text: str) -> float:
    """Return a reward that differs between the texts of a model with random weights."""
    return sum(ord(character) % 7 for character in text) / (7 * max(1, len(text)))


def run_sl_loop() -> None:
    sl_loop.main(sl_loop.Config(log_path="sl_loop", batch_size=4, max_length=256, **_SHARED))


def run_rl_loop() -> None:
    sizes = {"batch_size": 2, "group_size": 3, "max_tokens": 8, "learning_rate": 0.01}
    rl_loop.main(rl_loop.Config(log_path="rl_loop", **sizes, **_SHARED))


def _common() -> ChatDatasetBuilderCommonConfig:
    return ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=MODEL,
        renderer_name=model_info.get_recommended_renderer_name(MODEL),
        max_length=256,
        batch_size=4,
    )


def run_supervised() -> None:
    data = FromConversationFileBuilder(common_config=_common(), file_path="conversations.jsonl")
    config = supervised_train.Config(
        log_path="supervised", recipe_name="r", dataset_builder=data, eval_every=0, **_SHARED
    )
    asyncio.run(supervised_train.main(config))


def run_rl() -> None:
    renderer = model_info.get_recommended_renderer_name(MODEL)
    data = math_env.Gsm8kDatasetBuilder(
        batch_size=2, group_size=3, renderer_name=renderer, model_name_for_tokenizer=MODEL
    )
    config = rl_train.Config(
        log_path="rl",
        recipe_name="r",
        renderer_name=renderer,
        dataset_builder=data,
        learning_rate=0.01,
        max_tokens=8,
        eval_every=0,
        **_SHARED,
    )
    asyncio.run(rl_train.main(config))


def run_preference() -> None:
    data = DPODatasetBuilderFromComparisons(
        common_config=_common(),
        comparison_builder=ComparisonBuilderFromJsonl(train_path="comparisons.jsonl"),
    )
    config = train_dpo.Config(
        log_path="preference",
        recipe_name="r",
        renderer_name=model_info.get_recommended_renderer_name(MODEL),
        dataset_builder=data,
        learning_rate=0.01,
        **_SHARED,
    )
    result = train_dpo.main(config)
    if asyncio.iscoroutine(result):
        asyncio.run(result)


LOOPS = {
    "sl_loop": run_sl_loop,
    "rl_loop": run_rl_loop,
    "supervised": run_supervised,
    "rl": run_rl,
    "preference": run_preference,
}


def main() -> None:
    """Interrupt and resume each loop."""
    step = tinker.TrainingClient.optim_step

    def counted(self: tinker.TrainingClient, *given: object, **named: object) -> object:
        Steps.count()
        return step(self, *given, **named)

    tinker.TrainingClient.optim_step = counted
    rl_loop.get_reward = lambda response, _answer: reward(response)
    math_env.MathEnv.check_answer = lambda _self, text: reward(text)
    for name, run in LOOPS.items():
        Steps.left = STEPS_BEFORE_INTERRUPTION
        try:
            run()
        except LoopEndedError:
            announce(f"interrupted {name}")
    Steps.left = None
    announce("all interrupted")
    sys.stdin.readline()
    Steps.is_announced = False
    for name, run in LOOPS.items():
        run()
        announce(f"finished {name}")
    os._exit(0)  # without waiting for the client's threads


if __name__ == "__main__":
    main()
