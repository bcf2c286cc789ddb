"""Recognize inputs in an unsupported form by their shape, and suggest a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError
from vllm_mmout.geo import first_of

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.band_choice import BandChoice


def other_form(shape: Sequence[int], images: int, choice: BandChoice) -> str:
    """Return a hint if the input has an unsupported form: an array with the bands last, or a file with several images.

    The hint is part of an error message about a wrong number of bands, and names the remedy. Return "" if the input has
    neither form.

    Args:
        shape: shape of an array; empty for any other input.
        images: number of images of equal size in the file, of which only the first is read.
        choice: the choice of bands by the model and the request.

    Raises:
        InputError: the array is a picture [height, width, 3], so that the request would choose its rows as bands.

    """
    fitting = (1, 3, 4) if choice.one_for_all else (len(choice.wanted),)
    if len(shape) == 3 and shape[-1] in fitting and shape[0] not in fitting:
        remedy = (
            f"an array must be [bands, height, width], and {list(shape)} seems to be [height, width, bands]: give"
            " np.moveaxis(array, -1, 0)"
        )
        if choice.one_for_all and choice.requested is not None:
            raise InputError(remedy)
        return remedy
    return first_of(images)
