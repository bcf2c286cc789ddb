"""Check requests that want complete pictures or sounds, and attach a `Guide`, which restricts their answers' tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vllm_mmout.engine.hooks.client_errors import as_client_error
from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.guided.guide import KEY, Guide, TokenTracker
from vllm_mmout.wings.tokens.layouts import TokenLayout

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

MEDIA: Final = "media"
"""Value of ``OutputParams.output`` for an answer that consists of one complete picture or sound, without text."""
MIXED: Final = "mixed"
"""Value of ``OutputParams.output`` for an answer with complete pictures or sounds, and text around them."""
GUIDED: Final = (MEDIA, MIXED)


def check_output_and_grid(params: OutputParams, layout: TokenLayout, unguided: str | None) -> None:
    """Raise an OptionError if the model does not support a request's ``output`` or ``grid``.

    ``layout`` describes the model's media tokens. ``unguided`` is the reason why answers cannot be restricted to
    complete pictures or sounds. It is None if they can.

    Raises:
        OptionError: the model does not support them.

    """
    if params.output in GUIDED:
        if unguided is not None:
            raise OptionError(f'output="{params.output}" is not available: {unguided}; leave it out', param="output")
    elif params.grid is not None and not params.partial_images:
        raise OptionError(
            'grid needs output="media" or "mixed", or partial_images; set one of them, or leave grid out',
            param="grid",
        )
    layout_with(layout, params.grid)


def layout_with(layout: TokenLayout, grid: tuple[int, int] | None) -> TokenLayout:
    """Return ``layout`` with the requested ``grid``. Raise OptionError if the model cannot write such a picture."""
    if grid is None or grid == layout.grid:
        return layout
    if layout.modality != "image" or layout.grid is not None:
        has = "sounds" if layout.modality != "image" else f"pictures of {layout.grid[0]} x {layout.grid[1]} codes"  # type: ignore[index]
        raise OptionError(
            f"grid asks for {grid[0]} x {grid[1]} codes, but the model writes {has}; leave it out", param="grid"
        )
    return replace(layout, grid=grid)


def guide(request: EngineCoreRequest, params: OutputParams, layout: TokenLayout, max_model_len: int) -> None:
    """Attach token rules (`Guide`) to a request whose answer may contain only complete pictures or sounds.

    The rules are added to the sampling params, from which the worker reads the rules. A request that does not ask for
    complete pictures or sounds stays unchanged.

    Args:
        request: request on its way to the engine. Its sampling params must not be shared.
        params: options of the request.
        layout: layout of the processor that the request asks for.
        max_model_len: maximum number of tokens of a prompt and its answer together.

    Raises:
        OptionError: the request asks for something impossible.

    """
    if params.output not in GUIDED or request.sampling_params is None:
        return
    try:
        _guide(request, request.sampling_params, params, layout_with(layout, params.grid), max_model_len)
    except OptionError as error:
        raise as_client_error(error) from None


def _guide(
    request: EngineCoreRequest, sampling: SamplingParams, params: OutputParams, layout: TokenLayout, length: int
) -> None:
    if request.resumable or request.prompt_token_ids is None:
        raise _wrong(params, "needs a complete prompt of tokens")
    if sampling.structured_outputs is not None:
        raise _wrong(params, "cannot be combined with structured outputs")
    prompt = request.prompt_token_ids
    media_only = params.output == MEDIA
    room = length - len(prompt)
    answer_guide = Guide.of(
        layout,
        alone=media_only,
        opened=layout.opened_by(prompt),
        budget=room if sampling.max_tokens is None else min(sampling.max_tokens, room),
        stops=_stops(sampling, layout, params),
    )
    least = TokenTracker(answer_guide).least
    if least > answer_guide.budget and (media_only or answer_guide.opened):
        raise OptionError(
            f"a whole {_NOUNS[layout.modality]} takes at least {least} tokens, but the answer may have only"
            f" {answer_guide.budget}; raise max_tokens, shorten the prompt, or ask for a smaller one",
            param="max_tokens",
        )
    if media_only and not answer_guide.stops:
        _end_without_eos(sampling, layout, params, least)
    sampling.extra_args = {**(sampling.extra_args or {}), KEY: answer_guide.to_wire()}


_NOUNS: Final = {"image": "picture", "audio": "sound"}


def _stops(sampling: SamplingParams, layout: TokenLayout, params: OutputParams) -> list[int]:
    """Return the tokens that end a request's answer, in ascending order.

    The end marker of pictures or sounds is not among these tokens, because an answer may contain the end marker. Raise
    an OptionError if another media token is a stop token.
    """
    eos = sampling.eos_token_id
    stops = {*(() if eos is None else (eos,)), *(sampling.stop_token_ids or ())} - {*layout.end[-1:]}
    media_stops = sorted(stops & layout.token_ids)
    if media_stops:
        raise _wrong(
            params,
            f"would be cut off by the stop token {media_stops[0]}, which is a media token; leave the stop token out",
        )
    return sorted(stops)


def _end_without_eos(sampling: SamplingParams, layout: TokenLayout, params: OutputParams, min_tokens: int) -> None:
    """Set a stop token or ``max_tokens``, so that the answer ends although the request lacks stop tokens."""
    if layout.end:
        sampling.stop_token_ids = sorted({*(sampling.stop_token_ids or ()), layout.end[-1]})
    elif layout.grid is not None:
        sampling.max_tokens = min_tokens
    else:
        raise _wrong(params, "needs a token that ends the answer; leave ignore_eos out, or set stop_token_ids")


def _wrong(params: OutputParams, fact: str) -> OptionError:
    return OptionError(f'output="{params.output}" {fact}', param="output")
