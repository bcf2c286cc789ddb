"""TokenRequest: the options of a request that vLLM does not know. They are attached to its sampling params."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import SamplingParams

from vllm_mmout.engine.request.request import carrying
from vllm_mmout.params import OutputParams

KEY = "mmout"


@dataclass(slots=True)
class TokenRequest:
    """The options of one request in addition to its sampling params."""

    params: OutputParams
    decode: bool = True
    """Whether pictures and sounds are decoded. If False, their tokens are still kept out of the text."""


PLAIN = OutputParams()


def with_request(sampling: SamplingParams, token_request: TokenRequest) -> SamplingParams:
    """Return a copy of sampling params that carries the other options of a request."""
    copied = sampling.clone()
    copied.extra_args = {**(sampling.extra_args or {}), KEY: token_request}
    return copied


@contextmanager
def sent_apart(params: Any) -> Iterator[Any]:
    """Yield a copy of sampling params without this package's options, which must not be sent to the engine's process.

    Inside the context, `ticket` returns these options.
    """
    extra = getattr(params, "extra_args", None) or {}
    token_request = extra.get(KEY)
    if not isinstance(token_request, TokenRequest):
        yield params
        return
    sent = copy(params)
    sent.extra_args = {name: value for name, value in extra.items() if name != KEY} or None
    with carrying(token_request):
        yield sent
