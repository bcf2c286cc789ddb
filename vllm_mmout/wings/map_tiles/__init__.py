"""Extension package for map tiles: stored results as layers of web maps and of QGIS."""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(name="map_tiles", routes="vllm_mmout.wings.map_tiles.tile_routes:TileRoutes")
