"""Parts: the decoded parts of one scene, as they come, and how the tiles of a raster are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.outputs import RasterOutput
    from vllm_mmout.outputs.growing import Growing
    from vllm_mmout.outputs.source import Source
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Part
    from vllm_mmout.tiling.grid import TileGrid


class Parts(Iterator["Part"]):
    """Iterates over the parts that have an output, in order of arrival; each is given once.

    Args:
        parts: all parts, those without any observation included.
        grid: where the tiles lie; ``Part.index`` counts them.
        source: the scene.
        folder: where a result on disk is to be made, None for the system's folder for temporary files.
        growing: shown what `mosaic` has finished; None: nobody looks.

    """

    def __init__(
        self,
        parts: Iterable[Part],
        *,
        grid: TileGrid,
        source: Source,
        folder: Path | None = None,
        growing: Growing | None = None,
    ) -> None:
        self._parts = iter(parts)
        self.grid = grid
        self.source = source
        self.folder = folder
        self._growing = growing

    def __next__(self) -> Part:
        return next(part for part in self._parts if part.output is not None)

    def every(self) -> Iterator[Part]:
        """Those parts as well that were not given to the model, since their input holds no observation."""
        return self._parts

    def mosaic(
        self, params: OutputParams, finish: Callable[[RasterOutput], RasterOutput] | None = None
    ) -> RasterOutput:
        """Join tiles of a raster into one on disk.

        The memory for it grows with a side of the scene where tiles overlap, never with its area.

        Args:
            params: options of the request; ``overlap`` and ``blend`` say how tiles are joined.
            finish: makes the result of joined values, pixel by pixel: classes of averaged probabilities. It is called
                on rectangles of any size.

        Returns:
            A `StoredRaster`, which lies on the scene.

        Raises:
            DecodeError: an output is no raster, or tiles do not fit together.
            SaveError: the raster cannot be written.

        """
        from vllm_mmout.tiling.mosaic import mosaic

        blend = params.blend if params.overlap and self.grid.overlap else "none"
        return mosaic(
            self.every(),
            self.grid,
            blend=blend,
            finish=finish,
            folder=self.folder,
            source=self.source,
            growing=self._growing,
        )
