"""Maps of each day: scenes of one day become one map, all on one grid, in a folder or in one Zarr store."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from scenes_for_tests import pixels, write

from vllm_mmout import Mosaic, OutputParams
from vllm_mmout.cli import main
from vllm_mmout.errors import OptionError, SaveError

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
xarray = pytest.importorskip("xarray", reason="the oracle is xarray")
zarr = pytest.importorskip("zarr")
from rasterio.transform import Affine  # noqa: E402 - rasterio may be absent

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]
PLACES = {
    "west_2024-06-03": ("EPSG:32632", 730_000),
    "east_2024-06-03": ("EPSG:32633", 268_000),
    "west_2024-05-01": ("EPSG:32632", 731_000),
}
"""Scenes of 75 x 90 pixels in two zones: the names, with dates, and the system and left edge."""
DAYS = {"2024-05-01": ["west_2024-05-01"], "2024-06-03": ["west_2024-06-03", "east_2024-06-03"]}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """The files of the scenes by name."""
    folder = tmp_path_factory.mktemp("scenes")
    places = {name: {"crs": crs, "transform": Affine(30, 0, x, 0, -30, 5_099_000)} for name, (crs, x) in PLACES.items()}
    return {
        name: write(folder / f"{name}.tif", pixels(seed, 75, 90), nodata=0, **place)
        for seed, (name, place) in enumerate(places.items())
    }


@pytest.fixture
def command(llm, monkeypatch, tmp_path):
    """Run the command line in an empty folder, with the engine of the session."""
    monkeypatch.setattr("vllm_mmout.commands.engine.engine", lambda *_, **__: nullcontext(llm))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: main(["run", "water-index", *map(str, arguments)])


def test_a_folder_gets_a_map_of_each_day(llm, scenes, command, tmp_path, capsys):
    """Each file is named by its date, and equals the mosaic of that day's scenes on the same grid."""
    assert command(*scenes.values(), "--each-day", "-o", "days/") == 0
    assert capsys.readouterr().out.split() == [f"days/{day}.tif" for day in DAYS]
    for day, names in DAYS.items():
        grid = Mosaic([scenes[name] for name in names], grid=f"days/{day}.tif")
        alone = llm.generate(grid, OutputParams(), use_tqdm=False)[0].outputs
        with rasterio.open(f"days/{day}.tif") as file:
            np.testing.assert_array_equal(file.read(), alone.array, strict=True)
            assert (file.crs, file.transform) == (alone.crs, Affine(*alone.transform))
            assert file.crs == "EPSG:32632"
            assert file.tags()["MMOUT_INPUTS"].split("\n") == [f"{name}.tif" for name in names]
            assert file.colormap(1)
        alone.close()
    assert {path.name for path in (tmp_path / "days").iterdir()} == {
        f"{day}{end}" for day in DAYS for end in (".tif", ".tif.aux.xml", ".qml")
    }


@pytest.mark.parametrize("suffix", [".zarr", ".zarr.zip"])
def test_a_zarr_store_gets_a_time_axis(llm, scenes, tmp_path, suffix):
    """Xarray finds the dates, the classes and the place, and the pixels of each day are those of its GeoTIFF."""
    mosaic, path = Mosaic([*scenes.values()], each_day=True), tmp_path / f"days{suffix}"
    (stored,) = llm.generate(mosaic, OutputParams(path=str(path)), use_tqdm=False)
    (maps,) = llm.generate(mosaic, OutputParams(), use_tqdm=False)
    assert list(stored.outputs) == list(maps.outputs) == list(DAYS)
    assert {output.path for output in stored.outputs.values()} == {str(path)}
    with zarr.storage.ZipStore(path) if suffix == ".zarr.zip" else nullcontext(path) as store:
        array = xarray.open_zarr(store, decode_coords="all", mask_and_scale=False).raster.load()
    assert [str(time)[:10] for time in array.time.values] == list(DAYS)
    assert array.attrs["flag_meanings"] == "land water"
    first = next(iter(maps.outputs.values()))
    assert array.attrs["spatial:transform"] == list(first.transform)
    for day, output in maps.outputs.items():
        np.testing.assert_array_equal(array.sel(time=np.datetime64(day)).values, output.array, strict=True)
        output.close()


def test_maps_of_days_that_cannot_be_made_are_refused(llm, scenes, command, tmp_path, capsys):
    """A file of one map, a scene without a date or of two days, a result over its input, a shared folder."""
    place = {"crs": "EPSG:32632", "transform": Affine(30, 0, 0, 0, -30, 0)}
    times = {"MMOUT_DATES": "2024-06-01T10:00:00Z\n2024-06-02T10:00:00Z"}
    undated, own = (write(tmp_path / f"{name}.tif", pixels(1), **place) for name in ("undated", "2024-06-03"))
    month = write(tmp_path / "month.tif", pixels(1), tags=times, **place)
    days = Mosaic([*scenes.values()], each_day=True)
    folder = f"{tmp_path}/"
    for inputs, options, error, words in [
        (days, {"path": f"{tmp_path}/map.tif"}, OptionError, "name a folder, with a / at its end, or a Zarr store"),
        (days, {"path": f"{tmp_path}/m.zarr", "output": ("classes", "areas")}, OptionError, "a Zarr store of maps"),
        (Mosaic([undated], each_day=True), {}, OptionError, r"undated.tif has no date .*each_day needs"),
        (Mosaic([month], each_day=True), {}, OptionError, r"several days, 2024-06-01 to 2024-06-02"),
        (Mosaic([own], each_day=True), {"path": folder}, SaveError, r"over its own input .*2024-06-03.tif"),
        ([days, days], {"path": folder}, OptionError, "give each its own folder"),
    ]:
        with pytest.raises(error, match=words):
            llm.generate(inputs, OutputParams(**options), use_tqdm=False)
    assert command(own, "--each-day", "--figure", "a.png", "-o", "days/") == 2
    assert "--figure" in capsys.readouterr().err


def test_the_newest_scene_is_that_of_the_latest_day(llm, tmp_path):
    """Times in the metadata come before a date in the name, as they do for the map of a day."""
    place = {"crs": "EPSG:32632", "transform": Affine(30, 0, 0, 0, -30, 0)}
    times = {"MMOUT_DATES": "2024-08-01T10:00:00Z"}
    late = write(tmp_path / "late_2024-06-03.tif", pixels(1), tags=times, **place)
    early = write(tmp_path / "early_2024-07-01.tif", pixels(2), **place)
    newest, alone = llm.generate([Mosaic([late, early], "newest"), str(late)], use_tqdm=False)
    np.testing.assert_array_equal(newest.outputs.array, alone.outputs.array)
    maps = llm.generate(Mosaic([late, early], each_day=True), use_tqdm=False)[0].outputs
    assert [str(day) for day in maps] == ["2024-07-01", "2024-08-01"]
