"""Which of a trainer's classes decides how its agents play, rather than how they learn."""

from __future__ import annotations

_LEARNING = {
    "_stage_create_fine_tune_jobs",
    "await_fine_tune_jobs",
    "check_parameters",
    "create_fine_tune_jobs",
    "examples_per_rollout",
    "job_stats",
    "responses_per_step",
    "says_what_it_samples",
    "stage_key_parameters",
    "stage_purposes",
    "train",
}
"""What a trainer may override without a change of how its agents play."""
_OF_EVERY_CLASS = {
    "__abstractmethods__",
    "__annotations__",
    "__dict__",
    "__doc__",
    "__module__",
    "__parameters__",
    "__weakref__",
    "_abc_impl",
}


def class_that_plays(trainer: type) -> type:
    """Return the first of a class and its bases that decides how agents play.

    A class that overrides nothing of its bases but what is about learning does not: nobody calls
    what else is in it. So an edit of what is learned from changes no key of rollouts.
    """
    order = trainer.__mro__[:-1]
    for place, found in enumerate(order):
        known = {name for base in order[place + 1 :] for name in vars(base)}
        overridden = known.intersection(vars(found)) - _LEARNING - _OF_EVERY_CLASS
        if overridden or place == len(order) - 1:
            stands_on_the_rest = set(found.__mro__[:-1]) == set(order[place:])
            return found if stands_on_the_rest else trainer
    return trainer
