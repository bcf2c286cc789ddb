"""A scene that is run in windows and joined has the pixels of one run."""

from __future__ import annotations

import numpy as np
import pytest
from affine import Affine
from geotiffs_by_rasterio import TILED, geotiff
from hypothesis import given
from hypothesis import strategies as st
from scene_generator import make_scene

from vllm_mmout import OutputParams
from vllm_mmout.errors import OptionError
from vllm_mmout.geo import Georeference, TileGrid, area_of, placed_area
from vllm_mmout.wings.ray.join import _options
from vllm_mmout.wings.ray.windows import facts_of, joined, parts_of


@st.composite
def grids(draw):
    """Grids of tiles of all kinds."""
    tile = draw(st.integers(1, 40))
    return TileGrid(
        draw(st.integers(1, 200)),
        draw(st.integers(1, 200)),
        tile,
        draw(st.integers(0, tile // 2)),
        draw(st.sampled_from(["shift", "pad"])),
    )


@given(grids(), st.integers(1, 120))
def test_each_pixel_is_one_parts_own(grid, side):
    """And it lies in that part's window."""
    covered = np.zeros((grid.height, grid.width), np.uint8)
    for part in parts_of(grid, (0, 0), side):
        covered[part.own.rows, part.own.cols] += 1
        for axis in ("row", "col"):
            length = "height" if axis == "row" else "width"
            own, window = getattr(part.own, axis), getattr(part.window, axis)
            assert window <= own
            assert own + getattr(part.own, length) <= window + getattr(part.window, length)
    assert (covered == 1).all()


@given(grids(), st.integers(1, 120))
def test_own_pixels_are_of_the_same_tiles(grid, side):
    """A part's own grid has every tile of the scene that touches the part's own pixels, where the scene has it."""
    for part in parts_of(grid, (0, 0), side):
        window = part.window
        mine = TileGrid(window.height, window.width, grid.tile, grid.overlap, grid.edge)
        for starts, own, whole, first, last in (
            (mine.rows, part.own.rows, grid.rows, window.row, grid.height),
            (mine.cols, part.own.cols, grid.cols, window.col, grid.width),
        ):
            wanted = {start for start in whole if start < own.stop and min(start + grid.tile, last) > own.start}
            assert wanted <= {start + first for start in starts}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A scene that no tile divides, with nodata at one side."""
    path, made = tmp_path_factory.mktemp("large") / "s.tif", make_scene(300, 380)
    place = {"crs": made.crs, "transform": Affine(*made.transform), "nodata": made.nodata}
    path.write_bytes(geotiff(made.array, **TILED, **place))
    return path


@pytest.mark.engine
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"tile": 64}, marks=pytest.mark.slow),
        pytest.param({"tile": 80, "overlap": 16, "output": "probabilities"}, marks=pytest.mark.slow),
        {"tile": 64, "overlap": 32, "blend": "linear", "window": (13, 7, 271, 330)},
    ],
)
def test_joined_windows_are_one_run_byte_for_byte(llm, scene, tmp_path, asked):
    """The GeoTIFF has the bytes of that of one run, with its place, its names and its nodata."""
    params = OutputParams(**asked)
    whole = llm.generate(str(scene), _to(params, tmp_path / "whole.tif"), use_tqdm=False)[0].outputs
    row, col, height, width = asked.get("window", (0, 0, 300, 380))
    grid = TileGrid(height, width, params.tile, params.overlap)
    parts = parts_of(grid, (row, col), 150)
    assert len(parts) >= 6
    places = []
    for number, part in enumerate(parts):
        path = tmp_path / f"{number}.tif"
        of_part = _to(OutputParams(**{**asked, "window": part.window}), path)
        facts = facts_of(llm.generate(str(scene), of_part, use_tqdm=False)[0].outputs)
        places.append((path, part))
    joined(places, (height, width), facts, tmp_path).save(tmp_path / "joined.tif")
    assert (tmp_path / "joined.tif").read_bytes() == (tmp_path / "whole.tif").read_bytes()
    assert whole.height == height


@pytest.mark.engine
def test_joined_windows_are_masked_to_an_area(llm, scene, tmp_path):
    """The windows are run without the area of interest, and the joined result is that of one run with it."""
    center = make_scene(300, 380).transform
    x, y = center[2], center[5]
    ring = [[x + center[0] * col, y + center[4] * row] for col, row in ((20, 9), (210, 30), (160, 190), (20, 9))]
    area = {"type": "Polygon", "coordinates": [ring], "crs": None}
    asked = {"tile": 64, "overlap": 16}
    params = OutputParams(**asked, aoi=area)
    whole = llm.generate(str(scene), _to(params, tmp_path / "whole.tif"), use_tqdm=False)[0].outputs
    placed = placed_area(area_of(params.aoi), Georeference(transform=center), (300, 380), "scene")
    window = placed.window
    assert (whole.height, whole.width) == (window.height, window.width)
    places = []
    for part in parts_of(TileGrid(window.height, window.width, 64, 16), (window.row, window.col), 150):
        path = tmp_path / f"{len(places)}.tif"
        options = OutputParams.from_mapping({**params.to_mapping(), **_options(part)})
        facts = facts_of(llm.generate(str(scene), _to(options, path), use_tqdm=False)[0].outputs)
        places.append((path, part))
    size = (window.height, window.width)
    joined(places, size, facts, tmp_path, placed.within(window)).save(tmp_path / "joined.tif")
    assert (tmp_path / "joined.tif").read_bytes() == (tmp_path / "whole.tif").read_bytes()


def test_what_is_no_raster_is_refused():
    """With what to do."""
    with pytest.raises(OptionError, match="leave --ray-split out"):
        facts_of("polygons")


def _to(params, path):
    import msgspec

    return msgspec.structs.replace(params, path=str(path))
