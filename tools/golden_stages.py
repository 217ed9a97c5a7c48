"""Run the golden experiments with the code in a folder and print its stages as JSON.

    python tools/golden_stages.py TREE

Uses only interfaces of every release: :func:`flows.run_experiment` and the store's manifests.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

AGENT = {
    **dict.fromkeys(("d_gnn", "d_gin_mlp", "d_transformer", "d_transformer_mlp"), 4),
    **dict.fromkeys(("d_node_selector", "d_decider", "d_value"), 4),
    **{"num_gnn_layers": 1, "num_transformer_layers": 1, "num_heads": 2},
}
GRAPHS = {
    "scenario": "graph_isomorphism",
    "dataset": "generated",
    "d_representation": 4,
    "nip_protocol": {"max_message_rounds": 4},
    "graph_isomorphism": {"num_pairs": 40},
    "solo_agent": {"num_epochs": 1, "batch_size": 8},
    "agents": {"_default": AGENT},
}
ROUNDS = {"num_iterations": 2, "frames_per_batch": 32, "minibatch_size": 12, "num_epochs": 2}
SMALL = {"layers": 1, "d_model": 8, "heads": 2, "context_length": 32}
REVERSE = {"num_train": 8, "num_test": 2, "reverse": {"length": 2, "num_symbols": 4}}
LANGUAGE = {"tasks_per_step": 2, "group_size": 2}
TASKS = {
    "scenario": "language_task",
    "dataset": "reverse",
    "rl": {"num_iterations": 2},
    "language_task": REVERSE,
    "agents": {"_default": {"max_tokens": 3, "small_model": SMALL, "warm_up": {"num_steps": 1}}},
    "language": LANGUAGE,
}
CHAT = {
    "scenario": "code_validation",
    "dataset": "generated",
    "nip_protocol": {"max_message_rounds": 3},
    "code_validation": {"num_train": 6, "num_test": 2},
    "rl": {"num_iterations": 2, "rollouts_per_iteration": 6},
    "agents": {"_default": {"use_dummy_api": True}},
}
CONTROL = {
    "scenario": "gymnasium",
    "dataset": "CartPole-v1",
    "gymnasium": {"num_test_episodes": 2, "num_train_seeds": 4},
    "rl": {"num_iterations": 2, "frames_per_batch": 24, "minibatch_size": 8},
}
GAME = {**CONTROL, "trainer": "vanilla_ppo", "rl": {**CONTROL["rl"], "gamma": 1.0}}
FRAMES = {
    "batches_per_iteration": 2,
    "config": {
        "collector": {"frames_per_batch": 24},
        "trainer": {"total_frames": 96, "num_epochs": 1},
        "replay_buffer": {"batch_size": 8},
    },
}
REPLAYED = {
    "batches_per_iteration": 2,
    "config": {
        "collector": {"frames_per_batch": 24, "init_random_frames": 24},
        "trainer": {"total_frames": 96, "optim_steps_per_batch": 2},
        "replay_buffer": {"batch_size": 8},
    },
}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "ppo": {**GRAPHS, "trainer": "vanilla_ppo", "rl": ROUNDS, "pretrain_agents": True},
    "reinforce": {**GRAPHS, "trainer": "reinforce", "rl": ROUNDS},
    "solo": {**GRAPHS, "trainer": "solo_agent"},
    "cartpole": {**CONTROL, "trainer": "vanilla_ppo"},
    "table_game": {**GAME, "dataset": "open_spiel/kuhn_poker"},
    "simulated_game": {**GAME, "dataset": "open_spiel/liars_dice"},
    "language_game": {
        **TASKS,
        "trainer": "grpo",
        "dataset": "open_spiel/kuhn_poker",
        "language_task": {"num_train": 8, "num_test": 2},
    },
    "torchrl_ppo": {**CONTROL, "trainer": "torchrl_ppo", "rl": {}, "torchrl": FRAMES},
    "dqn": {**CONTROL, "trainer": "torchrl_dqn", "rl": {}, "torchrl": REPLAYED},
    "sac": {
        **CONTROL,
        "trainer": "torchrl_sac",
        "dataset": "Pendulum-v1",
        "rl": {},
        "torchrl": REPLAYED,
    },
    "pool": {
        **GRAPHS,
        "trainer": "vanilla_ppo",
        "rl": {name: value for name, value in ROUNDS.items() if name != "num_iterations"},
        "phases": [
            {"name": "first", "num_iterations": 1},
            {
                "name": "second",
                "num_iterations": 1,
                "learners": ["verifier"],
                "partners": {"prover": "pool"},
            },
        ],
    },
    "grpo": {**TASKS, "trainer": "grpo"},
    "grpo_apart": {**TASKS, "trainer": "grpo"},
    "grpo_partial": {
        **TASKS,
        "trainer": "grpo",
        "language_task": {**REVERSE, "evaluator": "partial"},
    },
    "remote_grpo": {
        **TASKS,
        "trainer": "remote_grpo",
        "language_task": {**REVERSE, "evaluator": "partial"},
        "language": {**LANGUAGE, "train_service": {"backend": "ratchet"}},
    },
    "expert_iteration": {**CHAT, "trainer": "pure_text_ei"},
    "text_grpo": {**CHAT, "trainer": "pure_text_grpo"},
    "malt": {**CHAT, "trainer": "pure_text_malt"},
    "debate": {**CHAT, "trainer": "pure_text_ei", "interaction_protocol": "debate"},
    "early_stopping": {
        **CHAT,
        "trainer": "pure_text_ei",
        "callbacks": [{"name": "early_stopping", "metric": "accuracy", "patience": 5}],
    },
    "samples_per_test": {
        **TASKS,
        "trainer": "grpo",
        "language": {**LANGUAGE, "samples_per_test": 2},
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    name: {"iterations_per_task": 1} for name in ("grpo_apart", "grpo_partial", "language_game")
}
"""Settings of experiments whose rollouts are stages."""
SHIPPED: dict[str, list[str]] = {
    "demo": [
        "graph_isomorphism.num_pairs=64",
        "imitation.num_iterations=1",
        "rl.frames_per_batch=48",
        "rl.minibatch_size=24",
        "rl.num_test_iterations=1",
        "phases.verifier.num_iterations=1",
        "phases.both.num_iterations=1",
        "arms.alone.solo_agent.num_epochs=1",
        "arms.alone.rl={num_iterations: 1, frames_per_batch: 48, minibatch_size: 24}",
    ],
    "binary_erasure_channel": [
        "binary_erasure_channel.num_datapoints=64",
        "rl.num_iterations=1",
        "rl.frames_per_batch=48",
        "rl.minibatch_size=24",
        "rl.num_test_iterations=1",
    ],
    "text_demo": [
        "code_validation.num_train=8",
        "code_validation.num_test=4",
        "rl.rollouts_per_iteration=8",
        "rl.num_iterations=2",
        "agents._default.use_dummy_api=true",
        "~arms.seed_2",
        "~arms.seed_3",
    ],
    "arithmetic_grpo": [
        "language_task.num_train=64",
        "language_task.num_test=8",
        "agents._default.warm_up.num_steps=2",
        "rl.num_iterations=1",
        "language.tasks_per_step=4",
    ],
}
"""Overrides that shorten experiments in ``experiments/``, by the file's name."""
TIMES = ("seconds", "per_second", "timing", "memory")
"""Parts of names of metrics that differ between runs."""


def run_golden(names: list[str]) -> list[dict[str, Any]]:
    """Run golden experiments, each with an empty store; return one record per stage."""
    from flows import run_experiment
    from ratchet import ExperimentSettings
    from ratchet.experiment_files.loading import load_experiment

    records = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            home = Path(folder) / "home"
            store = Path(folder) / name
            settings = ExperimentSettings(
                home=str(home), runs=str(home / "runs"), store=str(store), tracking=False,
                progress="none", **SETTINGS.get(name, {}),
            )  # fmt: skip
            if name in SHIPPED:
                file = load_experiment(f"experiments/{name}.yaml", SHIPPED[name])
                run_experiment(file.hyper_params, settings, arms=file.arms, name=name)
            else:
                run_experiment(EXPERIMENTS[name], settings, name=name)
            stages = {path: json.loads(path.read_text()) for path in store.glob("**/manifest.json")}
            stages = {path: each for path, each in stages.items() if "fingerprint" in each}
            keys = {each["key"]: _name(name, each) for each in stages.values()}
            records += [_record(path.parent, each, keys) for path, each in stages.items()]
    return records


def _name(experiment: str, manifest: dict[str, Any]) -> str:
    inputs = manifest["inputs"]
    part = inputs.get("agent") or inputs.get("dataset") or ""
    if experiment in SHIPPED:  # whose arms have stages of the same name
        parameters = json.dumps(manifest["parameters"], sort_keys=True)
        part = f"{part} {hashlib.sha256(parameters.encode()).hexdigest()[:8]}"
    return f"{experiment}: {manifest['stage']} {manifest['iteration']} {part}".rstrip()


def _record(folder: Path, manifest: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return a stage's code and outputs; ``names`` replace the keys of stages in its files."""
    metrics = [
        {n: v for n, v in point["values"].items() if not any(word in n for word in TIMES)}
        for point in manifest["metrics"]
    ]
    files = {path: entry["sha256"] for path, entry in manifest["files"].items()}
    if manifest["stage"] == "rollouts":
        files.pop("transcripts.jsonl", None)  # written from the rollouts, for people
    for path in files:
        if path.endswith(".json"):
            text = (folder / path).read_text()
            for key, name in names.items():
                text = text.replace(key, name)
            files[path] = hashlib.sha256(text.encode()).hexdigest()
    return {
        "stage": names[manifest["key"]],
        "modules": manifest["fingerprint"]["modules"],
        "outputs": {"files": files, "metrics": metrics},
    }


if __name__ == "__main__":
    tree, *names = sys.argv[1:]
    os.chdir(tree)
    os.environ["PYTHONPATH"] = tree  # of the model service
    sys.path.insert(0, tree)
    sys.stdout.write(json.dumps(run_golden(names or [*EXPERIMENTS, *SHIPPED])) + "\n")
