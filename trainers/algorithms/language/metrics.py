"""Deprecated path of :mod:`ratchet.algorithms.language.metrics`."""

from ratchet.algorithms.language.metrics import log_advantages as log_advantages
from ratchet.algorithms.language.metrics import log_grpo_metrics as log_grpo_metrics
from ratchet.algorithms.language.metrics import log_rollout_metrics as log_rollout_metrics
