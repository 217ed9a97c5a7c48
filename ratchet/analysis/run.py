"""Judge all messages of a run that have no verdict yet.

Calls go through a journal: after a kill, only the calls in flight are repeated.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.analysis.base import Analyser, build_analyser
from ratchet.analysis.llm_judge import AnalysisModel, Answer, Client, Questions
from ratchet.analysis.messages import TranscriptMessage, read_messages, transcript_files
from ratchet.analysis.results import (
    FOLDER,
    AnalyserSummary,
    AnalysisSummary,
    JudgedMessage,
    read_results,
    results_file,
    write_results,
)
from ratchet.errors import ParameterError
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.pricing import ModelPrice, PriceTable
from ratchet.tracking.files import locked


def analyse_run(
    run_folder: Path | str,
    analyser_names: Sequence[str],
    *,
    model: AnalysisModel,
    client: Client | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    num_workers: int = 16,
) -> AnalysisSummary:
    """Judge the messages of a finished run with analysers.

    Existing verdicts are kept unless the message or an earlier one has changed. Must not be called
    from a running event loop.

    Parameters
    ----------
    run_folder
        ``runs/RUN``. Verdicts are written to its ``analysis/ANALYSER/ARM/NAME.jsonl``.
    analyser_names
        Registered names, or ``path/to/file.py:Class``.
    client
        Client to use; default: the endpoint's client.
    dry_run
        Only count calls, tokens and cost; no calls, no files.
    overwrite
        Also judge messages that have a verdict.

    Raises
    ------
    RunNotFoundError, DataError
        If the run does not exist or has no transcripts.
    UnknownNameError, PromptTemplateError
        If an analyser is unknown or its prompt cannot be built; raised before any call.
    LanguageModelError
        If a call failed after all retries; repeating the command sends only unanswered requests.
    """
    if num_workers < 1 or not analyser_names:
        raise ParameterError(
            f"analyse: got {num_workers} workers and the analysers {list(analyser_names)},"
            " expected at least one of each."
        )
    folder = Path(run_folder)
    files = transcript_files(folder)
    analysers = dict(build_analyser(name) for name in analyser_names)
    price = PriceTable.load().find(model.model_name, embedded=model.endpoint.is_embedded)
    if dry_run:
        plans = _plan(folder, files, analysers, model, overwrite=overwrite)
        summaries = tuple(plan.estimate(price) for plan in plans)
        return AnalysisSummary(model.model_name, True, summaries)
    (folder / FOLDER).mkdir(exist_ok=True)
    with locked(folder / FOLDER / ".lock"):
        plans = _plan(folder, files, analysers, model, overwrite=overwrite)
        if client is None:
            from ratchet.language_models.chat import shared_chat_client  # imports openai

            client = shared_chat_client(model.endpoint)
        summaries = asyncio.run(_execute(folder, plans, client, num_workers, price))
    return AnalysisSummary(model.model_name, False, summaries)


@dataclass(frozen=True)
class _Plan:
    """Plan of one analyser: kept verdicts by file, and requests on all other messages."""

    name: str
    stored_verdicts: dict[str, list[JudgedMessage]]
    questions: Questions

    @property
    def num_kept(self) -> int:
        return sum(map(len, self.stored_verdicts.values()))

    @property
    def num_messages(self) -> int:
        return self.num_kept + len(self.questions.of_message)

    def estimate(self, price: ModelPrice | None) -> AnalyserSummary:
        prompt_tokens, completion_tokens = self.questions.estimate_tokens()
        return AnalyserSummary(
            name=self.name,
            num_messages=self.num_messages,
            num_kept=self.num_kept,
            num_calls=len(self.questions.requests),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost=price.of_call(prompt_tokens, completion_tokens) if price else None,
            verdicts=_count(self.stored_verdicts),
        )

    def finish(
        self, run_folder: Path, answers: dict[str, Answer], price: ModelPrice | None
    ) -> AnalyserSummary:
        """Write all verdicts, old and new; messages that are too long have none."""
        num_too_long = 0
        results = {file: list(messages) for file, messages in self.stored_verdicts.items()}
        for (file, message), digest in self.questions.of_message.items():
            if digest not in answers:
                num_too_long += 1
                continue
            request = self.questions.requests[digest]
            judged = JudgedMessage.from_message(message, answers[digest].verdict, request.model)
            results[file].append(judged)
        for file in {file for file, _ in self.questions.of_message}:
            write_results(results_file(run_folder, self.name, file), results[file])
        completions = [c for answer in answers.values() for c in answer.completions]
        prompt_tokens = sum(completion.prompt_tokens for completion in completions)
        completion_tokens = sum(completion.completion_tokens for completion in completions)
        return AnalyserSummary(
            name=self.name,
            num_messages=self.num_messages,
            num_kept=self.num_kept,
            num_calls=len(completions),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost=price.of_call(prompt_tokens, completion_tokens) if price else None,
            verdicts=_count(results),
            num_too_long=num_too_long,
        )


def _plan(
    run_folder: Path,
    files: dict[str, Path],
    analysers: dict[str, Analyser],
    model: AnalysisModel,
    *,
    overwrite: bool,
) -> list[_Plan]:
    """Read transcripts and verdicts, and build all requests."""
    plans = []
    for name, analyser in analysers.items():
        judged: dict[str, list[JudgedMessage]] = {}
        unjudged: list[tuple[str, TranscriptMessage]] = []
        for file, path in files.items():
            results = [] if overwrite else read_results(results_file(run_folder, name, file))
            stored = {(result.position, result.digest): result for result in results}
            judged[file] = []
            for message in filter(analyser.judges, read_messages(path)):
                result = stored.get((message.position, message.digest))
                if result is None:
                    unjudged.append((file, message))
                else:
                    judged[file].append(result)
        plans.append(_Plan(name, judged, Questions.on_messages(unjudged, analyser, model)))
    return plans


async def _execute(
    run_folder: Path,
    plans: Sequence[_Plan],
    client: Client,
    num_workers: int,
    price: ModelPrice | None,
) -> tuple[AnalyserSummary, ...]:
    summaries = []
    for plan in plans:
        journal_file = run_folder / FOLDER / plan.name / "calls.journal"
        with CallJournal(journal_file) as journal:
            answers = await plan.questions.ask(client, journal, num_workers)
        summaries.append(plan.finish(run_folder, answers, price))
        journal_file.unlink()
    return tuple(summaries)


def _count(results: dict[str, list[JudgedMessage]]) -> dict[str, int]:
    verdicts = (one.verdict or "unreadable" for judged in results.values() for one in judged)
    return dict(sorted(Counter(verdicts).items()))
