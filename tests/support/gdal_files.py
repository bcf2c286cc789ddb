"""Files that GDAL alone reads, made by rasterio."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import numpy as np
import rasterio
import rasterio.shutil
from rasterio.errors import NotGeoreferencedWarning
from rasterio.io import MemoryFile
from rasterio.transform import Affine

UTM = {"crs": "EPSG:32632", "transform": Affine(10, 0, 5e5, 0, -10, 5e6)}
LOSSLESS = {"QUALITY": "100", "REVERSIBLE": "YES"}
RNG = np.random.default_rng(3)


def tiff(path: Path, array: np.ndarray, *, mask=None, descriptions=(), tags=None, rpcs=None, **profile) -> Path:
    """A GeoTIFF."""
    bands, height, width = array.shape
    shape = {"count": bands, "height": height, "width": width, "dtype": array.dtype.name}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(path, "w", driver="GTiff", **shape, **profile) as file,
    ):
        file.write(array)
        file.update_tags(**(tags or {}))
        if mask is not None:
            file.write_mask(mask)
        if descriptions:
            file.descriptions = descriptions
        if rpcs is not None:
            file.rpcs = rpcs
    return path


def jp2(array: np.ndarray, *, block: int = 64, **profile) -> bytes:
    """A JPEG 2000 of tiles without loss."""
    bands, height, width = array.shape
    shape = {"count": bands, "height": height, "width": width, "dtype": array.dtype.name}
    with MemoryFile(ext=".jp2") as memory:
        with memory.open(
            driver="JP2OpenJPEG", **shape, tiled=True, BLOCKXSIZE=block, BLOCKYSIZE=block, **LOSSLESS, **profile
        ) as file:  # fmt: skip
            file.write(array)
        return bytes(memory.getbuffer())


def converted(source: Path, target: Path, driver: str, **options) -> Path:
    """A copy in another format."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        rasterio.shutil.copy(source, target, driver=driver, **options)
    return target


def mosaic(path: Path, sources: list[tuple[Path, int, int]], size: tuple[int, int], dtype: str, head: str = "") -> Path:
    """A VRT of one band: each source, of one band, with the row and column where it begins."""
    parts = []
    for source, row, col in sources:
        with rasterio.open(source) as file:
            height, width = file.shape
        parts.append(
            f'<SimpleSource><SourceFilename relativeToVRT="1">{source.name}</SourceFilename><SourceBand>1</SourceBand>'
            f'<SrcRect xOff="0" yOff="0" xSize="{width}" ySize="{height}"/>'
            f'<DstRect xOff="{col}" yOff="{row}" xSize="{width}" ySize="{height}"/></SimpleSource>'
        )
    path.write_text(
        f'<VRTDataset rasterXSize="{size[1]}" rasterYSize="{size[0]}">{head}'
        f'<VRTRasterBand dataType="{dtype}" band="1"><NoDataValue>7</NoDataValue>{"".join(parts)}</VRTRasterBand>'
        "</VRTDataset>"
    )
    return path


def next_tiff(values: np.ndarray) -> bytes:
    """A TIFF compressed as on NeXT computers, 2 bits a pixel, which libtiff alone decodes: each row literally."""
    height, width = values.shape
    bits = values.reshape(height, width // 4, 4) @ np.array([64, 16, 4, 1])
    rows = b"".join(b"\0" + bytes(row.astype("uint8")) for row in bits)
    tags = [(256, 4, width), (257, 4, height), (258, 3, 2), (259, 3, 32766), (262, 3, 1), (273, 4, 8), (277, 3, 1),
            (278, 4, height), (279, 4, len(rows))]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", code, kind, 1, value) for code, kind, value in tags)
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    padding = bytes(len(rows) % 2)
    return struct.pack("<2sHI", b"II", 42, 8 + len(rows + padding)) + rows + padding + directory
