"""What vLLM gives for a request, as every engine of the service gives it."""

from __future__ import annotations

from typing import Any

from ratchet.language_models.service.engine.interface import (
    FinishReason,
    GeneratedToken,
    GenerationRequest,
    GenerationResult,
    PromptToken,
    TokenChoice,
    tokens_within,
)
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer


def to_result(
    request: GenerationRequest,
    output: Any,  # noqa: ANN401 -- vllm.RequestOutput
    tokenizer: ChatTokenizer,
) -> GenerationResult:
    """Make the result; an end token is counted, and is no token unless ids are wanted."""
    answer, prompt = output.outputs[0], output.prompt_token_ids
    reason: FinishReason = "length" if answer.finish_reason == "length" else "stop"
    echo = _echo(request, output, tokenizer) if request.echo else ()
    if request.max_tokens == 0:
        return GenerationResult("", "length", len(prompt), 0, (), echo)
    tokens: list[GeneratedToken] = []
    if request.logprobs:
        tokens = [
            _described(request, token, choices)
            for token, choices in zip(answer.token_ids, answer.logprobs, strict=True)
            if request.token_ids or token not in tokenizer.end_ids
        ]
        if (
            isinstance(answer.stop_reason, str) and not request.token_ids
        ):  # the text ends before what stopped it
            tokens = tokens_within(tokens, len(answer.text))
    return GenerationResult(
        text=answer.text,
        finish_reason=reason,
        prompt_tokens=len(prompt),
        completion_tokens=len(answer.token_ids),
        tokens=tuple(tokens),
        prompt=echo,
        token_ids=tuple(answer.token_ids) if request.token_ids else (),
        prompt_ids=tuple(prompt) if request.token_ids else (),
    )


def _echo(
    request: GenerationRequest,
    output: Any,  # noqa: ANN401
    tokenizer: ChatTokenizer,
) -> tuple[PromptToken, ...]:
    """Show the prompt; vLLM says nothing of its first token."""
    shown: list[PromptToken] = []
    for token, choices in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
        if choices is None:
            shown.append(PromptToken(tokenizer.token_text(token)))
            continue
        found = _described(request, token, choices)
        logprob = found.logprob if request.logprobs else None
        shown.append(PromptToken(found.token, logprob, found.top))
    return tuple(shown)


def _described(request: GenerationRequest, token: int, choices: Any) -> GeneratedToken:  # noqa: ANN401
    likeliest = sorted(choices.values(), key=lambda choice: -choice.logprob)
    top = tuple(
        TokenChoice(choice.decoded_token or "", choice.logprob)
        for choice in likeliest[: request.top_logprobs]
    )
    return GeneratedToken(choices[token].decoded_token or "", choices[token].logprob, top)
