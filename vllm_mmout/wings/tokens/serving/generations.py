"""Pictures that come whole: a text in, pictures out, of a model that generates tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.request.names import request_id, trace_headers
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.encode import FormatChoice, accepted, chosen_format, encode, response_of
from vllm_mmout.serving.response.responses import bare_response, close_entries, json_response
from vllm_mmout.serving.service import kept
from vllm_mmout.wings.tokens.guided.admission import MEDIA
from vllm_mmout.wings.tokens.serving.fields import sampling_params
from vllm_mmout.wings.tokens.serving.sizes import AUTO

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput

    from vllm_mmout.serving.response.result_files import Encoded
    from vllm_mmout.wings.tokens.serving.fields import TokenImagesRequest
    from vllm_mmout.wings.tokens.serving.service import Maker, TokenService


@dataclass(frozen=True, slots=True)
class Run:
    """What the engine is to do for one request."""

    prompt: list[int]
    params: OutputParams
    """With the processor and the sampling."""
    request_id: str
    adapter: LoRARequest | None
    trace_headers: Mapping[str, str] | None = None
    """The client's span."""


PARTIAL = "X-MMOut-Partial"
"""Header of bare bytes that are of a medium inside which the model ended."""


def form_of(request: Request, asked: TokenImagesRequest, maker: Maker) -> FormatChoice:
    """What the bytes of the pictures are to be, checked as far as that goes before there are any."""
    accept = accepted(request.headers.get("accept"))
    form = FormatChoice(asked.output_format, asked.output_compression, asked.background, accept)
    for wrong, param in (
        (asked.n > 1, "n"),
        (asked.response_format == "url", "response_format"),
        (asked.stream, "stream"),
    ):
        if accept is not None and wrong:
            raise ApiError(400, f"{param} needs an answer in JSON; leave out Accept, or {param}", param=param)
    formats = maker.processor.formats(OutputParams())
    if formats is not None:
        chosen_format(formats, form)
    return form


async def prepared(request: Request, service: TokenService, maker: Maker, asked: TokenImagesRequest) -> Run:
    """What the engine is to do for a request."""
    adapter = service.adapter(asked.model)
    grid = await asyncio.to_thread(maker.sizes.grid, asked.size)
    values = {"prompt": asked.prompt}
    if grid is not None:
        values |= {"rows": str(grid.rows), "columns": str(grid.columns)}
    prompt = await asyncio.to_thread(maker.tokens, values, "prompt")
    layout = maker.processor.layout
    opened = layout.opened_by(prompt)
    wanted = None if grid is None else layout.tokens_of(grid.rows, grid.columns, opened=opened)
    left = service.room_after(prompt, "prompt")
    if asked.size != AUTO and wanted is not None and wanted > left and asked.sampling.get("max_tokens") is None:
        raise ApiError(
            400,
            f"size {asked.size} takes {wanted} tokens, and the prompt leaves {left} of the model's length; ask for a"
            " smaller one, or for its first rows by max_tokens",
            param="size",
        )
    length = _length(wanted, service.usual.get("max_tokens"), opened=opened)
    sampling = sampling_params(asked.sampling, service.usual, n=asked.n, length=length, left=left)
    fits = wanted is None or (sampling.max_tokens or 0) >= wanted
    guided = fits and service.binding.unguided is None
    params = OutputParams(
        processor=maker.name,
        sampling=sampling,
        partial_images=asked.partial_images,
        output=MEDIA if guided else None,
        grid=grid if guided or asked.partial_images else None,
    )
    return Run(prompt, params, request_id(request, "image"), adapter, trace_headers(request))


async def answer(
    request: Request, service: TokenService, maker: Maker, asked: TokenImagesRequest, *, form: FormatChoice, run: Run
) -> Response:
    """All pictures at once."""
    outputs = await service.generated(run)
    pictures = [picture for answer in outputs.outputs for picture in answer.multimodal]  # type: ignore[attr-defined]
    if not pictures:
        raise nothing_made("picture", outputs)
    if form.accept is not None:  # a body is one file
        del pictures[1:]
    budget = AnswerBudget(service.options.max_answer)
    entries = await encoded_pictures(maker, pictures, form, budget, run.request_id)
    partial = [bool(getattr(picture, "partial", False)) for picture in pictures]
    if form.accept is not None:
        return bare_response(entries[0], {PARTIAL: "true"} if partial[0] else None)
    notes = [{"partial": True} if one else {} for one in partial]
    used = token_usage(run.prompt, outputs)
    if asked.response_format == "b64_json":
        return json_response(entries, used=used, notes=notes)
    names = await kept(service.store, entries)
    urls = [str(request.url_for("mmout_result", name=name)) for name in names]
    return json_response(entries, used=used, notes=notes, urls=urls)


def _length(wanted: int | None, usual: int | None, *, opened: bool) -> int | None:
    """How many tokens an answer may have where the client does not say it; None: as there is room for."""
    if wanted is None or opened:
        return usual if wanted is None else wanted
    return None if usual is None else max(usual, wanted)


async def encoded_pictures(
    maker: Maker, pictures: Sequence[Any], form: FormatChoice, budget: AnswerBudget, name: str
) -> list[Encoded]:
    """Return the bytes of pictures, made off the event loop; whoever sends them closes them."""
    try:
        return await in_thread(lambda: encode_pictures(maker, pictures, form, budget), close_entries, budget.abandon)
    except Exception as error:
        raise api_error(error, name) from error


def encode_pictures(maker: Maker, pictures: Sequence[Any], form: FormatChoice, budget: AnswerBudget) -> list[Encoded]:
    """Return the bytes of pictures; whoever sends them closes them. Blocks."""
    respond = response_of(maker.processor, OutputParams())
    with ExitStack() as unfinished:
        entries = []
        for picture in pictures:
            entries.append(encode(picture, form, respond, budget=budget))
            unfinished.callback(entries[-1].close)
        unfinished.pop_all()
        return entries


def token_usage(prompt: Sequence[int], outputs: RequestOutput) -> dict[str, Any]:
    """What a request took, as OpenAI counts it."""
    return usage_of(prompt, sum(len(answer.token_ids) for answer in outputs.outputs))


def usage_of(prompt: Sequence[int], made: int) -> dict[str, Any]:
    """What so many tokens, made of a prompt, are to OpenAI."""
    return {
        "input_tokens": len(prompt),
        "input_tokens_details": {"image_tokens": 0, "text_tokens": len(prompt)},
        "output_tokens": made,
        "total_tokens": len(prompt) + made,
    }


def nothing_made(what: str, outputs: RequestOutput) -> ApiError:
    """The error of a request whose answers hold no picture or sound."""
    reasons = {str(answer.finish_reason) for answer in outputs.outputs}
    return ended_without(what, reasons, max(len(answer.token_ids) for answer in outputs.outputs))


def ended_without(what: str, reasons: AbstractSet[str], tokens: int) -> ApiError:
    """The error of answers without a picture or sound, which ended for reasons of vLLM's after so many tokens.

    422, since neither client nor server did wrong: after a 500 OpenAI's client would ask, and have it generated, again.
    """
    remedy = (
        "raise max_tokens"
        if reasons == {"length"}
        else "change the prompt, or keep the model from ending by min_tokens, ignore_eos or allowed_token_ids"
    )
    return ApiError(
        422,
        f"the model gave no {what}: it ended after {tokens} tokens (finish_reason {', '.join(sorted(reasons))});"
        f" {remedy}",
    )
