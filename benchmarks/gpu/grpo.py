"""Steps of GRPO with a model of 0.5 B by Ratchet and by TRL, and the default settings at 1.5 B.

Run as ``grpo.py ratchet``, ``grpo.py trl`` or ``grpo.py defaults``. Both libraries take the same
prompts, rewards and optimizer settings, with float32 weights to which the optimizer applies its
updates. TRL runs without vLLM: with its defaults (checkpointing, bfloat16 arithmetic) and with
micro-batches of 32 rows. The first step is a warm-up; of TRL's settings one more is measured.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import time
from typing import Any

import torch
from workbench import Bench, bench, measured, show

STEPS, TRL_STEPS = 4, 2
MICRO = 32
TRL_SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {"per_device_train_batch_size": 8},
    f"micro-batches of {MICRO}": {"per_device_train_batch_size": MICRO},
    f"micro-batches of {MICRO}, no checkpointing": {
        "per_device_train_batch_size": MICRO,
        "gradient_checkpointing": False,
    },
}


def ratchet(sizes: Bench) -> None:
    """Print each step's times, and the time between two stages."""
    trainer = sizes.trainer("0.5b", STEPS)
    rows = [step(trainer, number, "ratchet") for number in range(STEPS)]
    show(f"GRPO, {sizes.tasks} × 8 completions of {sizes.new} tokens", rows)
    folder, row = sizes.folder / "state", dict[str, object]()
    with measured(row):
        state = trainer.state
    copied = row["seconds"]
    with measured(row):
        state.save(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*")) / 2**30
    shutil.rmtree(folder)
    show(
        "The end of a stage",
        [{"copied in seconds": copied, "written in seconds": row["seconds"], "GiB": size}],
    )


def step(trainer: Any, number: int, label: str) -> dict[str, object]:  # noqa: ANN401 -- a trainer
    """Take a step; return its row."""
    row, generation = {"library": label, "step": number}, dict[str, object]()
    with measured(generation):
        rollouts = trainer.play_rollouts(number)
    with measured(row):
        trainer.give_rollouts(number, rollouts)
        (metrics,) = trainer.run_iterations(number, number + 1)
    update = row["seconds"]
    return row | {
        "generation": generation["seconds"],
        "update": update,
        "seconds": float(generation["seconds"]) + float(update),  # type: ignore[arg-type]
        "reward": metrics["critic/score/mean"],
        "difference from the sampler": metrics["actor/sampler_difference"],
    }


def defaults(sizes: Bench) -> None:
    """Print a step with the default settings at each size."""
    for name in ("0.5b", "1.5b"):
        try:
            row = step(sizes.trainer(name, 1), 0, name)
        except torch.OutOfMemoryError as error:
            row = {"library": name, "step": f"out of memory: {error}"[:200]}
        show("Default settings, one step", [row])


def trl(sizes: Bench) -> None:
    """Print the steps of TRL with each of its settings."""
    for name, changes in TRL_SETTINGS.items():
        show("GRPO of TRL", trl_rows(sizes, name, changes))


def trl_rows(sizes: Bench, name: str, changes: dict[str, Any]) -> list[dict[str, object]]:
    """Train with TRL; return the row of each step."""
    import datasets
    import transformers
    from trl import GRPOConfig, GRPOTrainer

    folder = sizes.write_model("0.5b")
    sizes.hyper_params("0.5b", 1)  # writes the rewards and the tasks
    sys.path.insert(0, str(sizes.folder))
    from rewards import even  # type: ignore[import-not-found]

    lines = (sizes.folder / "tasks" / "train.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines][: sizes.tasks * TRL_STEPS]
    ends = list[float]()

    class Ends(transformers.TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    words = "<|pad|>", "<|end|>", "<|unknown|>"
    trainer = GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"),
            pad_token=words[0],
            eos_token=words[1],
            unk_token=words[2],
            padding_side="left",
        ),
        reward_funcs=lambda completions, **_: [even(None, text, None) for text in completions],
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
        callbacks=[Ends()],
        args=GRPOConfig(**trl_config(sizes, changes)),
    )
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    row: dict[str, object] = {}
    with measured(row):
        ends.append(time.perf_counter())
        trainer.train()
    steps = [after - before for before, after in itertools.pairwise(ends)]
    shared = {"library": f"trl, {name}", "peak GiB": row.get("peak GiB", "")}
    return [{**shared, "step": number, "seconds": each} for number, each in enumerate(steps)]


def trl_config(sizes: Bench, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of TRL's configuration: with Ratchet's number of completions a step."""
    size = min(changes["per_device_train_batch_size"], sizes.sequences)
    return {
        "output_dir": str(sizes.folder / "trl"),
        "max_steps": TRL_STEPS,
        "num_generations": 8,
        "max_completion_length": sizes.new,
        "learning_rate": 1e-6,
        "beta": 0.0,
        "gradient_accumulation_steps": sizes.sequences // size,
        "shuffle_dataset": False,
        "bf16": not sizes.is_tiny,
        "use_cpu": sizes.is_tiny,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **changes,
        "per_device_train_batch_size": size,
    }


if __name__ == "__main__":
    with bench(sys.argv[2:]) as sizes_of_all:
        {"ratchet": ratchet, "trl": trl, "defaults": defaults}[sys.argv[1]](sizes_of_all)
