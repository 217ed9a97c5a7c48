"""``python -m ratchet.service``: serve models from the command line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from ratchet.errors import RatchetError
from ratchet.language_models.endpoints import EMBEDDED_PACKAGES
from ratchet.lazy import require_packages
from ratchet.models.lora import Lora
from ratchet.service.settings import (
    API_KEY_VARIABLE,
    RetentionRules,
    ServiceSettings,
)


def main() -> int:
    """Serve; return the exit code."""
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # more threads contend; see --threads
        os.environ.setdefault(name, str(arguments.threads))
    try:
        settings = ServiceSettings(
            home=arguments.home.resolve(),
            host=arguments.host,
            port=arguments.port,
            model=arguments.model,
            name=arguments.name,
            engine=arguments.engine,
            lora=Lora(arguments.lora_rank, arguments.lora_alpha, arguments.lora_dropout),
            micro_batch_size=arguments.micro_batch_size,
            supervised_weight=arguments.supervised_weight,
            retention=RetentionRules(arguments.keep_checkpoints, arguments.keep_days),
            api_key=os.environ.get(API_KEY_VARIABLE),
            embedded=arguments.embedded,
        )
        require_packages(EMBEDDED_PACKAGES, "The model service")
        from ratchet.service.serving import serve

        serve(settings)
    except KeyboardInterrupt:  # before the server listened
        return 130
    except RatchetError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ratchet.service")
    parser.description = (
        "Serve OpenAI's API for chat and fine-tuning from this machine."
        f" The key clients must send is read from {API_KEY_VARIABLE}."
    )
    parser.add_argument("--home", type=Path, required=True, help="Ratchet's home folder")
    parser.add_argument("--host", default="127.0.0.1", help="any other address requires a key")
    parser.add_argument("--port", type=int, default=8399, help="0 selects a free one")
    parser.add_argument("--model", help="folder or name on the Hugging Face hub")
    parser.add_argument("--name", help="the model's id for clients, such as org/model")
    parser.add_argument("--engine", default="torch", help="torch, or module:Class")
    parser.add_argument("--lora-rank", type=int, default=0, help="0 trains all weights")
    parser.add_argument("--lora-alpha", type=int, help="default: twice the rank")
    parser.add_argument("--lora-dropout", type=float, default=0.0, help="of the adapters' inputs")
    parser.add_argument("--micro-batch-size", type=int, help="examples in memory at a time")
    parser.add_argument(
        "--supervised-weight", type=float, help="of supervision beside DPO; default: by model"
    )
    parser.add_argument(
        "--keep-checkpoints", type=int, help="of each job or training session; default: all"
    )
    parser.add_argument(
        "--keep-days",
        type=float,
        help="keep unreferenced files and models this long after last use",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine on a CPU")
    parser.add_argument("--embedded", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
