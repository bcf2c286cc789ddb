"""Inputs of several files through the real engine: scenes of one band a file, and models that take several dates."""

from __future__ import annotations

import io

import numpy as np
import pytest
from dated_model import CONFIG, DatedNet
from model_folders import engine_here, folder_of
from scenes_for_tests import TILE, classes, generate, pixels, write
from several_files import LANDSAT

from vllm_mmout import OutputParams
from vllm_mmout.errors import SaveError

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
from rasterio.enums import Resampling  # noqa: E402
from rasterio.transform import Affine  # noqa: E402
from rasterio.vrt import WarpedVRT  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels(21)
ARRAY[:, 5:9, 40:70] = 0
SIX = ["B2", "B3", "B4", "B5", "B6", "B7"]
PLACE = {"crs": "EPSG:32632", "transform": Affine(30, 0, 399960, 0, -30, 5300040)}
LAYOUT = {"nodata": 0, "tiled": True, "blockxsize": 16, "blockysize": 32, "compress": "deflate", **PLACE}


@pytest.fixture
def landsat(tmp_path):
    """A folder of seven files of one band, and its metadata; the coastal band comes first and is no band of models."""
    folder = tmp_path / "LC08_193024.2020"
    folder.mkdir()
    coastal = np.full_like(ARRAY[:1], 7)
    for number, band in enumerate([coastal, *(ARRAY[band : band + 1] for band in range(6))], start=1):
        write(folder / LANDSAT.format(f"B{number}"), band, tags={"SENSOR": "OLI", "NUMBER": number}, **LAYOUT)
    (folder / "LC08_MTL.txt").write_text("GROUP = LANDSAT_METADATA_FILE")
    return folder


def test_a_folder_of_single_bands_gives_what_one_file_gives(llm, sent, landsat, tmp_path):
    """Pixel for pixel, with nodata, place and what all files say; the result is called as the folder."""
    whole = generate(llm, write(tmp_path / "whole.tif", ARRAY, tags={"SENSOR": "OLI"}, **LAYOUT), overlap=4)
    tiles = len(sent)
    out = tmp_path / "out"
    found = generate(llm, landsat, bands=SIX, overlap=4, path=f"{out}/")
    np.testing.assert_array_equal(found.array, whole.array, strict=True)
    np.testing.assert_array_equal(found.array, classes(ARRAY, (ARRAY != 0).all(axis=0)))
    assert found.path == str(out / "LC08_193024.2020.tif")
    assert len(sent) == 2 * tiles > 2
    with rasterio.open(found.path) as file:
        assert (file.crs, file.transform) == (PLACE["crs"], PLACE["transform"])
        assert file.tags()["SENSOR"] == "OLI"
        assert "NUMBER" not in file.tags()


def test_several_files_may_come_in_any_form(llm, landsat):
    """A list within the list, a mapping, a prompt dict; open files are read once, when their turn comes."""
    paths = [landsat / LANDSAT.format(band) for band in SIX]
    names = ["blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2"]
    forms = [
        lambda: paths,
        lambda: dict(zip(names, map(str, paths), strict=True)),
        lambda: {"multi_modal_data": {"image": [str(path) for path in paths]}},
        lambda: [path.read_bytes() for path in paths],
        lambda: [io.BytesIO(path.read_bytes()) for path in paths],
        lambda: [*paths[:5], io.BytesIO(paths[5].read_bytes())],
        lambda: [np.where(band, band, -1).astype(np.int16)[np.newaxis] for band in ARRAY],
    ]
    options = [OutputParams(tile=TILE, nodata=-1 if form is forms[-1] else None) for form in forms for _ in range(3)]
    results = llm.generate([form() for form in forms for _ in range(3)], options, use_tqdm=False)
    for result in results:
        np.testing.assert_array_equal(result.outputs.array, classes(ARRAY, (ARRAY != 0).all(axis=0)))


def test_bands_of_three_resolutions_are_brought_to_the_finest(llm, tmp_path):
    """10, 20 and 60 m as Sentinel-2 has them: the result is that of what WarpedVRT makes of them."""
    folder = tmp_path / "S2"
    folder.mkdir()
    sides = dict(zip(SIX, (10, 10, 10, 20, 60, 20), strict=True))
    grid = {"crs": "EPSG:32632", "transform": Affine(10, 0, 399960, 0, -10, 5300040), "height": 96, "width": 108}
    warped = []
    for number, (band, side) in enumerate(sides.items()):
        array = pixels(30 + number, 960 // side, 1080 // side)[number : number + 1]
        place = {"crs": grid["crs"], "transform": Affine(side, 0, 399960, 0, -side, 5300040)}
        path = write(folder / f"T32_{band}_{side}m.tif", array, **place)
        with rasterio.open(path) as file, WarpedVRT(file, resampling=Resampling.nearest, **grid) as vrt:
            warped.append(vrt.read(1))
    found = generate(llm, str(folder), bands=[name.replace("B", "B0") for name in SIX], overlap=3)
    np.testing.assert_array_equal(found.array, classes(np.stack(warped)))


def test_no_file_of_an_input_is_written_over(llm, sent, landsat):
    """Not by its path, nor by a name in its folder; other names there are free."""
    second = landsat / LANDSAT.format("B4")
    paths = [landsat / LANDSAT.format(band) for band in SIX]
    for data in (landsat, [paths], {"multi_modal_data": {"image": paths}}, dict(zip(SIX, paths, strict=True))):
        (result,) = llm.generate(
            data if isinstance(data, list) else [data], OutputParams(bands=SIX, path=str(second)), use_tqdm=False
        )
        assert isinstance(result.error, SaveError)
        assert second.name in str(result.error)
    one = [[second.rename(second.with_suffix(".tif")), *paths[:2], *paths[3:]]]
    (result,) = llm.generate(one, OutputParams(path=f"{landsat}/"), use_tqdm=False)
    assert isinstance(result.error, SaveError)
    assert sent == []
    (result,) = llm.generate([landsat], OutputParams(bands=SIX, path=f"{landsat}/"), use_tqdm=False)
    assert result.outputs.path == str(landsat / f"{landsat.name}.tif")


def test_a_grid_that_does_not_match_fails_its_own_input_alone(llm, landsat, tmp_path):
    """Both grids are named; the next input is not touched by it."""
    other = PLACE | {"transform": Affine(30, 0, 400960, 0, -30, 5300040)}
    write(landsat / LANDSAT.format("B5"), ARRAY[3:4], **LAYOUT | other)
    bad, good = llm.generate([landsat, ARRAY], [OutputParams(bands=SIX), OutputParams()], use_tqdm=False)
    assert "upper left corner x=399960" in str(bad.error)
    assert "upper left corner x=400960" in str(bad.error)
    np.testing.assert_array_equal(good.outputs.array, classes(ARRAY))


@pytest.fixture(scope="module")
def dated(tmp_path_factory):
    """An engine of the model of three dates, in this process, and its weights."""
    path, weights = folder_of(tmp_path_factory.mktemp("dated"), DatedNet, **CONFIG)
    return engine_here(path), weights


def by_torch(weights, array):
    """What plain PyTorch says of the whole scene [bands, frames, height, width]."""
    import torch

    model = DatedNet({})
    model.load_state_dict(weights)
    with torch.no_grad():
        return model(torch.from_numpy(array)[None])[0].numpy()


@pytest.mark.parametrize("size", [(20, 24), (50, 61)], ids=["one forward", "tiles"])
def test_three_dates_are_what_plain_pytorch_makes_of_them(dated, tmp_path, size):
    """As files, as folders of bands, as one file and as an array; a gap of one date is one of the result."""
    llm, weights = dated
    array = np.random.default_rng(8).integers(1, 3000, (2, 3, *size)).astype(np.int16)
    array[1, 1, 3:7, 2:9] = -9999
    options = {"nodata": -9999, **PLACE}
    (tmp_path / "dates").mkdir()
    for date in range(3):
        (tmp_path / "bands" / f"d{date + 20200109}").mkdir(parents=True)
        write(tmp_path / "dates" / f"{date + 20200109}.tif", array[:, date], **options)
        for number, band in enumerate(("B04", "B08")):
            write(
                tmp_path / "bands" / f"d{date + 20200109}" / f"T32_{band}.tif",
                array[number : number + 1, date],
                **options,
            )
    whole = write(tmp_path / "chip.tif", array.transpose(1, 0, 2, 3).reshape(6, *size), **options)
    wanted = np.where((array == -9999).any(axis=(0, 1)), np.nan, by_torch(weights, array))
    inputs = [tmp_path / "dates", tmp_path / "bands", whole, sorted((tmp_path / "dates").iterdir(), key=by_number)]
    results = llm.generate(inputs, use_tqdm=False)
    for result in results:
        np.testing.assert_allclose(result.outputs.array, wanted, rtol=1e-5, atol=0.01)
        assert (result.progress is None) == (size == (20, 24))
    (found,) = llm.generate(array, OutputParams(nodata=-9999, overlap=2), use_tqdm=False)
    np.testing.assert_allclose(found.outputs.array, wanted, rtol=1e-5, atol=0.01)


def by_number(path):
    """Dates in their order."""
    return int(path.stem)
