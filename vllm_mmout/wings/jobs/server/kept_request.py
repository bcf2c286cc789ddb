"""Store the request of a job as JSON, so that any server can restart the job."""

from __future__ import annotations

import json
from typing import Final

import msgspec

from vllm_mmout.params import OPTIONS, OutputParams
from vllm_mmout.serving.request.fields import ImageRequest

_KEPT: Final = ("images", "model", "output_format", "output_compression", "background")
_OPTIONS: Final = "given"
"""JSON key of the options in a stored request. Only options that differ from their default are stored."""


def encode_request(request: ImageRequest) -> str | None:
    """Encode a request as JSON for other servers. Return None if the request has uploaded files or data URLs."""
    if not all(isinstance(image, str) and image[:5].lower() != "data:" for image in request.images):
        return None
    defaults = OutputParams()
    options = {name: getattr(request.options, name) for name in OPTIONS}
    changed = {name: value for name, value in options.items() if value != getattr(defaults, name)}
    values = {name: getattr(request, name) for name in _KEPT}
    return json.dumps(msgspec.to_builtins({**values, _OPTIONS: changed}))  # unlike msgspec, json keeps NaN


def decode_request(text: str) -> ImageRequest:
    """Decode a request that `encode_request` encoded as JSON."""
    values = json.loads(text)
    options = OutputParams.from_mapping(values.pop(_OPTIONS))
    fields = {name: values[name] for name in _KEPT if name in values}  # a newer release may have stored others
    return ImageRequest(**{**fields, "images": tuple(values["images"])}, options=options)
