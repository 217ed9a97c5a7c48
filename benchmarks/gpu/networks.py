"""PPO on graphs with the default networks: frames per second on the device and on one core."""

from __future__ import annotations

import subprocess
import sys
import time

import torch
from workbench import bench, show

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer

ITERATIONS = 3


def measure(device: str, frames: int) -> None:
    """Print the frames per second after the first iteration."""
    torch.set_num_threads(1)
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
    print((ITERATIONS - 1) * frames / (time.perf_counter() - begin))


def main(flags: list[str]) -> None:
    """Print the table; each device is measured in a separate process."""
    with bench(flags) as sizes:
        frames, rows = 64 if sizes.is_tiny else 1000, list[dict[str, object]]()
        for device in dict.fromkeys((sizes.device, "cpu")):
            command = [sys.executable, __file__, device, str(frames)]
            rate = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            rows.append({"device": device, "frames/s": float(rate.split()[-1])})
        show("PPO on graphs", rows)


if __name__ == "__main__":
    if sys.argv[1:2] and not sys.argv[1].startswith("--"):
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        main(sys.argv[1:])
