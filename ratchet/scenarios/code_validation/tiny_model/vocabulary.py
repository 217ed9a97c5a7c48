"""The tokenizer of the base model: the words of the game, and bytes for everything else."""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from ratchet.language_models.local.model_files import write_tokenizer
from ratchet.scenarios.code_validation.generator.level0 import ENTRY, OPERATIONS, STATEMENT

PAD, END = "<|pad|>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_HEADERS = ("Argument:", "Answer:", "Question:", "To Expert 1:", "To Expert 2:", "Decision:")
_WORDS = (
    *(
        "Expert:",
        "Verifier.",
        "Expert who answers:",
        "Verifier who asks",
        " two.",
        " accept",
        " reject",
        ".\n\n",
        "\n\n",
        "\n",
        " ",
        "Expert",
    ),
    *("Expert_1", "Expert_2", "Verifier", "This is your last turn. Decide now.", "Compare."),
    *(" same", " differ", STATEMENT, f"def {ENTRY}(x):", "\n    x = x", "\n    return x"),
)
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>' -}}
{%- if message['name'] -%}{{- message['name'] + '\\n' -}}{%- endif -%}
{{- message['content'] + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def make_tokenizer() -> Tokenizer:
    """Make the tokenizer.

    Each word of the game is one token, each digit too (with the space before it, if there is
    one); any other text falls into bytes, so that every text comes back as it was.
    """
    words = sorted(_game_words(), key=lambda word: (-len(word), word))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary: dict[str, int] = {}
    as_bytes = ["".join(part for part, _ in byte_level.pre_tokenize_str(w)) for w in words]
    for token in (PAD, END, *_ROLES, *sorted(byte_level.alphabet()), *sorted(as_bytes)):
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    pattern = "|".join(re.escape(word).replace("\\\n", "\n") for word in words)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t in (PAD, END, *_ROLES)]
    tokenizer.add_special_tokens(special)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer's files in Hugging Face's layout."""
    write_tokenizer(tokenizer, folder, end=END, pad=PAD, chat_template=CHAT_TEMPLATE)


def _game_words() -> set[str]:
    """All texts that are one token."""
    digits = [f"{space}{digit}" for digit in range(10) for space in ("", " ")]
    steps = [f"\n{words}" for words, _ in OPERATIONS]
    signs = [f" {sign}" for _, sign in OPERATIONS]
    return {*_HEADERS, *_WORDS, *digits, *steps, *signs}
