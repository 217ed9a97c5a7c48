"""``StageKind``: a kind of stage, as keys, runs, reports, mirrors and the terminal use it.

Ratchet's kinds are declared here, since reports and mirrors read runs without the code that
computes stages. A plug-in declares its kinds next to their functions; runs record them in their
manifests (:class:`ratchet.tracking.manifest.RunManifest`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Span = Literal["run", "state", "iteration", "iterations"]


@dataclass(frozen=True)
class StageKind:
    """A kind of stage.

    Attributes
    ----------
    name
        The name of the stage's function.
    version
        Part of its keys: increased when stages must be recomputed although their code has the same
        fingerprint, e.g. if they write different files.
    span
        What a stage of this kind belongs to: the run, the state after a number of iterations, one
        training iteration, or one or several that it trains.
    reads_as
        The kind whose parameters it reads; by default itself.
    is_test
        Whether its metrics are results of the run.
    has_table
        Whether it writes a table of answers or episodes, which the run folder then contains.
    curves
        The report's section with the curves of its metrics; none if empty.
    axis
        What the iterations of its metrics count: the horizontal axis of its curves.
    unit
        What its progress counts; nothing if empty.
    headline
        Mirrors repeat its main metrics at the top, with this prefix; not if None.
    is_billed
        Whether a service may charge for it if chat models play.
    state
        The state that it writes: the first, before training, or that after its iterations.
    """

    name: str
    version: int = 1
    span: Span = "run"
    reads_as: str = ""
    is_test: bool = False
    has_table: bool = False
    curves: Literal["", "training", "testing", "pretraining"] = ""
    axis: str = "iteration"
    unit: str = ""
    headline: str | None = None
    is_billed: bool = False
    state: Literal["", "first", "trained"] = ""


BUILD_SCENARIO = StageKind("build_scenario")
INITIAL_STATE = StageKind("initial_state", state="first")
PRETRAIN = StageKind("pretrain", has_table=True, curves="pretraining", axis="epoch", unit="epochs")
PRETRAINED_STATE = StageKind("pretrained_state", reads_as="initial_state", state="first")
IMITATE = StageKind("imitate", curves="pretraining", unit="iterations")
IMITATED_STATE = StageKind("imitated_state", reads_as="initial_state", state="first")
PHASE_STATE = StageKind("phase_state", reads_as="train")
ROLLOUTS = StageKind("rollouts", version=2, span="iteration", reads_as="train")
TRAIN = StageKind(
    "train",
    span="iterations",
    curves="training",
    unit="iterations",
    headline="",
    state="trained",
)
RUN_TRAINER = StageKind("run_trainer", state="trained")
VALIDATE = StageKind(
    "validate", span="state", reads_as="test", curves="testing", headline="validation "
)
SUITE = StageKind("suite", is_test=True, has_table=True, curves="testing")
TEST = StageKind("test", is_test=True, has_table=True, unit="rollouts", is_billed=True)
SAMPLE_ROLLOUTS = StageKind("sample_rollouts", span="iteration", unit="rollouts", is_billed=True)
LOG_STATS = StageKind("log_stats", span="iteration", curves="training", headline="")
TEST_DURING_TRAINING = StageKind(
    "test_during_training",
    span="iteration",
    curves="testing",
    unit="rollouts",
    headline="",
    is_billed=True,
)
CREATE_FINE_TUNE_JOBS = StageKind("create_fine_tune_jobs", span="iteration", is_billed=True)
AWAIT_FINE_TUNE_JOBS = StageKind("await_fine_tune_jobs", span="iteration", state="trained")

CHAT_ITERATION = (
    SAMPLE_ROLLOUTS,
    LOG_STATS,
    TEST_DURING_TRAINING,
    CREATE_FINE_TUNE_JOBS,
    AWAIT_FINE_TUNE_JOBS,
)
"""The stages of an iteration of chat models, in the order in which they may start."""
KINDS = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            *(BUILD_SCENARIO, INITIAL_STATE, PRETRAIN, PRETRAINED_STATE, IMITATE, IMITATED_STATE),
            *(PHASE_STATE, ROLLOUTS, TRAIN, RUN_TRAINER, *CHAT_ITERATION, VALIDATE, SUITE, TEST),
        )
    }
)
"""Ratchet's kinds by name, in the order in which reports show them."""


def kind_of(stage: str, declared: Iterable[StageKind] = ()) -> StageKind:
    """Return the kind of a stage's name, such as "train" or "pretrain-verifier".

    ``declared`` are a run's further kinds; a kind that is unknown has no table and no curves.
    """
    name = stage.partition("-")[0]
    known = {kind.name: kind for kind in declared}
    return KINDS.get(name) or known.get(name) or StageKind(name)
