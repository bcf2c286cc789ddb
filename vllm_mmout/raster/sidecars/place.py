"""Where a raster lies, of all that it and its neighbours say, in GDAL's order: PAM, the raster itself, a world file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vllm_mmout.raster.georeference import Georeference
from vllm_mmout.raster.sidecars.world_file import read_world_file

if TYPE_CHECKING:
    from vllm_mmout.raster.sidecars.neighbours import Neighbours
    from vllm_mmout.raster.sidecars.pam import Pam


def placed(own: Georeference | None, pam: Pam, neighbours: Neighbours) -> Georeference | None:
    """The georeference of a raster; coordinate system and transform may come from different places.

    A transform makes ground control points needless, which a `Georeference` holds in its stead.

    Args:
        own: what the raster says.
        pam: what PAM says.
        neighbours: the files beside it.

    Raises:
        InputError: a world file is needed, and wrong.

    """
    base = Georeference() if own is None else own
    transform = pam.transform or base.transform
    if transform is None:
        transform = read_world_file(neighbours)
    crs = pam.crs or base.crs or base.gcps_crs
    gcps = () if transform is not None else pam.gcps or base.gcps
    gcps_crs = (pam.gcps_crs if pam.gcps else None) or pam.crs or base.gcps_crs
    found = replace(
        base, crs=None if gcps else crs, transform=transform, gcps=gcps, gcps_crs=gcps_crs if gcps else None
    )
    return own if found == base else found
