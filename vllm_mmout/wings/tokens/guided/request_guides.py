"""Guides in the sampling params of requests. A client's guide is refused, the engine's guide is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vllm_mmout.engine.hooks.client_errors import InvalidOptionError
from vllm_mmout.errors import MMOutError
from vllm_mmout.log import logger
from vllm_mmout.wings.tokens.guided.guide import KEY, Follower, Guide

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


def refuse_foreign(params: SamplingParams) -> None:
    """Raise an error if sampling params hold a guide before the engine has made a guide, so a client has sent it."""
    if KEY in (params.extra_args or {}):
        raise InvalidOptionError(
            f'{KEY} is reserved for the engine; leave it out, and ask for whole media by OutputParams(output="media")'
            " or /v1/images/generations",
            param=KEY,
        )


def follower_of(params: SamplingParams) -> Follower | None:
    """Return the follower of a request's tokens, or None if the request is not guided. Never raises."""
    if not params.extra_args or KEY not in params.extra_args:
        return None
    try:
        guide = Guide.from_args(params.extra_args)
        return None if guide is None else Follower(guide)
    except (MMOutError, msgspec.ValidationError, ValueError):
        logger.exception("vllm_mmout: a request cannot be guided, and is answered without guidance")
        return None
