"""Options for joining the results of several inputs to one map."""

from __future__ import annotations

from typing import Annotated, Literal

from vllm_mmout.errors import OptionError
from vllm_mmout.option import said
from vllm_mmout.params.processors import wrong
from vllm_mmout.params.tiling import Tiling

PIXEL_SIZES = (1e-9, 1e9)
"""Smallest and largest pixel size that a map may have, in units of the map's coordinate system."""


class MosaicOptions(Tiling, frozen=True, kw_only=True):
    """Options for joining the results of several inputs to one map."""

    mosaic: Annotated[
        Literal["newest", "first", "clear", "confident"] | None,
        said(
            "join the results of several inputs to one map, and which result to use where they overlap: of the newest"
            " input, of the first in the order given, of the input with the fewest pixels without data, or for each"
            " pixel the class with the highest probability. By default several files are the bands of one input.",
            bare="newest",
        ),
    ] = None
    mosaic_grid: Annotated[
        tuple[str, float] | None,
        said(
            "coordinate system and pixel size of the map of a mosaic, such as EPSG:3035,10. Edges of pixels are"
            " multiples of the size. By default the grid of the first input.",
            metavar="CRS,SIZE",
            flag="--grid",
        ),
    ] = None
    each_day: Annotated[
        bool,
        said(
            "make a map of each day (UTC) of the inputs of a mosaic, in place of one map. All maps have the same grid."
            " The result is a dict of maps by day, such as 2024-06-01; over HTTP each result names its day."
        ),
    ] = False
    skip_failed: Annotated[
        bool,
        said(
            "leave inputs that fail out of a mosaic, and name them among the assumptions. By default the request fails."
        ),
    ] = False

    def _check_mosaic_options(self) -> None:
        if self.mosaic is None:
            for name in ("mosaic_grid", "each_day", "skip_failed"):
                if getattr(self, name):
                    raise OptionError(f'{name} is set without mosaic; set mosaic="newest" too', param=name)
        if self.mosaic_grid is not None:
            least, most = PIXEL_SIZES
            if not least <= self.mosaic_grid[1] <= most:  # false for NaN, too
                raise wrong("mosaic_grid", f"must have a pixel size of {least} to {most}, got {self.mosaic_grid[1]}")
