"""vLLM's sampling fields beside those of OpenAI's routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams

from vllm_mmout.serving.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

HINTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), float | None),
    **dict.fromkeys(("top_k", "seed", "max_tokens", "min_tokens"), int | None),
    **dict.fromkeys(("allowed_token_ids", "stop_token_ids"), tuple[int, ...] | None),
    "stop": str | tuple[str, ...] | None,
    "ignore_eos": bool | None,
}
"""Field -> its type, for `vllm_mmout.serving.field_types.converted`."""
_SEEDS: Final = 1 << 63


def sampling_params(
    given: Mapping[str, Any], usual: Mapping[str, Any], *, n: int, length: int | None, left: int
) -> SamplingParams:
    """What a request is sampled with.

    Args:
        given: fields of `HINTS` that a client has sent.
        usual: those of the model's ``generation_config.json``.
        n: answers.
        length: tokens of an answer where the client names no ``max_tokens``; None: as there is room for.
        left: tokens that the model's length leaves after the prompt.

    Raises:
        ApiError: a value is refused by vLLM, or ``max_tokens`` is more than is left (400); it names the field.

    """
    most = given.get("max_tokens")
    if most is not None and most > left:
        raise ApiError(
            400,
            f"max_tokens must be at most {left}, which is what the prompt leaves of the model's length, got {most}",
            param="max_tokens",
        )
    limits = (left, length) if most is None else (most,)
    asked = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    chosen = {**usual, **asked, "n": n, "max_tokens": min(limit for limit in limits if limit is not None)}
    seed = chosen.get("seed")
    if seed is not None and not -_SEEDS <= seed < _SEEDS - n:  # each further answer takes the next one
        raise ApiError(400, f"seed must be a number of 64 bits, got {seed}", param="seed")
    try:
        return SamplingParams(**chosen, output_kind=RequestOutputKind.FINAL_ONLY)
    except VLLMValidationError as error:
        raise ApiError(400, Exception.__str__(error), param=_field(error, (*HINTS, "n"))) from error


def _field(error: VLLMValidationError, names: Sequence[str]) -> str | None:
    """The field that an error of vLLM's is about: as it says, or the first that its message names."""
    named = getattr(error, "parameter", None)
    if named is not None:
        return str(named)
    words = str(error).replace(",", " ").split()
    return next((word for word in words if word in names), None)
