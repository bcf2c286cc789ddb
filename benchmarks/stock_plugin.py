"""An IO Processor plugin for the embedded model on vLLM's own server, in the pattern of TerraTorch 1.2.13's plugin.

Its steps are those of ``SegmentationIOProcessor``. ``pre_process`` reads the whole scene, converts it to float32, cuts
it into windows and returns all windows as prompts. The engine sends raw logits. ``post_process`` takes the argmax of
each window, joins the windows and writes a GeoTIFF, which is returned as base64 in JSON. To its advantage, it neither
standardises each tile nor casts the input: the model takes float32.
"""

from __future__ import annotations

import base64
import tempfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
from vllm.plugins.io_processors.interface import IOProcessor

NAME = "stock_pattern"
TILE = 512
NODATA = 255


def register() -> str:
    """Return the name of the plugin's class, for the entry point."""
    return f"{__name__}.StockPlugin"


def install(folder: Path) -> None:
    """Write an entry point for the plugin, for interpreters that have this folder on their path."""
    info = folder / "stock_pattern-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stock-pattern\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[vllm.io_processor_plugins]\n{NAME} = {__name__}:register\n")


@dataclass(frozen=True)
class Scene:
    """The data of a request that ``post_process`` needs."""

    meta: dict[str, Any]
    height: int
    width: int
    rows: int
    cols: int


class StockPlugin(IOProcessor):  # type: ignore[type-arg]  # its data is JSON
    """A plugin that reads, cuts and joins the scene as a whole."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._scenes: dict[str | None, Scene] = {}

    def parse_data(self, data: object) -> Any:
        """Return the request's data, which names a path, unchanged."""
        return data

    def pre_process(self, prompt: Any, request_id: str | None = None, **_: Any) -> list[Any]:
        """Return all tiles of the scene as prompts."""
        with rasterio.open(BytesIO(Path(prompt["data"]).read_bytes())) as source:
            pixels, meta = source.read(), source.meta
        image = np.stack([np.moveaxis(pixels, 0, -1)])  # frames, height, width, bands
        image = np.moveaxis(image, -1, 0).astype("float32")[None]
        if image.mean() > 1:
            image = image / 10000
        height, width = image.shape[-2:]
        image = np.pad(image, ((0, 0), (0, 0), (0, 0), (0, -height % TILE), (0, -width % TILE)), mode="reflect")
        windows = torch.tensor(image).unfold(3, TILE, TILE).unfold(4, TILE, TILE)[0, :, 0]
        rows, cols = windows.shape[1:3]
        self._scenes[request_id] = Scene(meta, height, width, rows, cols)
        windows = windows.permute(1, 2, 0, 3, 4).reshape(rows * cols, -1, TILE, TILE)
        return [
            {"prompt_token_ids": [1], "multi_modal_data": {"image": window.squeeze(0).numpy()}}
            for window in torch.tensor_split(windows, rows * cols)
        ]

    def post_process(self, model_output: Any, request_id: str | None = None, **_: Any) -> Any:
        """Return the mask of the scene as a GeoTIFF in base64."""
        scene = self._scenes.pop(request_id)
        tiles = [
            torch.nn.functional.interpolate(output.outputs.data.argmax(dim=0)[None, None].float(), size=TILE)
            for output in model_output
        ]
        joined = torch.concat(tiles).reshape(scene.rows, scene.cols, TILE, TILE).permute(0, 2, 1, 3)
        mask = joined.reshape(1, scene.rows * TILE, -1)[:, : scene.height, : scene.width]
        meta = {**scene.meta, "count": 1, "dtype": "uint8", "compress": "lzw", "nodata": NODATA}
        with tempfile.NamedTemporaryFile() as file:
            with rasterio.open(file.name, "w", **meta) as target:
                target.write(mask.numpy().astype(np.uint8))
            return {"data_format": "b64_json", "data": base64.b64encode(file.read()).decode()}
