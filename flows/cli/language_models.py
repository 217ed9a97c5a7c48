"""``ratchet llm``: serve language models on this machine, and export trained ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import RatchetCommand
from flows.process.messages import print_plain
from ratchet.lazy import require_packages

LoraRank = Annotated[int, typer.Option(help="Rank of LoRA adapters; 0: train all weights.")]
LoraAlpha = Annotated[
    int | None, typer.Option(help="LoRA scale times rank (default: twice the rank).")
]
LoraDropout = Annotated[float, typer.Option(help="Dropout of LoRA inputs.")]
KeepCheckpoints = Annotated[
    int | None, typer.Option(help="Number of last epochs whose models are kept (default: all).")
]

llm = typer.Typer(no_args_is_help=True, help="Serve language models from this machine.")


@llm.callback()
def about() -> None:
    """Serve language models from this machine."""


@llm.command(cls=RatchetCommand)
def serve(
    home: Annotated[str, typer.Option(help="Ratchet's home folder.")] = ".ratchet",
    host: Annotated[
        str, typer.Option(help="Address to listen at; all except loopback require a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free one.")] = 8399,
    model: Annotated[
        str | None, typer.Option(help="Folder of a model, or its name on the Hugging Face hub.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Id of the model for clients, such as org/model.")
    ] = None,
    engine: Annotated[str, typer.Option(help="torch, or module:Class.")] = "torch",
    lora_rank: LoraRank = 0,
    lora_alpha: LoraAlpha = None,
    lora_dropout: LoraDropout = 0.0,
    micro_batch_size: Annotated[
        int | None,
        typer.Option(help="Number of examples of a batch in memory at the same time."),
    ] = None,
    supervised_weight: Annotated[
        float | None, typer.Option(help="Weight of supervision beside DPO (default: by model).")
    ] = None,
    keep_checkpoints: KeepCheckpoints = None,
    keep_days: Annotated[
        float | None,
        typer.Option(help="Delete models and files unused for N days unless a run needs them."),
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads of the engine.")] = 1,
) -> None:
    """Serve an OpenAI-compatible API for chat and fine-tuning, by default with the tiny model.

    Point agents to it with `base_url: http://HOST:PORT/v1`.
    """
    from ratchet.language_models.endpoints import EMBEDDED_PACKAGES

    require_packages(EMBEDDED_PACKAGES, "ratchet llm serve")
    from ratchet.service import service_command

    command = service_command(
        home=home,
        host=host,
        port=port,
        model=model or None,
        name=name,
        engine=engine,
        lora={"rank": lora_rank, "alpha": lora_alpha, "dropout": lora_dropout},
        micro_batch_size=micro_batch_size,
        supervised_weight=supervised_weight,
        retention={"checkpoints": keep_checkpoints, "days": keep_days},
        threads=threads,
    )
    sys.stdout.flush()
    os.execv(sys.executable, command)


@llm.command(cls=RatchetCommand)
def export(
    model: Annotated[str, typer.Argument(help="Id of the model in jobs and MLflow.")],
    folder: Annotated[str, typer.Argument(help="New folder to write to.")],
    home: Annotated[str, typer.Option(help="Home folder of the service.")] = ".ratchet",
) -> None:
    """Write a trained model to a folder, with its adapters merged."""
    require_packages(["tokenizers", "safetensors"], "ratchet llm export")
    from ratchet.service import export_model

    export_model(Path(home), model, Path(folder))
    print_plain(f"{model} is in {folder}.")
