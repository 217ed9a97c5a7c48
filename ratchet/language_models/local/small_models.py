"""Small Llamas generated from a seed, with a character tokenizer.

In Hugging Face's layout, so that any model loader reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from ratchet.errors import ParameterError
from ratchet.language_models.local.model_files import write_configuration, write_tokenizer
from ratchet.models.llama_shape import LlamaShape

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


@dataclass(frozen=True, slots=True)
class SmallModelShape:
    """The dimensions of a small Llama.

    Parameters
    ----------
    d_model
        Width of the residual stream.
    layers, heads
        Their numbers; ``heads`` divides ``d_model`` into even parts.
    d_mlp
        Width of the MLP layer; None for 2 × ``d_model``.
    context_length
        Maximal tokens of prompt and completion together.
    init_scale
        Standard deviation of the initial weights.
    """

    d_model: int = 64
    layers: int = 2
    heads: int = 4
    d_mlp: int | None = None
    context_length: int = 256
    init_scale: float = 0.06

    def __post_init__(self) -> None:
        if min(self.d_model, self.layers, self.heads, self.context_length) < 1:
            raise ParameterError(f"small model: got {self}, expected figures of at least 1.")
        if self.d_model % (2 * self.heads):
            raise ParameterError(
                f"d_model: got {self.d_model} with {self.heads} heads, expected a multiple of"
                f" {2 * self.heads}: each head rotates pairs."
            )
        if not self.init_scale > 0:
            raise ParameterError(f"init_scale: got {self.init_scale}, expected above 0.")

    def llama(self, vocab_size: int) -> LlamaShape:
        """Return the shape of the Llama for a vocabulary of this size."""
        return LlamaShape(
            vocab_size=vocab_size,
            hidden_size=self.d_model,
            intermediate_size=2 * self.d_model if self.d_mlp is None else self.d_mlp,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            head_dim=self.d_model // self.heads,
            max_position_embeddings=self.context_length,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            tie_word_embeddings=True,
        )


def make_small_model(
    folder: Path, *, alphabet: str, shape: SmallModelShape | None = None, seed: int = 0
) -> None:
    """Write a randomly initialised model and its tokenizer to a new folder.

    Each character of the alphabet is a token; all others are one unknown token.
    """
    from ratchet.models.llama import PlainLlama
    from ratchet.seeding import torch_generator

    shape = SmallModelShape() if shape is None else shape
    folder.mkdir(parents=True)
    tokenizer = make_character_tokenizer(alphabet)
    write_tokenizer(tokenizer, folder, end=END, pad=PAD, chat_template=CHAT_TEMPLATE)
    figures = shape.llama(tokenizer.get_vocab_size())
    write_configuration(folder, figures, tokenizer, end=END, pad=PAD)
    model = PlainLlama(figures)
    model.initialise(torch_generator(seed, "small model", purpose="weights"), shape.init_scale)
    model.save(folder)


def make_character_tokenizer(alphabet: str) -> Tokenizer:
    """Build a tokenizer whose tokens are the characters of an alphabet, in order."""
    if not alphabet:
        raise ParameterError("alphabet: got no characters, expected at least one.")
    special = (PAD, END, UNKNOWN, *ROLES)
    vocabulary: dict[str, int] = {}
    for token in (*special, *alphabet):
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer
