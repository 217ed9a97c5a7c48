"""PPO on graphs with the default networks: frames per second on the device and on one core.

On a GPU also with captured updates that are not replayed, whose weights must be the same, and with
updates that are neither padded nor captured.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time

import torch
from workbench import bench, show

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer
from trainers.tensordict.optimization import captured

ITERATIONS = 3
UPDATES = ("replayed", "padded", "plain")


def measure(device: str, frames: int, updates: str) -> None:
    """Print a hash of the weights, and the frames per second after the first iteration."""
    torch.set_num_threads(1)
    if updates == "padded":
        captured.CapturedUpdates._capture = lambda *_: None  # type: ignore[method-assign,assignment]
    elif updates == "plain":
        captured.DEVICE_TYPE = "none"
    hyper_params = HyperParameters(
        **{
            "scenario": "graph_isomorphism",
            "trainer": "vanilla_ppo",
            "dataset": "generated",
            "graph_isomorphism": {"num_pairs": frames},
            "rl": {"frames_per_batch": frames, "minibatch_size": 64, "num_iterations": ITERATIONS},
        }
    )
    settings = ExperimentSettings(device=device, progress="none")
    instance = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, instance, settings)
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    begin = time.perf_counter()
    trainer.run_iterations(1, ITERATIONS)
    if device == "cuda":
        torch.cuda.synchronize()
    rate = (ITERATIONS - 1) * frames / (time.perf_counter() - begin)
    weights = torch.cat(
        [param.detach().flatten() for param in trainer.combined_agents.parameters()]
    )
    print(hashlib.sha256(weights.cpu().numpy().tobytes()).hexdigest()[:8], rate)


def main(flags: list[str]) -> None:
    """Print the table; each device is measured in a separate process."""
    with bench(flags) as sizes:
        frames, rows = 64 if sizes.is_tiny else 1000, list[dict[str, object]]()
        kinds = [] if sizes.is_tiny else [(sizes.device, updates) for updates in UPDATES]
        for device, updates in [*kinds, ("cpu", "plain")]:
            command = [sys.executable, __file__, device, str(frames), updates]
            text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            weights, rate = text.split()[-2:]
            row = {"device": device, "updates": updates, "weights": weights}
            rows.append({**row, "frames/s": float(rate)})
        show("PPO on graphs", rows)


if __name__ == "__main__":
    if sys.argv[1:2] and not sys.argv[1].startswith("--"):
        measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1:])
