"""``CallbackTrainer``: a trainer whose training callbacks are told of."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

from trainers.base import Trainer
from trainers.callbacks.base import CallbackState
from trainers.callbacks.callback_list import CallbackList


class CallbackTrainer(Trainer):
    """Base of the bases that call the moments of training."""

    @cached_property
    def callbacks(self) -> CallbackList:
        """Who is told of the training, as the experiment asks."""
        return CallbackList(self)

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has ended the training."""
        return self.callbacks.has_stopped

    @abstractmethod
    def take_weights(self) -> CallbackState:
        """Copy the weights that play, for callbacks that keep some."""

    @abstractmethod
    def put_weights(self, weights: CallbackState) -> None:
        """Put in place what :meth:`take_weights` returned."""
