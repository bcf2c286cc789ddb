"""Many tiles at once through AsyncLLM: results as they arrive, a tile that fails, and a tile that is cancelled."""

import asyncio

import numpy as np
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from vllm_mmout import MMOutError, OutputParams, embedded_model, embedded_scene
from vllm_mmout.geo import read_raster

TILE = 128
PARAMS = OutputParams(nodata=-9999)


async def water_in(engine: AsyncLLM, name: str, tile: np.ndarray) -> tuple[str, float]:
    """Return the share of water in a tile [bands, height, width]. Closing the generator aborts the request."""
    async for result in engine.generate(tile, PARAMS, request_id=name):
        mask = result.outputs  # the last output is the result; a scene of many tiles reports progress before it
    return name, float((mask.array == 1).sum() / (mask.array != mask.nodata).sum())


async def main() -> None:
    """Run all tiles of the embedded scene. generate() itself limits how many run at once, and makes the others wait."""
    scene = read_raster(embedded_scene("scene.tif")).array
    corners = [(row, col) for row in range(0, 512, TILE) for col in range(0, 512, TILE)]
    tiles = {f"tile {row}/{col}": scene[:, row : row + TILE, col : col + TILE] for row, col in corners}
    tiles["broken tile"] = scene[:4]

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=embedded_model("water-index"), gpu_memory_utilization=0.3))
    try:
        tasks = {name: asyncio.create_task(water_in(engine, name, tile)) for name, tile in tiles.items()}
        tasks["tile 0/0"].cancel()  # aborts its request, even if it already runs
        for next_one in asyncio.as_completed(tasks.values()):
            try:
                name, share = await next_one
                print(f"{name}: {share:.0%} water")
            except asyncio.CancelledError:
                print("one tile was cancelled")
            except MMOutError as error:
                print(f"one tile was refused: {error}")
    finally:
        engine.shutdown()


if __name__ == "__main__":  # the engine's processes import this file
    asyncio.run(main())
