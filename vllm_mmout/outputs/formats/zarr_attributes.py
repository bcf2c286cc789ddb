"""Attributes of rasters in Zarr stores, by the CF and GeoZarr conventions."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.outputs.data_array import attributes

if TYPE_CHECKING:
    import numpy as np

    from vllm_mmout.outputs.raster import RasterOutput

_CONVENTIONS: Final = {
    "multiscales": ("multiscales", "d35379db-88df-4056-af3a-620245f8e347", "multiscales"),
    "proj": ("geo-proj", "f17cb550-5864-4468-aeb7-f3180cfb622f", "proj:"),
    "spatial": ("spatial", "689b58e2-cf7b-45e0-9fff-9cfc0883d6b4", "spatial:"),
}
"""Maps prefixes of attribute names to Zarr conventions. Each convention is (GitHub repository, UUID, name)."""
TIME_ATTRIBUTES: Final = {
    "standard_name": "time",
    "axis": "T",
    "units": "days since 1970-01-01",
    "calendar": "proleptic_gregorian",
}
"""Attributes of the coordinate "time", by the CF conventions."""


def cf_attributes(output: RasterOutput, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the CF attributes of a raster: nodata, scales, names of bands, units and classes."""
    stated = attributes(output, dtype)
    if "_FillValue" in stated:
        value = stated["_FillValue"].item()  # xarray reads a float as the base64 of a float64
        stated["_FillValue"] = base64.b64encode(struct.pack("<d", value)).decode() if dtype.kind == "f" else value
    if stated.pop("scale_factor", None) is not None:
        scales = list(map(float, output.scales))
        if len(set(scales)) == 1:
            stated |= {"scale_factor": scales[0], "add_offset": 0.0}
        else:  # xarray refuses a list as scale_factor; rioxarray uses these names for the bands of a GeoTIFF
            stated |= {"scales": scales, "offsets": [0.0] * len(scales)}
    for name in ("long_name", "units"):
        if isinstance(stated.get(name), tuple):
            stated[name] = list(stated[name])
    if output.class_names is not None:
        stated["flag_values"] = list(range(len(output.class_names)))
        stated["flag_meanings"] = " ".join("_".join(name.split()) or "_" for name in output.class_names)
    if output.palette is not None:
        stated["flag_colors"] = " ".join(
            f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in output.palette.tolist()
        )
    return stated


def convention(name: str) -> dict[str, str]:
    """Return the entry for a convention in the attribute ``zarr_conventions``. ``name`` is a key of `_CONVENTIONS`."""
    repository, uuid, title = _CONVENTIONS[name]
    return {
        "schema_url": f"https://raw.githubusercontent.com/zarr-conventions/{repository}/refs/tags/v1/schema.json",
        "spec_url": f"https://github.com/zarr-conventions/{repository}/blob/v1/README.md",
        "uuid": uuid,
        "name": title,
    }
