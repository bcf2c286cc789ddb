"""Answer HTTP requests for pictures from models that generate pictures as tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError, client_errors
from vllm_mmout.serving.request.request_ids import request_id, trace_headers
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.encode import encode, response_of
from vllm_mmout.serving.response.format_choice import FormatChoice, accepted, chosen_format
from vllm_mmout.serving.response.responses import bare_response, close_entries, json_response
from vllm_mmout.serving.response.store import kept
from vllm_mmout.wings.tokens.guided.admission import MEDIA
from vllm_mmout.wings.tokens.serving.fields import sampling_params
from vllm_mmout.wings.tokens.serving.service import GenerateArguments
from vllm_mmout.wings.tokens.serving.sizes import AUTO

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from vllm.outputs import RequestOutput

    from vllm_mmout.serving.response.result_files import Encoded
    from vllm_mmout.wings.tokens.serving.fields import TokenImagesRequest
    from vllm_mmout.wings.tokens.serving.service import Maker, TokenService

PARTIAL = "X-MMOut-Partial"
"""Response header that marks a picture or sound file as incomplete, because the model did not finish it."""


def with_accept(request: Request, fields: TokenImagesRequest, maker: Maker) -> TokenImagesRequest:
    """Return ``fields`` with the file format that the request's ``Accept`` header names.

    Raise ApiError if the format is not available, or if the other fields need an answer in JSON.
    """
    fields = msgspec.structs.replace(fields, accept=accepted(request.headers.get("accept")))
    for conflicts, param in (
        (fields.n > 1, "n"),
        (fields.response_format == "url", "response_format"),
        (fields.stream, "stream"),
    ):
        if fields.accept is not None and conflicts:
            raise ApiError(
                400, f"{param} needs an answer in JSON; leave out the Accept header, or {param}", param=param
            )
    formats = maker.processor.formats(OutputParams())
    if formats is not None:
        chosen_format(formats, fields)
    return fields


async def prepared(
    request: Request, service: TokenService, maker: Maker, fields: TokenImagesRequest
) -> GenerateArguments:
    """Return the engine's arguments for a request for pictures. Raise an ApiError if a field has a wrong value."""
    adapter = service.adapter(fields.model)
    grid = await asyncio.to_thread(maker.sizes.grid, fields.size)
    values = {"prompt": fields.prompt}
    if grid is not None:
        values |= {"rows": str(grid.rows), "columns": str(grid.columns)}
    prompt = await asyncio.to_thread(maker.tokens, values, "prompt")
    layout = maker.processor.layout
    opened = layout.opened_by(prompt)
    needed = None if grid is None else layout.tokens_of(grid.rows, grid.columns, opened=opened)
    room = service.room_after(prompt, "prompt")
    if fields.size != AUTO and needed is not None and needed > room and fields.sampling.get("max_tokens") is None:
        raise ApiError(
            400,
            f"size {fields.size} takes {needed} tokens, but the prompt leaves only {room} of the model's length; ask"
            " for a smaller size, or set max_tokens to get its first rows",
            param="size",
        )
    length = _length(needed, service.usual.get("max_tokens"), opened=opened)
    sampling = sampling_params(fields.sampling, service.usual, n=fields.n, length=length, left=room)
    fits = needed is None or (sampling.max_tokens or 0) >= needed
    guided = fits and service.binding.unguided is None
    params = OutputParams(
        processor=maker.name,
        sampling=sampling,
        partial_images=fields.partial_images,
        output=MEDIA if guided else None,
        grid=grid if guided or fields.partial_images else None,
    )
    return GenerateArguments(prompt, params, request_id(request, "image"), adapter, trace_headers(request))


async def answer(
    request: Request,
    service: TokenService,
    maker: Maker,
    fields: TokenImagesRequest,
    run: GenerateArguments,
) -> Response:
    """Generate the pictures of a request, and return all of them in one HTTP response.

    ``run`` holds the arguments of the engine's ``generate``.
    """
    outputs = await service.generated(run)
    pictures = [picture for answer in outputs.outputs for picture in answer.multimodal]  # type: ignore[attr-defined]
    if not pictures:
        raise nothing_made("picture", outputs)
    if fields.accept is not None:  # the body holds one file
        del pictures[1:]
    budget = AnswerBudget(service.options.max_answer)
    entries = await encoded_pictures(maker, pictures, fields, budget, run.request_id)
    partial = [bool(getattr(picture, "partial", False)) for picture in pictures]
    if fields.accept is not None:
        return bare_response(entries[0], {PARTIAL: "true"} if partial[0] else None)
    notes = [{"partial": True} if is_partial else {} for is_partial in partial]
    used = token_usage(run.prompt, outputs)
    if fields.response_format == "b64_json":
        return json_response(entries, used=used, notes=notes)
    names = await kept(service.store, entries)
    urls = [str(request.url_for("mmout_result", name=name)) for name in names]
    return json_response(entries, used=used, notes=notes, urls=urls)


def _length(needed: int | None, usual: int | None, *, opened: bool) -> int | None:
    """Return the default of ``max_tokens``, the length limit of an answer. The limit leaves room for a whole picture.

    ``needed`` is the number of tokens of the picture, or None if the model decides its size. ``usual`` is the model's
    own default of ``max_tokens``. ``opened`` tells whether the answer begins inside the picture. None means no default.
    """
    if needed is None or opened:
        return usual if needed is None else needed
    return None if usual is None else max(usual, needed)


async def encoded_pictures(
    maker: Maker, pictures: Sequence[Any], format_choice: FormatChoice, budget: AnswerBudget, name: str
) -> list[Encoded]:
    """Encode pictures to files in a thread. The caller must close the files.

    ``name`` is the request id for error messages.
    """
    with client_errors(name):
        return await in_thread(
            lambda: encode_pictures(maker, pictures, format_choice, budget), close_entries, budget.abandon
        )


def encode_pictures(
    maker: Maker, pictures: Sequence[Any], format_choice: FormatChoice, budget: AnswerBudget
) -> list[Encoded]:
    """Encode pictures as files, and return the files. The caller must close them.

    The call blocks while the pictures are encoded.
    """
    respond = response_of(maker.processor, OutputParams())
    with ExitStack() as unfinished:
        entries = []
        for picture in pictures:
            entries.append(encode(picture, format_choice, respond, budget=budget))
            unfinished.callback(entries[-1].close)
        unfinished.pop_all()
        return entries


def token_usage(prompt: Sequence[int], outputs: RequestOutput) -> dict[str, Any]:
    """Return the token counts of a request in OpenAI's ``usage`` format."""
    return usage_of(prompt, sum(len(answer.token_ids) for answer in outputs.outputs))


def usage_of(prompt: Sequence[int], made: int) -> dict[str, Any]:
    """Return the token counts of a request in OpenAI's ``usage`` format. ``made`` is the number of generated tokens."""
    return {
        "input_tokens": len(prompt),
        "input_tokens_details": {"image_tokens": 0, "text_tokens": len(prompt)},
        "output_tokens": made,
        "total_tokens": len(prompt) + made,
    }


def nothing_made(noun: str, outputs: RequestOutput) -> ApiError:
    """Return the ApiError for answers that lack a picture or sound. ``noun`` is "picture" or "sound"."""
    reasons = {str(answer.finish_reason) for answer in outputs.outputs}
    return ended_without(noun, reasons, max(len(answer.token_ids) for answer in outputs.outputs))


def ended_without(noun: str, reasons: AbstractSet[str], tokens: int) -> ApiError:
    """Return the error for answers that ended without a picture or sound.

    ``noun`` is "picture" or "sound". ``tokens`` is the number of tokens that were generated, and ``reasons`` are vLLM's
    finish reasons.

    The status is 422, because neither the client nor the server made a mistake. After a 500, OpenAI's client would send
    the request again, and the answer would be generated again.
    """
    remedy = (
        "raise max_tokens"
        if reasons == {"length"}
        else "change the prompt, or keep the model from ending by min_tokens, ignore_eos or allowed_token_ids"
    )
    return ApiError(
        422,
        f"the model gave no {noun}: it ended after {tokens} tokens (finish_reason {', '.join(sorted(reasons))});"
        f" {remedy}",
    )
