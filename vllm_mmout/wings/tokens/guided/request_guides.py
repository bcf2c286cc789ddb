"""Read a request's token rules (`Guide`), which the engine puts in the sampling params. Refuse rules set by clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vllm_mmout.engine.hooks.client_errors import InvalidOptionError
from vllm_mmout.errors import MMOutError
from vllm_mmout.log import logger
from vllm_mmout.wings.tokens.guided.guide import KEY, Guide, TokenTracker

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


def refuse_client_rules(params: SamplingParams) -> None:
    """Raise an error if a client's sampling params contain token rules (`Guide`). Only the engine may set them."""
    if KEY in (params.extra_args or {}):
        raise InvalidOptionError(
            f'{KEY} is reserved for the engine; leave it out, and ask for whole media by OutputParams(output="media")'
            " or /v1/images/generations",
            param=KEY,
        )


def tracker_of(params: SamplingParams) -> TokenTracker | None:
    """Return a tracker of the tokens that may come next, or None for requests without token rules (`Guide`).

    Malformed rules are logged as an error. The answer is then not restricted, and None is returned.
    """
    if not params.extra_args or KEY not in params.extra_args:
        return None
    try:
        guide = Guide.from_args(params.extra_args)
        return None if guide is None else TokenTracker(guide)
    except (MMOutError, msgspec.ValidationError, ValueError):
        logger.exception("vllm_mmout: a request cannot be guided, and is answered without guidance")
        return None
