"""Callbacks: additional actions at defined moments of training, for all trainers."""

from __future__ import annotations

BUILT_IN = {
    "early_stopping": "trainers.callbacks.early_stopping",
    "best_response": "trainers.callbacks.best_response",
    "gradient_statistics": "trainers.callbacks.gradient_statistics",
    "keep_best": "trainers.callbacks.keep_best",
    "nash_conv": "trainers.callbacks.nash_conv",
    "message_regression": "trainers.callbacks.message_regression",
}
"""Name → the module that registers the callback."""
