"""Causal language models run by transformers, trained fully or by an adapter."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ratchet.errors import DataError
from ratchet.language_models.local.adapters import (
    AdapterBase,
    peft_config,
    without_peft_warnings,
)
from ratchet.language_models.local.memory import CACHE_SHARE, device_memory
from ratchet.language_models.local.model import GenerationCache, Head, LanguageModel
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.language_models.local.network import (
    HuggingFaceCache,
    activate_all_adapters,
    head_input,
    read_network,
    read_on,
)
from ratchet.lazy import PRETRAINED_LOCK, require_packages
from ratchet.models.folders import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, read_weights
from ratchet.models.layer_shape import LayerShape
from ratchet.models.lora import Lora
from ratchet.seeding import seeded_globals

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from ratchet.language_models.local.slots import SlotCache


class HuggingFaceLanguageModel(LanguageModel):
    """A model that transformers runs.

    Parameters
    ----------
    network
        A ``PreTrainedModel``, or a ``PeftModel`` around one.
    base
        The base model of an adapter; None if all weights are trained.
    adapted
        False to use an adapted model without its adapter.
    saved_dtypes
        The types in which a full model's weights are saved, by name; None for those that they have.
    """

    def __init__(
        self,
        files: ModelFiles,
        network: Any,  # noqa: ANN401 -- PreTrainedModel or PeftModel
        device: torch.device,
        *,
        base: AdapterBase | None = None,
        adapted: bool = True,
        saved_dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        full_model = network if base is None else network.get_base_model()
        super().__init__(
            files.tokenizer,
            pad_token_id=files.pad_token_id,
            context_length=int(full_model.config.get_text_config().max_position_embeddings),
            vocabulary_size=int(full_model.get_input_embeddings().weight.shape[0]),
            device=device,
        )
        self._files = files
        if device.type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(False)  # it has no deterministic mode
        self._network = network.eval().to(device)  # no dropout: scores must match the sampler's
        self._whole = full_model
        self._base = base
        self._adapted = adapted
        self._saved_dtypes = saved_dtypes
        self._is_autocast = False
        self._recomputed: list[torch.nn.Module] = []
        self.uses_slots = device.type == "cuda"
        """Whether to generate with a :class:`SlotCache` if the architecture can."""
        self._slots: SlotCache | None = None

    @classmethod
    def read(cls, folder: Path, device: torch.device, dtype: str) -> HuggingFaceLanguageModel:
        """Load a full model."""
        network = read_network(folder, dtype).requires_grad_(True)
        return cls(ModelFiles(folder), network, device)

    @classmethod
    def with_new_adapter(
        cls,
        files: ModelFiles,
        network: Any,  # noqa: ANN401 -- PreTrainedModel
        device: torch.device,
        lora: Lora,
        base: AdapterBase,
        *,
        seed: int,
        base_name: str | None = None,
    ) -> HuggingFaceLanguageModel:
        """Freeze a full model, and add an adapter that is initialised from the seed.

        ``base_name`` is the base model's name in PEFT's configuration; its folder if None.
        """
        require_packages(["peft"], "LoRA")
        with PRETRAINED_LOCK:
            from peft import get_peft_model

            config = peft_config(lora)
        config.base_model_name_or_path = network.name_or_path
        with PRETRAINED_LOCK, seeded_globals(seed), without_peft_warnings():
            try:
                adapted = get_peft_model(network, config)
            except ValueError as error:
                raise DataError(f"PEFT cannot adapt the model in {base.folder}: {error}") from error
        activate_all_adapters(adapted)
        if base_name is not None:
            adapted.peft_config["default"].base_model_name_or_path = base_name
        return cls(files, adapted, device, base=base)

    @classmethod
    def with_adapter(
        cls, folder: Path, base: AdapterBase, device: torch.device, dtype: str
    ) -> HuggingFaceLanguageModel:
        """Load an adapter for further training, with its base model."""
        base_network = read_network(Path(base.folder), dtype)
        with PRETRAINED_LOCK:
            from peft import PeftModel
        # new layers are initialised first
        with PRETRAINED_LOCK, torch.random.fork_rng(), without_peft_warnings():
            try:
                network = PeftModel.from_pretrained(base_network, str(folder), is_trainable=True)
            except (OSError, ValueError, RuntimeError) as error:
                raise DataError(f"PEFT cannot load the adapter in {folder}: {error}") from error
        return cls(ModelFiles(Path(base.folder)), network, device, base=base)

    def read_chosen(self, ids: Tensor, chosen: Tensor) -> tuple[Tensor, Head]:
        """Return hidden states at chosen positions; logits, if operations follow the head."""
        if not self._head_is_last:
            return self._run(ids, lambda hidden: hidden[chosen][None])[0], lambda logits: logits
        states: list[Tensor] = []

        def leave_out(hidden: Tensor) -> Tensor:
            states.append(hidden[chosen])
            return hidden[:, :0]

        self._run(ids, leave_out)
        return states[0], self._apply_head

    def _run(self, ids: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the logits computed from changed inputs of the head."""
        with self._reading(), head_input(self._whole, change):
            logits: Tensor = self._network(input_ids=ids, use_cache=False).logits
        return logits.float() if self._is_autocast else logits

    def _apply_head(self, hidden: Tensor) -> Tensor:
        with self._reading():
            logits: Tensor = self._whole.get_output_embeddings()(hidden)
        return logits.float() if self._is_autocast else logits

    @cached_property
    def _head_is_last(self) -> bool:
        """Whether logits are the head's output: some models cap or scale it."""
        states: list[Tensor] = []

        def enlarge(hidden: Tensor) -> Tensor:
            states.append(torch.linspace(-1e3, 1e3, hidden.shape[-1]).to(hidden).expand_as(hidden))
            return states[0]

        with torch.no_grad():
            ids = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
            return torch.equal(self._run(ids, enlarge), self._apply_head(states[0]))

    def _last_hidden(self, ids: Tensor) -> Tensor:
        with self._reading():
            output = self._network(
                input_ids=ids, use_cache=False, output_hidden_states=True, logits_to_keep=1
            )
        hidden: Tensor = output.hidden_states[-1]
        return hidden

    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts padded on the left."""
        cache = HuggingFaceCache(None, readable)
        with self._reading(), head_input(self._whole, _contiguous_if_16_bit):
            return read_on(self._network, ids, cache), cache

    def rows_at_once(self, length: int, most: int) -> int:
        """Return how many rows have room in the device's memory for keys and values."""
        memory = device_memory(self) if self.uses_slots else None
        if memory is None:
            return most
        from ratchet.language_models.local.slots import slot_length

        columns = slot_length(length, self.context_length)
        numbers = 2 * self.shape.layers * self.shape.key_width * columns
        return max(1, min(most, int(memory / CACHE_SHARE / (numbers * self.dtype.itemsize))))

    def hold(self, cache: GenerationCache, rows: int, length: int) -> GenerationCache:
        """Copy the rows into a cache of fixed size, which is used again."""
        if not self.uses_slots or self._is_autocast:
            return cache
        from ratchet.language_models.local.slots import SlotCache, can_hold, slot_length

        assert isinstance(cache, HuggingFaceCache)
        if not can_hold(self._whole, cache):
            return cache
        length = slot_length(length, self.context_length)
        if self._slots is None or self._slots.shape[0] != rows or self._slots.shape[1] < length:
            self._slots = None  # frees its memory first
            self._slots = SlotCache(self._network, cache, rows, length, self.context_length)
        self._slots.clear()
        self._slots.append(cache)
        return self._slots

    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row."""
        if self._slots is not None and cache is self._slots:
            with self._reading():
                return self._slots.step(tokens)
        assert isinstance(cache, HuggingFaceCache)
        cache.make_room()
        with self._reading():
            return read_on(self._network, tokens[:, None], cache)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Disable the adapter if this is the base model; apply the chosen ways to save memory."""
        without = contextlib.nullcontext() if self._adapted else self._network.disable_adapter()
        in_bfloat16 = torch.autocast(self.device.type, torch.bfloat16, enabled=self._is_autocast)
        # layers recompute only when they train; their parts stay without dropout
        for layer in self._recomputed:
            layer.training = torch.is_grad_enabled()
        try:
            with without, in_bfloat16:
                yield
        finally:
            for layer in self._recomputed:
                layer.training = False

    def recompute_activations(self) -> None:
        """Compute layers' activations again in the backward pass instead of keeping them."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        self._whole.activation_checkpointing_enable()
        self.recomputes_activations = True
        self._recomputed = [
            part for part in self._whole.modules() if isinstance(part, GradientCheckpointingLayer)
        ]

    def compute_in_bfloat16(self) -> None:
        """Compute in bfloat16 where possible; the weights and their gradients keep their type."""
        self._is_autocast = self.device.type == "cpu" or torch.cuda.is_bf16_supported()

    def set_dropout(self, *, is_on: bool) -> None:
        """Turn the trained adapter's dropout, which is off at first, on or off."""
        for name, part in self._network.named_modules():
            if name.endswith("lora_dropout.default"):
                part.train(is_on)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trainable weights."""
        return [p for p in self._network.parameters() if p.requires_grad and self._adapted]

    def reference(self) -> LanguageModel:
        """Return a frozen copy, or the base model of an adapter that is still zero."""
        is_chain = self._base is not None and len(self._network.peft_config) > 1
        if (
            self._base is None
            or is_chain
            or any(
                bool(weight.any()) for name, weight in self._weights().items() if "lora_B" in name
            )
        ):
            return self.snapshot()
        return HuggingFaceLanguageModel(
            self._files, self._network, self.device, base=self._base, adapted=False
        )

    def snapshot(self) -> LanguageModel:
        """Return a frozen copy; adapted models share their base."""
        shared = {id(p): p for p in self._network.parameters() if not p.requires_grad}
        network = copy.deepcopy(self._network, shared).requires_grad_(False)
        return HuggingFaceLanguageModel(
            self._files, network, self.device, base=self._base, adapted=self._adapted
        )

    def share_frozen_weights(self, others: Iterable[LanguageModel]) -> None:
        """Use the base weights of another model that adapts the same base."""
        for other in others:
            if isinstance(other, HuggingFaceLanguageModel) and other._read_from == self._read_from:
                weights = other._frozen_weights()
                mine = self._frozen_weights().items()
                pairs = [(weight, weights.get(name, weight)) for name, weight in mine]
                if all(itertools.starmap(torch.equal, pairs)):
                    for weight, same in pairs:
                        weight.data = same.data
                    other.sharing.add(self)
                    self.sharing = other.sharing
                    return

    @property
    def _read_from(self) -> tuple[object, ...]:
        """Equal for models of the same base, whose digest is of parts of its weights."""
        return (self if self._base is None else self._base.weights, self.device, self.dtype)

    def _frozen_weights(self) -> dict[str, torch.nn.Parameter]:
        """Return the base model's weights, by name; an adapter may wrap other layers."""
        named = self._network.named_parameters()
        return {n.replace(".base_layer.", "."): p for n, p in named if not p.requires_grad}

    def all_parameters(self) -> list[torch.nn.Parameter]:
        """Return the weights, trained or not."""
        return list(self._network.parameters())

    @property
    def shape(self) -> LayerShape:
        """Sizes of its layers."""
        return LayerShape.from_config(self._whole.config.get_text_config())

    @property
    def keeps_logits(self) -> bool:
        """Whether operations follow the head, or it is sharded."""
        return not self._head_is_last

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights as loaded; an adapter's may differ."""
        dtype: torch.dtype = self._whole.dtype
        return dtype

    def shard(self, mesh: DeviceMesh) -> None:
        """Keep this process's shard of the weights; layers are gathered one at a time."""
        from ratchet.language_models.local.sharding import shard_network

        kinds = set(self._whole._no_split_modules or ())
        layers = [part for part in self._whole.modules() if type(part).__name__ in kinds]
        shard_network(self._network, mesh, layers=layers)
        self.device = next(self._network.parameters()).device
        self._head_is_last = False  # the head's weights are gathered only in a forward pass

    def save(self, folder: Path) -> None:
        """Save in Hugging Face's layout; an adapter in PEFT's."""
        if self._base is None:
            weights = None
            if self._saved_dtypes is not None:
                tensors = self._network.state_dict()
                keys = {name: (t.data_ptr(), t.shape) for name, t in tensors.items()}
                types = self._saved_dtypes
                rounded = {keys[name]: t.to(types[name]) for name, t in tensors.items()}
                weights = {name: rounded[key] for name, key in keys.items()}  # tied ones once
            self._network.save_pretrained(folder, state_dict=weights)
            self._files.write(folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), folder / ADAPTER_WEIGHTS_FILE, metadata={"format": "pt"})
        config = self._network.peft_config["default"].to_dict()
        text = json.dumps({**config, "inference_mode": True}, indent=1, default=_as_json)
        (folder / ADAPTER_CONFIG_FILE).write_text(text, encoding="utf-8")
        self._base.write(folder)

    def load(self, folder: Path) -> None:
        """Load weights saved by :meth:`save`."""
        if self._base is not None:
            self.load_state_dict(read_weights(folder / ADAPTER_WEIGHTS_FILE))
            return
        dtype = str(self._whole.dtype).removeprefix("torch.")
        self.load_state_dict(_named(read_network(folder, dtype)))

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the trainable weights; an adapter's by PEFT's names."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self._weights().items()}

    def load_state_dict(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights returned by :meth:`state_dict`."""
        model_weights = self._weights()
        wrong = sorted(
            name
            for name in model_weights.keys() | weights.keys()
            if name not in model_weights
            or name not in weights
            or model_weights[name].shape != weights[name].shape
        )
        if wrong:
            raise DataError(
                f"weights: do not match the model, expected {len(model_weights)} of the same names"
                f" and shapes; the first that differs is {wrong[0]}."
            )
        with torch.no_grad():
            for name, tensor in model_weights.items():
                tensor.copy_(weights[name])

    def _weights(self) -> dict[str, Tensor]:
        if self._base is None:
            return _named(self._network)
        from peft import get_peft_model_state_dict

        weights: dict[str, Tensor] = get_peft_model_state_dict(
            self._network, save_embedding_layers=False
        )
        return weights


def _contiguous_if_16_bit(hidden: Tensor) -> Tensor:
    """Copy the rows' last states: a CPU would copy a 16-bit head for each strided row."""
    return hidden.contiguous() if hidden.itemsize == 2 else hidden


def _named(network: Any) -> dict[str, Tensor]:  # noqa: ANN401 -- PreTrainedModel
    return dict(network.named_parameters())


def _as_json(value: object) -> object:
    """Return PEFT's configuration, converted to JSON types."""
    return sorted(value) if isinstance(value, set) else str(value)
