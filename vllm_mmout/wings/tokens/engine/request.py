"""What a request for tokens wants beyond its sampling; it goes along with the sampling params, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import SamplingParams

from vllm_mmout.engine.request.decode import carrying
from vllm_mmout.params import OutputParams

KEY = "mmout"


@dataclass(slots=True)
class TokenRequest:
    """Of one request."""

    params: OutputParams
    decode: bool = True
    """Whether media are decoded; where they are not, their tokens are kept out of the text all the same."""


PLAIN = OutputParams()


def with_request(sampling: SamplingParams, asked: TokenRequest) -> SamplingParams:
    """A copy of sampling params that says what else is asked."""
    copied = sampling.clone()
    copied.extra_args = {**(sampling.extra_args or {}), KEY: asked}
    return copied


@contextmanager
def sent_apart(params: Any) -> Iterator[Any]:
    """Keep what is asked for whoever adds the request; gives a copy of the params that says nothing of it."""
    extra = getattr(params, "extra_args", None) or {}
    asked = extra.get(KEY)
    if not isinstance(asked, TokenRequest):
        yield params
        return
    sent = copy(params)
    sent.extra_args = {name: value for name, value in extra.items() if name != KEY} or None
    with carrying(asked):
        yield sent
