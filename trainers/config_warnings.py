"""Warnings about configurations that run but are rarely intended.

``ratchet plan`` and ``ratchet doctor FILE`` print them; a run adds them to its events and logs
them once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.protocols.registry import build_protocol_handler
from trainers.registry import trainer_class
from trainers.staged import StagedTrainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

CONFIG_WARNING = "caution"
"""The kind of event."""
_SMALL_WIDTH = 64
"""The largest width for which one core of a CPU was measured to be as fast as a GPU."""


def find_config_warnings(
    arms: Mapping[str, HyperParameters],
    base_dir: str | Path | None = None,
    device: str = "cpu",
) -> Iterator[str]:
    """Iterate over an experiment's warnings; equal warnings of several arms are merged.

    Paths to plug-ins start from ``base_dir``. The parameters of each arm must be compatible
    (:func:`trainers.compatibility.check_combination`).
    """
    folder = None if base_dir is None else Path(base_dir)
    arms_by_warning: dict[str, list[str]] = {}
    for arm, hyper_params in arms.items():
        for text in (*_warnings(hyper_params, folder), *_of_device(hyper_params, folder, device)):
            arms_by_warning.setdefault(text, []).append(arm)
    for text, which in arms_by_warning.items():
        yield text if len(arms) == 1 else f"{text} (arm {', '.join(which)})"


def _of_device(hyper_params: HyperParameters, folder: Path | None, device: str) -> Iterator[str]:
    """Warn about a GPU if all agents are perceptrons or graph networks of small widths."""
    sections = [hyper_params.agents[name].to_dict() for name in hyper_params.agents]
    widths = [
        *(size for each in sections for size in each.get("hidden_sizes", ())),
        *(size for each in sections for name, size in each.items() if name.startswith("d_")),
    ]
    others = ("network", "kernel_size", "convolutions")
    if (
        device.startswith("cuda")
        and 0 < max(widths, default=0) <= _SMALL_WIDTH
        and not any(each.get(name) for each in sections for name in others)
        and not trainer_class(hyper_params, folder).traits.acts_alone
    ):
        yield (
            f"settings.device: got {device!r} with networks of width {_SMALL_WIDTH} or less. One"
            " core of a CPU was as fast as a GPU or faster with such networks, up to four times,"
            " measured before updates were captured as CUDA graphs (docs/measurements.md). To train"
            " on a CPU, set settings.device: cpu."
        )


def _warnings(hyper_params: HyperParameters, folder: Path | None) -> Iterator[str]:
    """Iterate over configurations that run but are rarely intended, with alternatives."""
    trainer = trainer_class(hyper_params, folder)
    yield from trainer.find_cautions(hyper_params, folder)
    last = hyper_params.phases[-1] if hyper_params.phases else None
    if last is not None and last.num_iterations == 1 and trainer.traits.plays_text:
        yield (
            f"phases.{last.name}.num_iterations: got 1 for the last phase. The last iteration of a"
            " run of chat models creates no fine-tuning jobs, so this phase trains no agent. Set 2"
            " or more."
        )
    if not hyper_params.pretrain_agents or not issubclass(trainer, StagedTrainer):
        return
    handler = build_protocol_handler(hyper_params, base_dir=folder)
    pretrained = trainer.pretrained_agent_names(hyper_params)
    if pretrained and handler.max_message_rounds > 1:
        yield (
            f"pretrain_agents: got true with the protocol {hyper_params.interaction_protocol!r},"
            " in which agents exchange messages. A body that was trained alone rarely learns to use"
            " them: measured with the scripted prover of graph isomorphism, a verifier's accuracy"
            " was 51.7 % after pretraining and 78.4 % from scratch, after the same iterations. If"
            f" {' and '.join(pretrained)} should learn to communicate, set pretrain_agents: false;"
            " let agents imitate first (imitation.agents), or train them one at a time (phases)."
        )
