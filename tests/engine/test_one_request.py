"""One user's request is few objects, and its options are checked and read once, whatever its number of tiles."""

from __future__ import annotations

import httpx
import pytest
from objects_made import calls, types_made
from scenes_for_tests import TILE, pixels, write
from text_service import text_app

from vllm_mmout import OutputParams
from vllm_mmout.engine import wire
from vllm_mmout.engine.binding import Binding
from vllm_mmout.engine.request.output_router import RoutedOutputProcessor

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY_TYPES, SCENE_TYPES = 22, 35
"""Limits of the types above `vllm_mmout.geo` that one array, and one scene over HTTP, instantiate; they only fall."""
CALLS = ((Binding, "check_params"), (RoutedOutputProcessor, "_read"), (OutputParams, "from_mapping"))
"""Checks of options, reads of them by the frontend, and parses of what travels to the worker."""


def above_geo(made):
    """Return the counts of types that are no part of the library of rasters, by name."""
    return {name: count for name, count in made.items() if not name.startswith("vllm_mmout.geo.")}


@pytest.mark.parametrize("across", [1, 4])
def test_options_are_checked_and_parsed_once(llm, across):
    """An array of one tile and a scene of sixteen are checked by the call, and parsed by the worker."""
    wire._params.cache_clear()
    with calls(*CALLS) as made:
        (result,) = llm.generate(pixels(3, across * TILE, across * TILE), OutputParams(tile=TILE), use_tqdm=False)
    assert result.outputs.array.shape[1:] == (across * TILE, across * TILE)
    assert made == {"check_params": 1, "from_mapping": 1}


def test_an_array_takes_few_types(llm):
    """``LLM.generate`` of an array needs few types, including the worker, which runs in this process."""
    llm.generate(pixels(3, TILE, TILE), OutputParams(), use_tqdm=False)
    with types_made() as made:
        llm.generate(pixels(4, TILE, TILE), OutputParams(), use_tqdm=False)
    assert len(above_geo(made)) <= ARRAY_TYPES, above_geo(made)


async def test_a_scene_takes_few_types(make_async_llm, tmp_path):
    """A scene of sixteen tiles over HTTP needs few types in the frontend, which checks its options once."""
    file = write(tmp_path / "in.tif", pixels(5, 4 * TILE, 4 * TILE)).read_bytes()
    engine = make_async_llm()
    transport = httpx.ASGITransport(text_app(engine, "water"))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:

            async def ask():
                form = {"model": "water", "tile": str(TILE), "output_format": "tiff"}
                answer = await client.post("/v1/images/edits", data=form, files={"image": ("in.tif", file)})
                assert answer.status_code == 200, answer.text

            await ask()
            with types_made() as made, calls(*CALLS) as called:
                await ask()
    finally:
        engine.shutdown()
    assert called == {"check_params": 1}
    assert len(above_geo(made)) <= SCENE_TYPES, above_geo(made)
