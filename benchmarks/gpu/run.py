"""Measure language models and networks on a GPU: ``python benchmarks/gpu/run.py [PART ...]``.

Each part runs in a separate process with its own limit, some seven minutes together on an
H100; all tables are printed at the end. Needs the extras ``finetune``, ``service`` and ``peers``.
``--tiny`` runs all parts at a small size on a CPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
PARTS: dict[str, tuple[int, list[str]]] = {
    "generation": (70, ["generation.py"]),
    "grpo": (80, ["grpo.py", "ratchet"]),
    "bits": (110, ["bits.py"]),
    "service": (60, ["service.py"]),
    "defaults": (60, ["grpo.py", "defaults"]),
    "networks": (80, ["networks.py"]),
    "trl": (130, ["grpo.py", "trl"]),
}
"""Seconds, and the script with its arguments, of each part."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def main() -> int:
    """Run the parts; return the number of those that failed."""
    flags = [argument for argument in sys.argv[1:] if argument.startswith("--")]
    names = [argument for argument in sys.argv[1:] if argument not in flags] or list(PARTS)
    tables, failures = list[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **OFFLINE, "BENCH_FOLDER": folder, "PYTHONUNBUFFERED": "1"}
        for name in names:
            seconds, (script, *arguments) = PARTS[name]
            command = [sys.executable, str(FOLDER / script), *arguments, *flags]
            begin = time.monotonic()
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            try:
                output, errors = process.communicate(timeout=seconds * (3 if flags else 1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
                output, errors = process.communicate()
            took = time.monotonic() - begin
            print(f"{name}: exit {process.returncode} after {took:.0f} s", flush=True)
            tables.append(output)
            if process.returncode:
                failures += 1
                print(errors[-2000:], flush=True)
    print(describe_machine(), *tables, sep="\n")
    return failures


def describe_machine() -> str:
    """Return the device and the versions."""
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"\n{device}, torch {torch.__version__}, transformers {transformers.__version__}"


if __name__ == "__main__":
    sys.exit(main())
