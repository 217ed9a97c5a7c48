"""A model of random weights in the layout of Qwen3, and the data sets of published recipes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GSM8K_CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: train.jsonl}
  - {split: test, path: test.jsonl}
---
"""


def write_qwen3(folder: Path) -> None:
    """Write a model whose tokens are bytes and Qwen's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.add_tokens(["<think>", "</think>"])
    fast.chat_template = CHAT_TEMPLATE
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(fast) + 3,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)


def write_data_sets(folder: Path) -> None:
    """Write the data sets under the names that the recipes load."""
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"Add {number} and {number}."},
                {"role": "assistant", "content": f"It is {2 * number}."},
            ]
        }
        for number in range(28)
    ]
    comparisons = [
        {
            "comparison": {
                "prompt_conversation": [{"role": "user", "content": f"q{number}"}],
                "completion_A": [{"role": "assistant", "content": "yes"}],
                "completion_B": [{"role": "assistant", "content": "no"}],
            },
            "label": "A",
        }
        for number in range(28)
    ]
    sums = [
        {"question": f"What is {number}+1?", "answer": f"x\n#### {number + 1}"}
        for number in range(14)
    ]
    _write(folder / "HuggingFaceH4/no_robots/train.jsonl", chats)
    _write(folder / "conversations.jsonl", chats)
    _write(folder / "comparisons.jsonl", comparisons)
    for split in ("train", "test"):
        _write(folder / f"openai/gsm8k/{split}.jsonl", sums)
    (folder / "openai/gsm8k/README.md").write_text(GSM8K_CARD)


def _write(file: Path, rows: list[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
