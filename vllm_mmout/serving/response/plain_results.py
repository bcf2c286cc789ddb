"""Prepare results that are PIL images, arrays or plain data for HTTP responses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from vllm_mmout.errors import OptionError
from vllm_mmout.outputs import ImageOutput, TensorOutput
from vllm_mmout.serving.response.result_files import MEDIA_TYPES

if TYPE_CHECKING:
    from vllm_mmout.serving.response.answer_budget import AnswerBudget

_NUMBER_BYTES: Final = 32
"""Estimated bytes of memory for converting an array element to JSON: a Python object and its text."""


def as_media(output: Any, budget: AnswerBudget) -> Any:
    """Wrap a PIL image in ImageOutput, or arrays in TensorOutput. Return any other output unchanged."""
    if hasattr(output, "getbands"):
        mode = "RGBA" if output.has_transparency_data else output.mode
        return ImageOutput(np.asarray(output if mode in ("L", "RGB") else output.convert(_mode(mode))))
    arrays = list(output.values()) if isinstance(output, Mapping) else [output]
    if not arrays or not all(_is_array(array) for array in arrays):
        return output
    budget.check(sum(array.nbytes for array in arrays), _arrays(arrays))
    return TensorOutput(output)


def as_json(output: Any, budget: AnswerBudget) -> tuple[bytes, str]:
    """Encode data as JSON, and return (bytes, media type).

    The data may be dicts, lists, texts, numbers, dataclasses, and objects of msgspec and pydantic. NaN becomes null.

    Raises:
        OptionError: the data holds other objects, or more bytes than the budget allows.

    """
    numbers = 0

    def plain(value: Any) -> Any:
        nonlocal numbers
        if _is_array(value):
            numbers += math.prod(value.shape)
            budget.check(numbers * _NUMBER_BYTES, f"{_arrays([value])} as JSON")
        return _plain(value)

    try:
        return msgspec.json.encode(output, enc_hook=plain), MEDIA_TYPES["json"]
    except (TypeError, NotImplementedError, ValueError, OverflowError, RecursionError) as error:
        raise OptionError(
            f"the processor returns {type(output).__name__}, which has no form over HTTP ({error}); choose another"
            " processor, or define its to_response(output, params), which returns (bytes, media type) or JSON",
            param="processor",
        ) from error


def _mode(mode: str) -> str:
    return "RGBA" if mode == "RGBA" else "L" if mode in ("1", "LA", "La") else "RGB"


def _is_array(value: Any) -> bool:
    return (isinstance(value, np.ndarray) and not value.dtype.hasobject) or (
        hasattr(value, "detach") and hasattr(value, "cpu")
    )


def _arrays(arrays: Iterable[Any]) -> str:
    """Describe arrays by dtype and shape, for error messages."""
    return ", ".join(f"an array of {array.dtype} {[*array.shape]}" for array in arrays)


def _plain(value: Any) -> Any:
    """Convert an object that msgspec cannot encode to plain data."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if _is_array(value):
        array = value.detach().cpu().float().numpy() if hasattr(value, "detach") else value
        return array.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} is none of JSON")
