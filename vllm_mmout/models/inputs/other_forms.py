"""Forms of an input that are not those taken, told by their shape, and what to do with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError
from vllm_mmout.geo import first_of

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.band_choice import BandChoice


def other_form(shape: Sequence[int], images: int, choice: BandChoice) -> str:
    """Return what form an input seems to have whose bands do not fit the model, and the remedy; "" for the usual form.

    Args:
        shape: of an array; empty of any other input.
        images: images of one size that the file holds, of which the first is read.
        choice: the bands that the model and the request choose.

    Raises:
        InputError: a picture [height, width, 3], whose rows the request would choose as bands.

    """
    fitting = (1, 3, 4) if choice.one_for_all else (len(choice.wanted),)
    if len(shape) == 3 and shape[-1] in fitting and shape[0] not in fitting:
        remedy = (
            f"an array must be [bands, height, width], and {list(shape)} seems to be [height, width, bands]: give"
            " np.moveaxis(array, -1, 0)"
        )
        if choice.one_for_all and choice.asked is not None:
            raise InputError(remedy)
        return remedy
    return first_of(images)
