"""Extension package that serves results as map tiles, for web maps and QGIS."""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(name="map_tiles", routes="vllm_mmout.wings.map_tiles.tile_routes:TileRoutes")
