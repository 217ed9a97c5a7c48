"""Prompt ids of a request, or the reason of its refusal; common to all engines."""

from __future__ import annotations

from ratchet.errors import DataError
from ratchet.language_models.engines.interface import GenerationRequest, RequestRefusedError
from ratchet.language_models.local.tokenizer import ChatTokenizer, ContextLengthError


def read_prompt(
    tokenizer: ChatTokenizer, request: GenerationRequest, context: int
) -> list[int] | RequestRefusedError:
    """Return the ids of a request's chat or text, leaving room for its completion.

    Parameters
    ----------
    context
        The maximal tokens of the prompt and the completion together.
    """
    least = 0 if request.max_tokens == 0 else 1
    if request.prompt is not None:
        return read_text(tokenizer, request.prompt, context, param="prompt", least=least)
    variables = dict(request.template_variables)
    if request.tools:
        if not tokenizer.knows_tools:
            return RequestRefusedError(
                "'tools' is not supported with this model: its chat template has none. Omit"
                " 'tools', or serve a model that was trained to call them.",
                param="tools",
                code="unsupported_parameter",
            )
        variables["tools"] = [dict(tool) for tool in request.tools]
    try:
        ids = tokenizer.prompt_ids(request.messages, variables, most=context)
    except ContextLengthError as error:
        return _too_long(context, str(error), "messages")
    except DataError as error:
        return RequestRefusedError(str(error), param="messages", code="invalid_messages")
    return _fitting(ids, context, least, "messages")


def read_text(
    tokenizer: ChatTokenizer,
    prompt: str | tuple[int, ...],
    context: int,
    *,
    param: str,
    least: int = 0,
) -> list[int] | RequestRefusedError:
    """Return the ids of a text without a template, or check given ids.

    At least ``least`` tokens must fit after them.
    """
    if isinstance(prompt, str):
        try:
            return _fitting(tokenizer.encode(prompt, most=context), context, least, param)
        except ContextLengthError as error:
            return _too_long(context, str(error), param)
    unknown = next((token for token in prompt if not tokenizer.token_text(token)), None)
    if unknown is not None:
        message = f"The model has no token {unknown}."
        return RequestRefusedError(message, param=param, code="invalid_value")
    return _fitting(list(prompt), context, least, param)


def _fitting(
    ids: list[int], context: int, least: int, param: str
) -> list[int] | RequestRefusedError:
    if ids and len(ids) + least <= context:
        return ids
    return _too_long(
        context,
        f"The prompt has {len(ids)} tokens, and the completion needs at least {least}. Shorten the"
        f" {param}.",
        param,
    )


def _too_long(context: int, reason: str, param: str) -> RequestRefusedError:
    """Return the refusal in OpenAI's words, by which clients recognise it."""
    message = f"This model's maximum context length is {context} tokens. {reason}"
    return RequestRefusedError(message, param=param, code="context_length_exceeded")
