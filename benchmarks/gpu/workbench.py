"""Shared code of the GPU benchmark: sizes, random models, tasks and tables.

Models have the shapes of Qwen2 with random weights and a word for each token. With ``--tiny`` all
is small and runs on a CPU, so that the scripts can be tested.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.model import LanguageModel
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer

PAD, END = 0, 1
REWARDS = '''"""Reward: the share of words with an even last digit."""


def even(task, completion, messages):
    words = completion.split()
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))
'''


@dataclass(frozen=True)
class Shape:
    """The shape of a Qwen2."""

    layers: int
    width: int
    heads: int
    key_value_heads: int
    mlp: int


@dataclass(frozen=True)
class Bench:
    """Sizes of all parts, and a folder for models and tasks."""

    folder: Path
    is_tiny: bool

    @property
    def device(self) -> str:
        """The GPU, or the CPU if tiny."""
        return "cpu" if self.is_tiny else "cuda"

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return 500 if self.is_tiny else 151_936

    @property
    def prompt(self) -> int:
        """Tokens of a prompt."""
        return 12 if self.is_tiny else 128

    @property
    def new(self) -> int:
        """Tokens of a completion."""
        return 10 if self.is_tiny else 256

    @property
    def sequences(self) -> int:
        """Concurrent completions."""
        return 8 if self.is_tiny else 256

    @property
    def tasks(self) -> int:
        """Tasks of a step, each with eight completions."""
        return self.sequences // 8

    def shape(self, name: str) -> Shape:
        """Return the shape of a model: 0.5 B, 1.5 B, or four layers of 0.5 B."""
        shapes = {
            "0.5b": Shape(24, 896, 14, 2, 4864),
            "1.5b": Shape(28, 1536, 12, 2, 8960),
            "0.2b": Shape(4, 896, 14, 2, 4864),
        }
        return Shape(2, 64, 4, 2, 96) if self.is_tiny else shapes[name]

    def prompts(self, count: int, seed: int = 0) -> list[tuple[int, ...]]:
        """Return random prompts."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, self.vocabulary, (count, self.prompt), generator=generator)
        return [tuple(row) for row in ids.tolist()]

    def requests(self, count: int, *, ragged: bool = False) -> list[SampleRequest]:
        """Return requests of equal lengths, or of different ones."""
        draws = torch.rand(2, count, generator=torch.Generator().manual_seed(1))
        shares = draws * 0.9 + 0.1 if ragged else torch.ones(2, count)
        lengths = (shares * torch.tensor([[self.prompt], [self.new]])).ceil().long().tolist()
        return [
            SampleRequest(prompt[:read], written, seed)
            for seed, (prompt, read, written) in enumerate(
                zip(self.prompts(count), *lengths, strict=True)
            )
        ]

    def write_model(self, name: str) -> Path:
        """Write a random model once, in bfloat16."""
        from transformers import AutoModelForCausalLM, Qwen2Config

        folder, shape = self.folder / name, self.shape(name)
        if folder.is_dir():
            return folder
        config = Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.mlp,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_value_heads,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=END,
            pad_token_id=PAD,
        )
        torch.manual_seed(0)
        with torch.device(self.device):
            network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        part = self.folder / f"{name}.part"
        network.save_pretrained(part)
        self._write_tokenizer(part)
        return part.rename(folder)

    def _write_tokenizer(self, folder: Path) -> None:
        from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

        special = ["<|pad|>", "<|end|>", "<|unknown|>"]
        words = [*special, *(f"w{number}" for number in range(3, self.vocabulary))]
        word_level = models.WordLevel({word: n for n, word in enumerate(words)}, special[2])
        tokenizer = Tokenizer(word_level)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens([AddedToken(word, special=True) for word in special])
        tokenizer.save(str(folder / "tokenizer.json"))
        names = {"pad_token": special[0], "eos_token": special[1], "unk_token": special[2]}
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))

    def load(self, name: str) -> LanguageModel:
        """Load a model for training, whose rows are in slots even if tiny."""
        model = load_language_model(
            self.write_model(name), base_dir=self.folder, device=self.device, dtype="bfloat16"
        )
        model.uses_slots = True  # type: ignore[attr-defined]
        return model

    def hyper_params(self, name: str, iterations: int, **language: object) -> HyperParameters:
        """Return GRPO's parameters on random prompts; write the tasks and the model."""
        self.write_model(name)
        (self.folder / "tasks").mkdir(exist_ok=True)
        (self.folder / "rewards.py").write_text(REWARDS)
        for seed, (split, count) in enumerate((("train", self.tasks * 8), ("test", 2))):
            lines = [
                json.dumps({"prompt": " ".join(f"w{token}" for token in prompt), "answer": "w2"})
                for prompt in self.prompts(count, seed)
            ]
            (self.folder / "tasks" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
        sizes = {"tasks_per_step": self.tasks, "group_size": 8, "optimizer": {"lr": 1e-6}}
        agent = {"model": name, "precision": "bfloat16", "max_tokens": self.new}
        return HyperParameters(
            **{
                "scenario": "language_task",
                "trainer": "grpo",
                "dataset": "tasks",
                "seed": 1,
                "language_task": {"evaluator": "rewards.py:even"},
                "agents": {"_default": agent},
                "rl": {"num_iterations": iterations},
                "language": {**sizes, **language},
            }
        )

    def settings(self, **changes: object) -> ExperimentSettings:
        """Return the settings of a run on the device."""
        fixed = {"base_dir": str(self.folder), "device": self.device, "progress": "none"}
        return ExperimentSettings(**{**fixed, **changes})

    def trainer(self, name: str, iterations: int, **language: object) -> Any:  # noqa: ANN401 -- of its family
        """Build a trainer in its initial state."""
        hyper_params, settings = self.hyper_params(name, iterations, **language), self.settings()
        instance = build_scenario_instance(hyper_params, settings, trainer_type="language")
        trainer = build_trainer(hyper_params, instance, settings)
        trainer.initial_state()
        return trainer


def show(title: str, rows: list[dict[str, object]]) -> None:
    """Print a Markdown table."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        cells = [row.get(name, "") for name in columns]
        print("|", " | ".join(f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells), "|")


@contextlib.contextmanager
def measured(row: dict[str, object]) -> Iterator[None]:
    """Add a block's seconds and, on a GPU, its peak memory to a row of a table."""
    is_on_gpu = torch.cuda.is_available()
    gc.collect()
    if is_on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    begin = time.perf_counter()
    yield
    if is_on_gpu:
        torch.cuda.synchronize()
        row["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    row["seconds"] = time.perf_counter() - begin


@contextlib.contextmanager
def bench(arguments: list[str]) -> Iterator[Bench]:
    """Prepare the folder named by ``BENCH_FOLDER``, or a temporary one."""
    torch.set_num_threads(1 if "--tiny" in arguments else torch.get_num_threads())
    with contextlib.ExitStack() as stack:
        folder = os.environ.get("BENCH_FOLDER") or stack.enter_context(
            tempfile.TemporaryDirectory()
        )
        os.chdir(folder)  # where plug-in files are looked for
        yield Bench(Path(folder), "--tiny" in arguments)
