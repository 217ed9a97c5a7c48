"""Matches of a person against a run's trained agents: for inspection, never for training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ratchet.errors import ParameterError
from ratchet.games.loading import make_game
from ratchet.games.match import Game, View, read_action
from ratchet.seeding import derive_seed, numpy_generator
from tasks.stages.families import open_session
from tasks.tensordict.session import ArmSession
from trainers.language.trainer import LanguageTrainer
from trainers.match_policies import seat_policy
from trainers.tensordict.rl import TensorDictRlTrainer

if TYPE_CHECKING:
    from flows.runs.resolve import ResolvedExperiment
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.tracking.run_folder import RunFolder
    from tasks.stages.families import AnySession

RECORD_FILE = "matches_with_people.jsonl"


class Person:
    """Chooses the actions of a seat: writes the seat's view, and reads replies."""

    def __init__(self, seat: str, write: Callable[[str], None], read: Callable[[str], str]) -> None:
        self.seat, self._write, self._read = seat, write, read
        self.said: list[str] = []

    def choose(self, view: View) -> int:
        """Return the legal action that the person's reply names; ask again for other replies."""
        for message in view.messages:
            self._write(message.content)
        while True:
            reply = self._read(f"{self.seat}> ")
            action = read_action(view.legal, reply)
            if action is not None:
                self.said.append(view.legal[action])
                return action
            self._write(f"Got {reply!r}, expected one of: {', '.join(view.legal.values())}.")


@dataclass(frozen=True)
class PlayedMatch:
    """A finished match of a person: seat, number, actions in order, and rewards by seat."""

    person: str
    match: int
    said: list[str]
    rewards: dict[str, float]


def play_matches(
    experiment: ResolvedExperiment,
    folder: RunFolder,
    arm: str,
    seat: str,
    write: Callable[[str], None],
    read: Callable[[str], str],
) -> Iterator[PlayedMatch]:
    """Play one match after another against the final agents of an arm, and record each.

    Records are lines of ``matches_with_people.jsonl`` in the run's folder. Each match has the
    number, and so the chances, after those of the records.

    Raises
    ------
    ParameterError
        If the arm has no trained agents, no such seat, or plays no game that a person can.
    """
    keys = next((keys for keys in experiment.keys if keys.arm == arm), None)
    key = None if keys is None else keys.final_state_key
    if keys is None or key is None or experiment.store.peek(key) is None:
        raise ParameterError(
            f"play: run {experiment.run_id} has no trained agents in the arm {arm!r}. Finish it"
            f" with `ratchet resume {experiment.run_id}`, or name another arm."
        )
    with closing(open_session(keys, experiment.settings, experiment.store)) as session:
        play = _play_against(session, key, seat)
        file = folder.path / RECORD_FILE
        number = len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
        while True:
            person = Person(seat, write, read)
            rewards = play(person, number)
            played = PlayedMatch(seat, number, person.said, rewards)
            record = {"arm": arm, "time": datetime.now(UTC).isoformat(), **asdict(played)}
            with file.open("a", encoding="utf-8") as records:
                records.write(json.dumps(record) + "\n")
            yield played
            number += 1


_Play: TypeAlias = Callable[[Person, int], dict[str, float]]
"""Plays a match, by number, against a person; returns the rewards by seat."""


def _play_against(session: AnySession, key: str, seat: str) -> _Play:
    """Return the function that plays against the agents of a state."""
    hyper_params = session.keys.hyper_params
    if not isinstance(session, ArmSession) or session.keys.trainer_class.traits.is_remote:
        raise _no_game(hyper_params)
    trainer = session.trainer_taking_over(key, None)
    game = None
    if isinstance(trainer, LanguageTrainer):
        game = trainer.scenario_instance.test_environment.rules.environment
    elif isinstance(trainer, TensorDictRlTrainer):
        section = hyper_params.gymnasium
        game = make_game(hyper_params.dataset, section.environment_kwargs, session.keys.base_dir)
    if not isinstance(game, Game):
        raise _no_game(hyper_params)
    if any(getattr(agent, "recurrence", None) for agent in hyper_params.agents.values()):
        raise ParameterError("play: got recurrent agents, expected some without a memory.")
    if seat not in game.seats:
        raise ParameterError(f"play: got the seat {seat!r}, expected one of {list(game.seats)}.")
    if isinstance(trainer, LanguageTrainer):
        return partial(_play_models, trainer)
    assert isinstance(trainer, TensorDictRlTrainer)
    return partial(_play_networks, trainer, game)


def _no_game(hyper_params: HyperParameters) -> ParameterError:
    return ParameterError(
        f"play: got a run of {hyper_params.scenario} with the dataset {hyper_params.dataset!r},"
        " expected a game, of networks or of language models that are trained here."
    )


def _play_models(trainer: LanguageTrainer, person: Person, number: int) -> dict[str, float]:
    instance = trainer.scenario_instance
    played = instance.play(
        "test",
        [number % len(instance.test_dataset)],
        {**trainer.sampled_models, person.seat: person.choose},
        iteration=number,
        is_validation=True,
    )
    names = instance.agents
    return {name: played.metrics[f"rollout/{name}/reward"] for name in names}


def _play_networks(
    trainer: TensorDictRlTrainer, game: Game, person: Person, number: int
) -> dict[str, float]:
    seed = derive_seed(trainer.hyper_params.seed, "test", number, "match")
    generator = numpy_generator(seed, "actions")
    match = game.begin(seed)
    while match.acting:
        actions: dict[str, int] = {}
        for seat in match.acting:
            if seat == person.seat:
                actions[seat] = person.choose(match.view(seat))
            else:
                chances = seat_policy(trainer, game, match, seat)
                actions[seat] = int(generator.choice(len(chances), p=chances.numpy()))
        match.play(actions)
    return dict(match.rewards)
