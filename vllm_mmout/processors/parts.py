"""`Parts`, an iterator over the decoded tiles of a scene, which `OutputProcessor.assemble` joins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.processors.part import Part

if TYPE_CHECKING:
    from vllm_mmout.geo import TileGrid
    from vllm_mmout.outputs import RasterOutput
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.partial_images import PartialImages
    from vllm_mmout.params import OutputParams


class Parts(Iterator[Part]):
    """Iterator over the decoded parts of a scene, such as tiles, in order of arrival.

    Parts without an output are left out.

    ``grid`` holds the windows of the tiles, by ``Part.index``. ``source`` is the scene. ``folder`` is the folder for a
    result on disk, or None for the system's folder for temporary files. ``growing`` receives the rectangles that
    `mosaic` has finished.
    """

    def __init__(
        self,
        parts: Iterable[Part],
        *,
        grid: TileGrid,
        source: Source,
        folder: Path | None = None,
        growing: PartialImages | None = None,
    ) -> None:
        self._parts = iter(parts)
        self.grid = grid
        self.source = source
        self.folder = folder
        self._growing = growing

    def __next__(self) -> Part:
        return next(part for part in self._parts if part.output is not None)

    def blocks(self) -> Iterator[Sequence[Part]]:
        """Return an iterator over the decoded tiles in groups. The tiles of a group were decoded together.

        Tiles without valid pixels are included.
        """
        parts: Any = self._parts
        return parts.blocks() if hasattr(parts, "blocks") else ([part] for part in parts)

    def every(self) -> Iterator[Part]:
        """Return an iterator over all parts of the scene. The output of a part without valid pixels is None.

        Parts without valid pixels were not sent to the model.
        """
        return self._parts

    def mosaic(
        self, params: OutputParams, finish: Callable[[RasterOutput], RasterOutput] | None = None
    ) -> RasterOutput:
        """Join the tiles of a scene into a `StoredRaster` on disk. The function ``finish`` converts the joined pixels.

        The raster has the georeference of the scene. If tiles overlap, the memory needed grows with a side of the
        scene, not with its area. ``params`` say how the tiles are blended. ``finish`` turns joined values into the
        result, pixel by pixel, on rectangles of any size: averaged probabilities into classes, for example. Raises
        DecodeError if an output is not a raster, or if the tiles do not fit together.
        """
        from vllm_mmout.processors.mosaic import mosaic

        blend = params.blend if params.overlap and self.grid.overlap else "none"
        return mosaic(
            self.blocks(),
            self.grid,
            blend=blend,
            finish=finish,
            folder=self.folder,
            source=self.source,
            growing=self._growing,
        )
