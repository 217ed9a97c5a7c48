"""Find an experiment's callbacks: by name, by file or among installed plug-ins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from ratchet.errors import ParameterError, nearest
from ratchet.parameters.base import SECTIONS, CallbackSection
from ratchet.parameters.reading.messages import describe_validation_error
from ratchet.registry import Registry
from trainers.callbacks.base import STAGES, Callback, CallbackSpec

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from trainers.base import Trainer

CALLBACKS: Registry[Callback] = Registry(
    "callback", "trainers.callbacks.base:Callback", "trainers.callbacks", parameter="callbacks"
)
_Class = TypeVar("_Class", bound=type[Callback])


def register_callback(name: str) -> Callable[[_Class], _Class]:
    """Register a callback under a name.

    Raises ParameterError if another class has the name.
    """
    return CALLBACKS.register(name)


def callback_specs(
    hyper_params: HyperParameters, base_dir: str | Path | None = None
) -> tuple[CallbackSpec, ...]:
    """Return the callbacks of an experiment: those of enabled sections, then those of the list.

    Relative paths start from ``base_dir``, the experiment file's folder.
    """
    specs: list[CallbackSpec] = []
    names: Counter[str] = Counter()
    for path, prefix, name, values in _configured(hyper_params):
        kind = CALLBACKS.find(name, base_dir)
        for stage in kind.stages:
            if stage not in STAGES:
                raise ParameterError(
                    f"{path}: {kind.__name__}.stages has {stage!r}.{nearest(stage, STAGES)}"
                )
        plain = name.rpartition(":")[2]
        names[plain] += 1
        label = plain if names[plain] == 1 else f"{plain}#{names[plain]}"
        try:
            parameters = kind.Parameters.model_validate(values)
        except ValidationError as error:
            message = describe_validation_error(error, prefix=path, model=kind.Parameters)
            raise ParameterError(message) from error
        specs.append(CallbackSpec(kind, parameters, label, path, prefix))
    return tuple(specs)


def check_callbacks(
    hyper_params: HyperParameters,
    trainer: type[Trainer],
    handler: ProtocolHandler,
    base_dir: Path | None,
) -> None:
    """Refuse callbacks that the trainer does not call, or that don't fit the experiment.

    Raises ParameterError with the reason.
    """
    for spec in callback_specs(hyper_params, base_dir):
        spec.kind.check(spec, hyper_params, trainer, handler)
        traits = trainer.traits
        if traits.instead_of_callbacks is not None:
            raise ParameterError(
                f"{spec.prefix}, but the trainer {hyper_params.trainer_name!r}"
                f" {traits.instead_of_callbacks}"
            )
        if None not in (spec.kind.plays_text, traits.plays_text) and (
            spec.kind.plays_text != traits.plays_text
        ):
            kinds = {True: "chat models", False: "networks"}
            raise ParameterError(
                f"{spec.prefix}, which is for trainers of {kinds[bool(spec.kind.plays_text)]}, but"
                f" {hyper_params.trainer_name!r} trains {kinds[bool(traits.plays_text)]}. Leave"
                " it out, or choose another trainer."
            )


def _configured(
    hyper_params: HyperParameters,
) -> Iterator[tuple[str, str, str, Mapping[str, object]]]:
    """Iterate over the configured callbacks: path, prefix of messages, name, parameters."""
    for name in sorted(SECTIONS):
        section = getattr(hyper_params, name)
        if isinstance(section, CallbackSection) and section.enabled:
            values = {key: value for key, value in section.to_dict().items() if key != "enabled"}
            yield name, f"{name}.enabled: got true", name, values
    for number, reference in enumerate(hyper_params.callbacks):
        path = f"callbacks.{number}"
        yield path, f"{path}.name: got {reference.name!r}", reference.name, reference.given
