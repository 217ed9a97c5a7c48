"""Mirrors of run folders: MLflow, TensorBoard, W&B, and custom ones by file or entry point."""

from __future__ import annotations

BUILT_IN = {
    "mlflow": "ratchet.tracking.mirrors.mlflow.mirror",
    "tensorboard": "ratchet.tracking.mirrors.tensorboard",
    "wandb": "ratchet.tracking.mirrors.wandb",
}
"""The module that registers each."""
