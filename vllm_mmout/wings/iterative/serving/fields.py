"""Parse image requests to iterative models: the common fields, the number of results ``n``, and a mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec

from vllm_mmout.option import Option, options_of, said
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.inputs.uploads import ReceivedForm, Upload
from vllm_mmout.serving.request import fields as common
from vllm_mmout.serving.request.fields import Fields, ImageRequest

MASK: Final = "mask"
_OTHERS_SEED: Final = 2**63


class _CountField(msgspec.Struct, frozen=True, kw_only=True):
    n: Annotated[int, said("how many results, each of a seed of its own: the next ones.", ge=1, le=10)] = 1


def _with_count(fields: Fields, *apart: str) -> Fields:
    """Return a copy of the definitions ``fields`` with the additional request field ``n``, the number of results.

    Each result has its own random seed. The route parses the fields ``apart`` itself.
    """
    options: Mapping[str, Option] = {**fields.options, **options_of(_CountField)}
    refused = {name: why for name, why in fields.refused.items() if name not in apart}
    return replace(fields, options=options, refused=refused, apart=(*fields.apart, *apart))


EDITS: Final = _with_count(common.EDITS, MASK)
GENERATIONS: Final = _with_count(common.GENERATIONS)


def count_of(values: Mapping[str, Any]) -> int:
    """Return the number of results from the field ``n``. Raise ApiError if another field conflicts with ``n``.

    For example, ``stream`` works only with one result.
    """
    count = int(values.get("n", 1))
    seed = values.get("seed")
    if seed is not None and isinstance(seed, int) and seed + count > _OTHERS_SEED:
        raise ApiError(400, f"seed must be at most {_OTHERS_SEED - count} for n={count}, got {seed}", param="seed")
    if count > 1:
        for name in ("stream", "path"):
            if values.get(name):
                raise ApiError(400, f"{name} works only with one result; leave out n, or {name}", param="n")
    return count


def generation_request(body: Any) -> tuple[ImageRequest, int]:
    """Parse the JSON body of ``/v1/images/generations``. Return the request and the number of results."""
    values = GENERATIONS.of_object(body)
    image_request = common.request_of(values)
    if not image_request.prompt:
        raise ApiError(400, "prompt is missing; send the text that describes the image", param="prompt")
    return image_request, count_of(values)


def edit_request(body: ReceivedForm | Any) -> tuple[ImageRequest, int, Upload | str | None]:
    """Parse the body of ``/v1/images/edits``. Return the request, the number of results, and the mask or None."""
    values = EDITS.values(body)
    mask = _form_mask(body) if isinstance(body, ReceivedForm) else _json_mask(body)
    return common.request_of(values, common.images_of(body)), count_of(values), mask


def _form_mask(form: ReceivedForm) -> Upload | None:
    masks = [mask for mask in form.files.get(MASK, ()) if mask.size or mask.name]
    if len(masks) > 1 or form.fields.get(MASK):
        raise ApiError(400, "mask must be one file, a picture that is white where the result is new", param=MASK)
    return masks[0] if masks else None


def _json_mask(body: Mapping[str, Any]) -> str | None:
    mask = body.get(MASK)
    mask = mask.get("image_url") if isinstance(mask, Mapping) and len(mask) == 1 else mask
    if mask is not None and not isinstance(mask, str):
        raise ApiError(400, 'mask must be a URL or data URL, or {"image_url": ...}', param=MASK)
    return mask
