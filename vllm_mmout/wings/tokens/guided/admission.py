"""Admission of requests that ask for whole media: what cannot be is refused, what can be travels to the worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vllm_mmout.engine.hooks.validation import as_client_error
from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.guided.guide import KEY, Follower, Guide
from vllm_mmout.wings.tokens.layouts import TokenLayout

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

MEDIA: Final = "media"
"""``OutputParams.output`` of answers that are one medium and nothing else."""
MIXED: Final = "mixed"
"""``OutputParams.output`` of answers whose media are whole, with text around them."""
GUIDED: Final = (MEDIA, MIXED)


def check_asked(params: OutputParams, layout: TokenLayout, unguided: str | None) -> None:
    """Check what a request asks of a model with a layout; ``unguided``: why none of its requests can be guided.

    Raises:
        OptionError: it cannot be.

    """
    if params.output in GUIDED:
        if unguided is not None:
            raise OptionError(f'output="{params.output}" is not to be had: {unguided}; leave it out', param="output")
    elif params.grid is not None and not params.partial_images:
        raise OptionError(
            'grid goes with output="media" or "mixed", or with partial_images; set one of them, or leave it out',
            param="grid",
        )
    layout_with(layout, params.grid)


def layout_with(layout: TokenLayout, grid: tuple[int, int] | None) -> TokenLayout:
    """The layout of pictures of a grid that a request asks for."""
    if grid is None or grid == layout.grid:
        return layout
    if layout.modality != "image" or layout.grid is not None:
        has = "sounds" if layout.modality != "image" else f"pictures of {layout.grid[0]} x {layout.grid[1]} codes"  # type: ignore[index]
        raise OptionError(
            f"grid asks for {grid[0]} x {grid[1]} codes, and the model writes {has}; leave it out", param="grid"
        )
    return replace(layout, grid=grid)


def guide(request: EngineCoreRequest, params: OutputParams, layout: TokenLayout, max_model_len: int) -> None:
    """Let the worker guide a request that asks for it; any other stays as it is.

    Args:
        request: as it goes to the engine; its sampling params are its own.
        params: what it asks for.
        layout: of the processor that it asks for.
        max_model_len: tokens of a prompt and its answer.

    Raises:
        OptionError: it asks for what cannot be.

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
        raise _wrong(params, "needs a prompt of tokens that is there as a whole")
    if sampling.structured_outputs is not None:
        raise _wrong(params, "and structured outputs contradict each other")
    prompt = request.prompt_token_ids
    alone = params.output == MEDIA
    left = length - len(prompt)
    made = Guide.of(
        layout,
        alone=alone,
        opened=layout.opened_by(prompt),
        budget=left if sampling.max_tokens is None else min(sampling.max_tokens, left),
        stops=_stops(sampling, layout, params),
    )
    least = Follower(made).least
    if least > made.budget and (alone or made.opened):
        raise OptionError(
            f"a whole {_NOUNS[layout.modality]} takes {least} tokens or more, and the answer may have {made.budget};"
            " raise max_tokens, shorten the prompt, or ask for a smaller one",
            param="max_tokens",
        )
    if alone and not made.stops:
        _end_without_eos(sampling, layout, params, least)
    sampling.extra_args = {**(sampling.extra_args or {}), KEY: made.to_wire()}


_NOUNS: Final = {"image": "picture", "audio": "sound"}


def _stops(sampling: SamplingParams, layout: TokenLayout, params: OutputParams) -> list[int]:
    """The tokens that end an answer; the last one of the end marker does so by itself."""
    eos = sampling.eos_token_id
    stops = {*(() if eos is None else (eos,)), *(sampling.stop_token_ids or ())} - {*layout.end[-1:]}
    within = sorted(stops & layout.token_ids)
    if within:
        raise _wrong(params, f"would be cut by the stop token {within[0]}, which is of the layout; leave it out")
    return sorted(stops)


def _end_without_eos(sampling: SamplingParams, layout: TokenLayout, params: OutputParams, least: int) -> None:
    """End an answer with its only medium where no token does so."""
    if layout.end:
        sampling.stop_token_ids = sorted({*(sampling.stop_token_ids or ()), layout.end[-1]})
    elif layout.grid is not None:
        sampling.max_tokens = least
    else:
        raise _wrong(params, "needs a token that ends the answer; leave ignore_eos out, or set stop_token_ids")


def _wrong(params: OutputParams, fact: str) -> OptionError:
    return OptionError(f'output="{params.output}" {fact}', param="output")
