"""The model and the scene that come with the package, so that it can be tried without a download."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from vllm_mmout.errors import OptionError
from vllm_mmout.models.scene import Scene, make_scene
from vllm_mmout.raster import Georeference, write_geotiff

EMBEDDED_MODELS: Final = ("water-index",)
"""Names of the packaged models; each is a folder of that name beside this file."""


def embedded_model(name: str = "water-index") -> Path:
    """The folder of a model that comes with the package, for ``vllm.LLM``.

    Args:
        name: one of `EMBEDDED_MODELS`.

    Raises:
        OptionError: there is no such model; the known ones are listed.

    """
    if name not in EMBEDDED_MODELS:
        near = difflib.get_close_matches(str(name), EMBEDDED_MODELS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"no embedded model {name!r}{hint} (known: {', '.join(EMBEDDED_MODELS)})")
    return Path(__file__).resolve().parent / name


def embedded_scene(path: str | Path, scene: Scene | None = None) -> Path:
    """Write the embedded scene as a GeoTIFF: six bands of int16, reflectance times 10000, named, georeferenced.

    Args:
        path: file to write; one that exists is replaced.
        scene: what to write instead of ``make_scene()``.

    Returns:
        The file.

    Raises:
        SaveError: the file cannot be written.

    """
    scene = scene or make_scene()
    target = Path(path)
    write_geotiff(
        target,
        scene.array,
        georeference=Georeference(crs=scene.crs, transform=scene.transform),
        nodata=scene.nodata,
        descriptions=scene.bands,
        metadata={"TITLE": "Generated scene of a river in flood"},
    )
    return target
