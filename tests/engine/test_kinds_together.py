"""Several kinds of output of one request, which are made of one decoded result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
from scene_generator import make_scene, write_scene

from vllm_mmout import Mosaic, OutputParams, RasterOutput
from vllm_mmout.errors import MMOutError, OptionError, SaveError
from vllm_mmout.processors import SegmentationProcessor

pytestmark = pytest.mark.engine
KINDS = ("areas", "classes", "polygons")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_scene(tmp_path_factory.mktemp("scene") / "scene.tif", make_scene(72, 80))


def generate(llm, scene, **options):
    (result,) = llm.generate(scene, OutputParams(**options), use_tqdm=False)
    return result.outputs


@pytest.fixture
def decoded(monkeypatch):
    """The number of decoded requests and of joined scenes."""
    counts = {"decode": 0, "assemble": 0}
    for name in counts:
        method = getattr(SegmentationProcessor, name)

        def counting(self, *args, name=name, method=method):
            counts[name] += 1
            return method(self, *args)

        monkeypatch.setattr(SegmentationProcessor, name, counting)
    return counts


@pytest.mark.parametrize("tile", [None, 64])
def test_kinds_are_made_of_one_decode(llm, path, decoded, tile):
    """Classes, polygons and areas of one request equal those of three, in the order asked, from one decoded result."""
    results = generate(llm, path, output=list(KINDS), tile=tile)
    assert tuple(results) == KINDS
    assert decoded["assemble"] == 1
    assert tile is not None or decoded["decode"] == 1
    alone = {kind: generate(llm, path, output=kind, tile=tile) for kind in KINDS}
    assert isinstance(results["classes"], RasterOutput)
    np.testing.assert_array_equal(results["classes"].array, alone["classes"].array)
    assert results["areas"].classes == alone["areas"].classes
    assert list(results["polygons"].features()) == list(alone["polygons"].features())
    assert results["areas"].assumed == results["polygons"].assumed == alone["classes"].assumed


@pytest.mark.parametrize("tile", [None, 64])
@pytest.mark.parametrize(
    ("place", "files"),
    [
        ("maps/", ["scene-areas.csv", "scene-classes.tif", "scene-polygons.geojson"]),
        ("map.geojson", ["map-areas.csv", "map-classes.tif", "map-polygons.geojson"]),
        ("map.png", ["map-areas.csv", "map-classes.png", "map-polygons.geojson"]),
        ("a.b.zarr.zip", ["a.b-areas.csv", "a.b-classes.zarr.zip", "a.b-polygons.geojson"]),
        ("a.b.shp.zip", ["a.b-areas.csv", "a.b-classes.tif", "a.b-polygons.shp.zip"]),
    ],
)
def test_each_kind_has_its_file(llm, path, tmp_path, tile, place, files):
    """The path's suffix is that of the kinds that can have it, and the others get their usual one."""
    results = generate(llm, path, output=KINDS, path=f"{tmp_path}/{place}", tile=tile)
    assert [Path(result.path).name for result in results.values()] == files


@pytest.mark.parametrize("tile", [None, 64])
@pytest.mark.parametrize("place", ["map.tif", "./"])
def test_no_kind_is_written_over_an_input(llm, path, tmp_path, monkeypatch, place, tile):
    """A file that one of the kinds would replace is refused as their input, and as an input of their mosaic."""
    name = "map-classes.tif" if place == "map.tif" else "scene-classes.tif"
    monkeypatch.chdir(tmp_path)
    Path("scene.tif").write_bytes(path.read_bytes())
    scene = Path(name)
    scene.write_bytes(path.read_bytes())
    inputs = [Mosaic(["scene.tif", name], "first")] + [name] * (place == "map.tif")
    for data in inputs:
        with pytest.raises(SaveError, match=f"over its own input {name}"):
            generate(llm, data, output=KINDS, path=place, tile=tile)
    assert scene.read_bytes() == path.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_file_of_a_kind_is_that_of_one_request(llm, path, tmp_path):
    """A kind and the result of another request of the call may not have the same file."""
    for one, other in (("map.tif", "map-classes.tif"), ("", "scene-areas.csv")):
        kind = "areas" if other.endswith(".csv") else None
        params = [
            OutputParams(path=f"{tmp_path}/{one}", output=KINDS),
            OutputParams(path=f"{tmp_path}/{other}", output=kind),
        ]
        for order in (params, params[::-1]):
            with pytest.raises(OptionError, match=f"several results of this call would be written to .*{other}"):
                llm.generate([path, path], order, use_tqdm=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_fails_takes_the_others_with_it(llm, path, tmp_path, monkeypatch):
    """If one kind cannot be saved, no file of the others is left."""
    monkeypatch.setattr(RasterOutput, "save", lambda *_: (_ for _ in ()).throw(SaveError("the disk is full")))
    with pytest.raises(SaveError, match="disk is full"):
        generate(llm, path, output=KINDS, path=f"{tmp_path}/maps/")
    assert list((tmp_path / "maps").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"output": ["classes", "confidence"]}, "does not make confidence together with other kinds"),
        ({"output": ["classes", "depth"]}, "no output 'depth'"),
        ({"output": KINDS, "processor": "tensor"}, "it has one kind of output"),
        ({"output": KINDS, "path": "map.xyz"}, "'.xyz' is unknown"),
    ],
)
def test_kinds_that_do_not_go_together_are_refused(llm, path, options, says):
    """The message names the kind and what the processor has, before the model runs."""
    with pytest.raises(MMOutError, match=says):
        generate(llm, path, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"output": []}, "output is an empty list"),
        ({"output": ["areas", "areas"]}, "names one kind of result twice"),
        ({"output": ["areas"], "processor": ["segmentation"]}, "give several of one of them"),
    ],
)
def test_a_list_of_kinds_is_checked(options, says):
    """Lists without a kind, with a kind twice, or beside a list of processors are refused."""
    with pytest.raises(OptionError, match=says):
        OutputParams(**options)


@pytest.mark.parametrize("tile", [None, 64])
def test_results_know_the_picture_of_their_input(llm, path, tile):
    """A file is read again for a figure, at any size; an array would be kept alive, so results do not know it."""
    result = generate(llm, path, tile=tile)
    picture = result.input_picture()
    assert picture.size == (80, 72)
    assert len(np.unique(np.asarray(picture))) > 10
    assert generate(llm, make_scene(72, 80).array, tile=tile).input_picture is None


@pytest.mark.parametrize("tile", [None, 64])
def test_kinds_are_cut_to_an_area_of_interest(llm, path, tile):
    """Features of an area are counted from the shared raster as for a request of areas alone."""
    with rasterio.open(path) as source:
        (left, bottom, right, top), crs = source.bounds, source.crs.to_string()
    halves = [(left, (left + right) / 2), ((left + right) / 2, right)]
    area = {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "properties": {"name": f"field {number}"},
                "geometry": {
                    "type": "Polygon",
                    "coordinates": [[[west, bottom], [east, bottom], [east, top], [west, top], [west, bottom]]],
                },
            }
            for number, (west, east) in enumerate(halves)
        ],
    }
    asked = {"aoi": area, "aoi_crs": crs, "tile": tile}
    together, alone = (generate(llm, path, output=output, **asked) for output in (KINDS, "areas"))
    assert len(alone.features) == 2
    assert together["areas"].features == alone.features
    assert together["areas"].classes == alone.classes


def test_kinds_of_a_mosaic_are_those_of_its_map(llm, path, tmp_path):
    """Several scenes give one map, and its polygons and areas are made of it, each in its own file."""
    asked = {"mosaic": "first", "path": f"{tmp_path}/map.tif"}
    together = generate(llm, Mosaic([path, path]), output=KINDS, **asked)
    alone = generate(llm, Mosaic([path, path]), output="areas", mosaic="first")
    assert together["areas"].classes == alone.classes
    names = [Path(result.path).name for result in together.values()]
    assert names == ["map-areas.csv", "map-classes.tif", "map-polygons.geojson"]
