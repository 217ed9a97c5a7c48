"""``ratchet llm serve``: a model service on this machine. In a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from flows.process.messages import print_plain
from ratchet.lazy import require_packages

llm = typer.Typer(no_args_is_help=True, help="Serve language models from this machine.")


@llm.callback()
def about() -> None:
    """Serve language models from this machine."""


@llm.command()
def serve(
    home: Annotated[str, typer.Option(help="Ratchet's own folder.")] = ".ratchet",
    host: Annotated[str, typer.Option(help="Elsewhere than here needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8399,
    model: Annotated[
        str | None, typer.Option(help="A model's folder or its name on the Hugging Face hub.")
    ] = None,
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    max_loras: Annotated[int, typer.Option(help="Adapters in one batch of vllm's.")] = 4,
    sleep_level: Annotated[
        int,
        typer.Option(
            help="vllm's GPU memory while a job trains: 1 to the machine's, 2 dropped, 0 kept."
        ),
    ] = 1,
    trainer: Annotated[
        str, typer.Option(help="Of fine-tuning jobs: plain, trl, or what fits the model.")
    ] = "auto",
    lora_rank: Annotated[
        int, typer.Option(help="Train a change of this rank alone; 0: all weights.")
    ] = 0,
    lora_alpha: Annotated[
        int | None,
        typer.Option(help="The change's scale times its rank; twice the rank if unsaid."),
    ] = None,
    lora_dropout: Annotated[float, typer.Option(help="Of what the change reads.")] = 0.0,
    micro_batch_size: Annotated[
        int | None,
        typer.Option(help="Examples of a batch that training holds in memory at once."),
    ] = None,
    keep_checkpoints: Annotated[
        int | None, typer.Option(help="Models of a job's last epochs that stay; all if unsaid.")
    ] = None,
    keep_days: Annotated[
        float | None,
        typer.Option(help="Unused models and files go after so long, unless a run needs them."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Of the engine on a CPU.")] = 1,
) -> None:
    """Serve OpenAI's API for chat and fine-tuning: the tiny model, or another.

    Point agents to it with `base_url: http://HOST:PORT/v1`.
    """
    options: dict[str, object] = {"home": home, "host": host, "port": port, "model": model or None}
    options |= {"engine": engine, "max-loras": max_loras, "sleep-level": sleep_level}
    options |= {"trainer": trainer, "micro-batch-size": micro_batch_size, "threads": threads}
    options |= {"lora-rank": lora_rank, "lora-alpha": lora_alpha, "lora-dropout": lora_dropout}
    options |= {"keep-checkpoints": keep_checkpoints, "keep-days": keep_days}
    _become_service(options)


def _become_service(options: Mapping[str, object]) -> None:
    """Put the service in this process's place, with the options that are said."""
    require_packages(["tokenizers"], "ratchet llm serve")
    said = {f"--{name}": str(value) for name, value in options.items() if value is not None}
    command = [sys.executable, "-P", "-m", "ratchet.language_models.service"]
    sys.stdout.flush()
    os.execv(sys.executable, [*command, *(word for option in said.items() for word in option)])


@llm.command()
def export(
    model: Annotated[str, typer.Argument(help="A model's id, as jobs and MLflow name it.")],
    folder: Annotated[str, typer.Argument(help="A new folder.")],
    home: Annotated[str, typer.Option(help="The service's home.")] = ".ratchet",
) -> None:
    """Write a model that jobs have trained as a whole folder, its adapters merged into it."""
    require_packages(["tokenizers", "safetensors"], "ratchet llm export")
    from ratchet.language_models.service.export import export_model

    export_model(Path(home), model, Path(folder))
    print_plain(f"{model} is in {folder}.")
