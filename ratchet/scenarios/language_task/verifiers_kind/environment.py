"""Play episodes of an environment of the ``verifiers`` kind, by its own rules and rubric."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.language_models.types import ChatMessage
from ratchet.scenarios.language_task.environments.base import Episode, LanguageEnvironment, Turn
from ratchet.scenarios.language_task.verifiers_kind.loading import call_named, settled
from ratchet.scenarios.language_task.verifiers_kind.rubric import Rubric

if TYPE_CHECKING:
    from ratchet.scenarios.language_task.task import Evaluation, Task

_TIMES = ("start_time", "generation_ms", "scoring_ms", "total_ms")
"""What such environments write down of a rollout's time; nothing here reads it."""


class VerifiersEnvironment(LanguageEnvironment):
    """An environment's ``setup_state``, ``env_response``, ``is_completed`` and ``rubric``.

    Its own ``max_turns`` holds where it has one above 0; one without ``env_response`` is of a
    single turn.
    """

    scores_itself = True

    def __init__(self, found: Any) -> None:  # noqa: ANN401 -- of a package that isn't known
        self.found = found
        self.rubric = Rubric(found)
        given = getattr(found, "max_turns", None)
        talks = callable(getattr(found, "env_response", None))
        self.max_turns = (given if given and given > 0 else None) if talks else 1

    def begin(self, task: Task, seed: int) -> Episode:
        """Begin with the state that the environment sets up."""
        return VerifiersEpisode(self, task)


class VerifiersEpisode(Episode):
    """One rollout's ``state``, kept as such environments expect it."""

    def __init__(self, environment: VerifiersEnvironment, task: Task) -> None:
        self._environment, self._task = environment, task
        self._is_text = getattr(environment.found, "message_type", "chat") == "completion"
        info = copy.deepcopy(dict(task.info))
        row = {
            "prompt": self._in_their_words(task.messages),
            "answer": task.answer,
            "info": info.get("info") or {},
            "task": info.get("task") or "default",
            "example_id": info.get("example_id", task.task_id),
        }
        self.state: dict[str, Any] = {
            **copy.deepcopy(row),
            "input": row,
            "id": row["example_id"],
            "completion": "" if self._is_text else [],
            "responses": [],
            "trajectory": [],
            "turn": 0,
            "timing": dict.fromkeys(_TIMES, 0.0),
            "error": None,
            "final_env_response": None,
            "sampling_args": {},
            "oai_tools": [],
            "metrics": {},
            "reward": None,
            "is_completed": False,
            "is_truncated": False,
        }
        self._num_replies = 0
        set_up = getattr(environment.found, "setup_state", None)
        if set_up is not None:
            self.state = settled(set_up(self.state)) or self.state

    @property
    def opening(self) -> Sequence[ChatMessage]:
        """The task's messages, or the prompt as the environment has set it up."""
        prompt = self.state["prompt"]
        return _in_our_words(prompt)

    def answer(self, reply: str) -> Turn:
        """Have the environment say whether that was all, or what comes next."""
        self._record(reply)
        if self._is_completed():
            return Turn(done=True)
        response = settled(self._environment.found.env_response(self._messages(), self.state))
        if isinstance(response, tuple):
            response, self.state = response
        self.state["completion"] = self.state["completion"] + response
        messages = _in_our_words(response)
        return Turn(messages, done=self._is_completed())

    def evaluate(self, completion: str, messages: Sequence[ChatMessage]) -> Evaluation | None:
        """Score by the rubric, with a last reply that nobody has answered."""
        said = [message.content for message in messages if message.role == "assistant"]
        before = sum(message.role == "assistant" for message in self.opening)
        if len(said) - before > self._num_replies:
            self._record(completion)
        return self._environment.rubric.score(self.state)

    def _record(self, reply: str) -> None:
        """Take a reply down."""
        said = reply if self._is_text else [{"role": "assistant", "content": reply}]
        step = {"prompt": self._messages(), "completion": said, "response": None, "extras": {}}
        self.state["trajectory"].append(step)
        self.state["completion"] = self.state["completion"] + said
        self.state["turn"] = self._num_replies = self._num_replies + 1

    def _messages(self) -> Any:  # noqa: ANN401 -- a text or a list of dictionaries
        return self.state["prompt"] + self.state["completion"]

    def _is_completed(self) -> bool:
        """Ask whether the episode is over, in the words of either version."""
        asked = getattr(self._environment.found, "is_completed", None)
        if asked is None:
            return False
        given: Mapping[str, Any] = {"messages": self._messages(), "state": self.state}
        takes = inspect.signature(asked).parameters
        if "messages" in takes:
            return bool(settled(asked(given["messages"], self.state)))
        return bool(call_named(asked, {"state": self.state}))

    def _in_their_words(self, messages: Sequence[ChatMessage]) -> str | list[dict[str, Any]]:
        if self._is_text:
            return "".join(message.content for message in messages)
        return [message.to_dict() for message in messages]


def _in_our_words(said: str | Sequence[Mapping[str, Any]]) -> tuple[ChatMessage, ...]:
    if isinstance(said, str):
        return (ChatMessage("user", said),)
    return tuple(
        ChatMessage.from_dict({**each, "content": each.get("content") or ""}) for each in said
    )
