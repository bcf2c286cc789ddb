"""Files that `benchmarks.peer_faults` sends, and the plain network's answers to them."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import rasterio
from numpy.typing import NDArray

EXAMPLES = Path(__file__).parents[1] / "examples" / "terratorch"
CLASSES, TILE, SIZE, LARGE = 4, 224, 448, 1024
OBLONG = (224, 448)
"""Height and width of the oblong model's tiles in pixels."""
NODATA = -9999
HOLE = (100, 120)
"""Row and column of the NaN pixel."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Model folders, scenes and correct answers."""

    folder: Path
    """The folder whose files clients may name."""
    outside: Path
    """A scene outside that folder."""
    square: Path
    oblong: Path
    scenes: dict[str, Path] = field(default_factory=dict)
    right: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Correct class ids [height, width] by the name of the scene.

    "oblong" and "float32" are the answers to "scene" of the oblong model and in float32. "sunk" is the answer to
    "mostly" with its nodata values scaled like observations instead of set to 0.
    """
    gaps: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Mask [height, width] of the pixels without an observation, by the name of the scene."""


class Plain:
    """The network of a folder in plain PyTorch, which runs each tile alone."""

    def __init__(self, folder: Path, dtype: str = "bfloat16") -> None:
        import torch
        from make_model import data_module_of, network_of

        config = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
        weights = torch.load(folder / "model.pt", weights_only=True)["state_dict"]
        network = network_of(config)
        network.load_state_dict({name.removeprefix("model."): weight for name, weight in weights.items()})
        self._dtype = getattr(torch, dtype)
        self._network = network.to(self._dtype)
        self._module = data_module_of(config)
        self._tile: tuple[int, int] = tuple(config["input"]["data"]["pixel_values"]["shape"][-2:])

    def classes(self, pixels: NDArray[Any], place: tuple[float, float] | None) -> NDArray[np.int64]:
        """Return class ids of pixels [bands, height, width] in whole tiles, at (latitude, longitude) or nowhere."""
        import torch
        from make_model import standardised

        height, width = self._tile
        classes = np.empty(pixels.shape[1:], np.int64)
        inputs = {} if place is None else {"location_coords": torch.tensor([place], dtype=self._dtype)}
        for row in range(0, classes.shape[0], height):
            for col in range(0, classes.shape[1], width):
                spot = np.s_[row : row + height, col : col + width]
                image = standardised(self._module, pixels[:, spot[0], spot[1]]).to(self._dtype)
                with torch.inference_mode():
                    output = self._network(image, **inputs).output[0]
                classes[spot] = output.float().argmax(0).numpy()
        return classes


def make_cases(folder: Path) -> Cases:
    """Write the models and scenes, and compute the correct answers.

    Args:
        folder: An empty folder.

    """
    sys.path.insert(0, str(EXAMPLES))
    import make_model
    from make_scene import make_scene

    own = folder / "allowed"
    (folder / "outside").mkdir()
    own.mkdir()
    scene = make_scene(own / "scene.tif", SIZE)
    data_of, recipe = make_model.data_of, make_model.Recipe(classes=CLASSES)
    with patch.object(make_model, "data_of", lambda recipe: data_of(replace(recipe, classes=2))):
        # The data module of Sen1Floods11 scales reflectances, as the stock plugin does with any data module.
        square = make_model.make_model(folder / "square", recipe, scene)
        oblong = make_model.make_model(folder / "oblong", replace(recipe, tile=OBLONG), scene)
    cases = Cases(own, Path(shutil.copy(scene, folder / "outside")), square, oblong)
    cases.scenes.update(scene=scene, oblong=scene, float32=scene, large=make_scene(own / "large.tif", LARGE))
    cases.scenes["gaps"] = make_scene(own / "gaps.tif", SIZE, nodata=True)
    _write_others(cases)
    _answer(cases)
    return cases


def _write_others(cases: Cases) -> None:
    scene = cases.scenes["scene"]
    with rasterio.open(scene) as file:
        pixels, profile = file.read(), file.profile

    def write(name: str, changed: NDArray[Any], **fields: Any) -> None:
        path = cases.folder / f"{name}.tif"
        options = {**profile, **fields, "count": len(changed), "dtype": changed.dtype.name}
        with rasterio.open(path, "w", **options) as file:
            file.write(changed)
        cases.scenes[name] = path

    empty = np.zeros((SIZE, SIZE), bool)
    empty[:, : SIZE * 2 // 3] = True
    write("mostly", np.where(empty, np.int16(NODATA), pixels), nodata=NODATA)
    holed = (pixels / np.float32(10_000)).astype(np.float32)
    holed[:, *HOLE] = np.nan
    write("nan", holed)
    write("few", pixels[:3])
    write("many", np.concatenate([pixels[:1] // 2 + 3000, pixels]))  # the additional band is the first
    write("nowhere", pixels, crs=None)
    content = scene.read_bytes()
    for name, wrong in {"text": b"no raster at all, " * 20, "cut": content[: len(content) // 2]}.items():
        cases.scenes[name] = cases.folder / f"{name}.tif"
        cases.scenes[name].write_bytes(wrong)
    cases.scenes["absent"] = cases.folder / "absent.tif"


def _answer(cases: Cases) -> None:
    plain = Plain(cases.square)
    for name in ("scene", "gaps", "mostly", "nan", "nowhere"):
        pixels, place = _read(cases.scenes[name])
        gaps = np.isnan(pixels).any(0) | (pixels == NODATA).any(0)
        cases.gaps[name] = gaps
        cases.right[name] = plain.classes(np.where(gaps, pixels.dtype.type(0), pixels), place)
    cases.right["sunk"] = plain.classes(*_read(cases.scenes["mostly"]))
    cases.right["many"] = cases.right["scene"]
    cases.right["float32"] = Plain(cases.square, "float32").classes(*_read(cases.scenes["scene"]))
    cases.right["oblong"] = Plain(cases.oblong).classes(*_read(cases.scenes["scene"]))


def _read(path: Path) -> tuple[NDArray[Any], tuple[float, float] | None]:
    """Return the pixels of a scene, and the latitude and longitude of its centre or None."""
    with rasterio.open(path) as file:
        return file.read(), file.lnglat()[::-1] if file.crs else None
