"""`StoredGrid`: the grid of a raster in a Zarr store, and its attributes by the GeoZarr conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.geo import epsg_code
from vllm_mmout.outputs.data_array import spatial_ref
from vllm_mmout.outputs.formats.zarr_attributes import convention

if TYPE_CHECKING:
    from vllm_mmout.geo import Affine

DIMS: Final = ("band", "y", "x")
"""Names of the axes of a raster."""


@dataclass(frozen=True, slots=True)
class StoredGrid:
    """Size and georeference of a raster, or of a reduced copy of it."""

    size: tuple[int, int]
    """Height and width in pixels."""
    crs: str | None
    transform: Affine | None

    @property
    def half(self) -> StoredGrid:
        """Grid of a copy of the raster with half as many rows and columns. Half of an odd number is rounded up."""
        height, width = self.size
        transform = self.transform
        if transform is not None:
            a, b, c, d, e, f = transform
            transform = (2 * a, 2 * b, c, 2 * d, 2 * e, f)
        return StoredGrid((-(-height // 2), -(-width // 2)), self.crs, transform)

    @property
    def spatial(self) -> dict[str, Any]:
        """Attributes of the grid with the prefix ``spatial:``, or an empty dict if the transform is unknown."""
        if self.transform is None:
            return {}
        a, b, c, d, e, f = self.transform
        height, width = self.size
        corners = [(a * col + b * row + c, d * col + e * row + f) for col in (0, width) for row in (0, height)]
        xs, ys = zip(*corners, strict=True)
        return {
            "spatial:dimensions": list(DIMS[1:]),
            "spatial:shape": [height, width],
            "spatial:transform": list(self.transform),
            "spatial:bbox": [min(xs), min(ys), max(xs), max(ys)],
        }

    @property
    def attributes(self) -> dict[str, Any]:
        """Zarr attributes of the grid, with the prefixes ``proj:`` and ``spatial:``, and the list ``zarr_conventions``.

        The list ``zarr_conventions`` declares the conventions that define the prefixes. The dict is empty if the grid
        has neither a CRS nor a transform.
        """
        proj: dict[str, Any] = {}
        if self.crs is not None:
            is_code = epsg_code(self.crs) is not None
            proj = {"proj:code": self.crs} if is_code else {"proj:wkt2": spatial_ref(self.crs, None)["crs_wkt"]}
        spatial = self.spatial
        names = [name for name, stated in (("proj", proj), ("spatial", spatial)) if stated]
        return {"zarr_conventions": [convention(name) for name in names], **proj, **spatial} if names else {}
