"""Options for cutting large inputs into tiles."""

from __future__ import annotations

from typing import Annotated, Literal

from vllm_mmout.option import said
from vllm_mmout.params.processors import wrong
from vllm_mmout.params.steps import SteppingOptions


class Tiling(SteppingOptions, frozen=True, kw_only=True):
    """Options for cutting an input that is too large for one forward pass into tiles, and for joining the results."""

    tile: Annotated[
        int | None,
        said(
            "side of the square tiles that larger inputs are cut into. By default the model's, used only for an input"
            " that is too large for one forward pass.",
            ge=1,
            unit="pixels",
        ),
    ] = None
    overlap: Annotated[
        int,
        said(
            "width of the overlap of neighbouring tiles, at most half a tile. Its outer quarters are discarded, since a"
            " tile lacks context there; the middle half is blended.",
            ge=0,
            unit="pixels",
        ),
    ] = 0
    blend: Annotated[
        Literal["cosine", "linear", "none"],
        said(
            "how values are averaged where tiles overlap: along a cosine or linear ramp, or not. With none, each pixel"
            " is taken from the tile whose centre is nearest. Probabilities are averaged before the class is chosen;"
            " class ids of processors without probabilities are taken as with none."
        ),
    ] = "cosine"

    def _check_tiles(self) -> None:
        if self.tile is not None and 2 * self.overlap > self.tile:
            raise wrong("overlap", f"must be at most half a tile, got {self.overlap} for tile={self.tile}")
