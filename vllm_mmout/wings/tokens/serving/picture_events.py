"""Stream a generated picture as events: previews of its first rows, then the whole picture."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any

from vllm.sampling_params import RequestOutputKind

from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.events import Event, completed, partial_image
from vllm_mmout.wings.tokens.serving.generations import encoded_pictures, ended_without, usage_of

if TYPE_CHECKING:
    from vllm_mmout.serving.response.format_choice import FormatChoice
    from vllm_mmout.wings.tokens.serving.service import GenerateArguments, Maker, TokenService

_KIND = "image_generation"


async def picture_events(
    service: TokenService, maker: Maker, format_choice: FormatChoice, run: GenerateArguments
) -> AsyncGenerator[Event, None]:
    """Generate a picture. Yield up to ``partial_images`` previews as events, then the whole picture."""
    run.params.sampling.output_kind = RequestOutputKind.DELTA
    tokens, numbers = 0, count()
    async with aclosing(service.running(run)) as outputs:
        async for output in outputs:
            answer: Any = output.outputs[0]
            tokens += len(answer.token_ids)
            previews = AnswerBudget(service.options.max_answer)
            for preview in await encoded_pictures(maker, answer.updates, format_choice, previews, run.request_id):
                yield partial_image(_KIND, next(numbers), preview)
    if not answer.multimodal:
        raise ended_without("picture", {str(answer.finish_reason)}, tokens)
    used = usage_of(run.prompt, tokens)
    budget = AnswerBudget(service.options.max_answer)
    entries = await encoded_pictures(maker, answer.multimodal, format_choice, budget, run.request_id)
    for picture, entry in zip(answer.multimodal, entries, strict=True):
        yield completed(_KIND, entry, used=used, **({"partial": True} if getattr(picture, "partial", False) else {}))
