"""Check and encode the prompts beside a picture in a request: texts, points, boxes, or another picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError

IMAGE: Final = "image"
"""Name of the request field with the picture."""
TEXTS: Final = "texts"
"""Name of the tensor with a request's candidate texts, encoded as a JSON list in uint8 [bytes]."""
PICTURES: Final = frozenset({"other_image", "trimaps"})
"""Names of the prompt fields that hold a picture."""
_FIELD_NDIMS: Final = {"input_points": 3, "input_labels": 2, "input_boxes": 2, "boxes": 2}
"""Number of axes of each numeric field. For example, ``input_points`` has 3: objects, their points, and (x, y)."""


def checked(prompt: Mapping[str, Any], takes: Sequence[str], needs: Sequence[str], *, question: bool) -> dict[str, Any]:
    """Check the fields ``prompt`` of a request, and return the fields that have a value.

    Raise InputError if a field is not in ``takes``, or if the request has no field of ``needs``. If ``question`` is
    True, the field ``text`` is a single text instead of a list.
    """
    given = {name: value for name, value in prompt.items() if value is not None}
    if needs and not given.keys() & set(needs):
        raise InputError(
            f'the model needs {" or ".join(needs)} beside the picture: {{"image": ..., "{needs[0]}": ...}}'
        )
    if unknown := [name for name in given if name not in takes]:
        beside = ", ".join(takes) or "nothing"
        raise InputError(f"the model takes {beside} beside the picture, got {', '.join(unknown)}; leave it out")
    fields = {name: _checked_field(name, value) for name, value in given.items()}
    if question and "text" in fields:
        if len(fields["text"]) > 1:
            raise InputError(f"text must be one text, got {len(fields['text'])}; send a request for each")
        fields["text"] = fields["text"][0]
    return fields


def example(name: str, picture: NDArray[Any]) -> Any:
    """Return a valid value of the prompt field ``name``, for a trial run of the model on ``picture``."""
    height, width = picture.shape[-2:]
    if name in PICTURES:
        return picture
    if name in _FIELD_NDIMS:
        return [[width // 2, height // 2]] if name == "input_points" else [[0, 0, width, height]]
    return ["panoptic"] if name == "task_inputs" else ["a"]


def as_tensor(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Encode texts as an array, uint8 [bytes], so that they can be sent together with tensors."""
    return np.frombuffer(json.dumps(list(texts)).encode(), np.uint8)


def as_texts(tensor: Any) -> list[str]:
    """Decode the texts that `as_tensor` encoded."""
    texts: list[str] = json.loads(bytes(tensor.tolist()))
    return texts


def processed(
    processor: Any, picture: Any, prompt: Mapping[str, Any], *, question: bool, repeated: bool, padding: str
) -> Any:
    """Run a transformers processor on one picture and the prompt fields of its request.

    ``question``: see `checked`. If ``repeated`` is True, the picture is passed once for each text.
    """
    fields = {name: value for name, value in prompt.items() if name != "other_image"}
    nested_fields = {
        name: [value] for name, value in fields.items() if name in _FIELD_NDIMS or (name == "text" and not padding)
    }
    if len(fields.get("text", ())) == 1 and not padding:
        nested_fields["text"] = fields["text"]  # one text may name several things: "a boat. a pier."
    nested = fields if question else fields | nested_fields
    texts = prompt.get("text")
    if padding:
        nested["padding"] = padding
    images = [[picture, prompt["other_image"]]] if "other_image" in prompt else picture
    return processor(images=[picture] * len(texts) if texts and repeated else images, **nested, return_tensors="pt")


def _checked_field(name: str, value: Any) -> Any:
    if name in PICTURES:
        return value
    if name in _FIELD_NDIMS:
        return _checked_numbers(name, value)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"{name} must be a text, or a list of texts, none of them empty, got {value!r:.200}")
    return list(texts)


def _checked_numbers(name: str, value: Any) -> Any:
    try:
        numbers = np.asarray(value)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    axes = _FIELD_NDIMS[name]
    if numbers.ndim == axes - 1:  # the values of a single object
        numbers = numbers[np.newaxis]
    last = {"input_points": 2, "input_boxes": 4, "boxes": 4}.get(name)
    fits_shape = (
        numbers.dtype.kind in "iuf"
        and numbers.ndim == axes
        and numbers.size
        and (last is None or numbers.shape[-1] == last)
    )
    if not fits_shape or not np.isfinite(numbers).all():
        shape = ", ".join(("objects", "points", "2")[:axes] if last is None or last == 2 else ("objects", "4"))
        raise InputError(f"{name} must be finite numbers [{shape}] in pixels of the picture, got {value!r:.200}")
    whole = name == "input_labels" or numbers.dtype.kind in "iu"
    return numbers.astype(np.int64 if whole else np.float64).tolist()
