"""Several output processors on one request, and results that are written where the request says."""

from __future__ import annotations

import numpy as np
import pytest
from scene_generator import make_scene, write_scene

from vllm_mmout import OutputParams, RasterOutput, TensorOutput
from vllm_mmout.errors import DecodeError, MMOutError, OptionError, ReduceError, SaveError

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_scene(tmp_path_factory.mktemp("scene") / "scene.tif", make_scene(72, 80))


def generate(llm, scene, **options):
    (result,) = llm.generate(scene, OutputParams(**options), use_tqdm=False)
    return result.outputs


@pytest.mark.parametrize("engine", ["llm", "mp_llm"])
def test_three_picks_take_one_forward(engine, request, path):
    """The network runs once for a request with three picks, and three times for three requests of one."""
    llm = request.getfixturevalue(engine)
    three = ["segmentation", "Echo", "CountsForwards"]
    before = generate(llm, path, processor="CountsForwards")
    with_three = generate(llm, path, processor=three)
    assert with_three["CountsForwards"] == before + 1

    alone = {name: generate(llm, path, processor=name) for name in three}
    assert alone["CountsForwards"] == before + 4
    assert with_three["Echo"] == alone["Echo"]
    np.testing.assert_array_equal(with_three["segmentation"].array, alone["segmentation"].array)
    assert with_three["segmentation"].crs == alone["segmentation"].crs == "EPSG:32632"


def test_each_pick_is_what_it_is_alone(llm, path):
    """A raster, a tensor and a fingerprint of one request are those of three requests."""
    names = ("tensor", "segmentation", "Echo")
    results = generate(llm, path, processor=names)
    tensor, raster, echo = (generate(llm, path, processor=name) for name in names)
    assert isinstance(tensor, TensorOutput)
    assert isinstance(raster, RasterOutput)
    assert tensor.array.shape == (2, 72, 80)
    np.testing.assert_array_equal(results["tensor"].array, tensor.array)
    np.testing.assert_array_equal(results["segmentation"].array, raster.array)
    assert results["Echo"] == echo


@pytest.mark.parametrize(
    "names",
    [("Echo", "tensor", "segmentation"), ("segmentation", "Echo", "tensor"), ("tensor", "segmentation"), ("Echo",)],
)
def test_the_results_stand_in_the_order_asked(llm, path, names):
    """A list of picks gives a dict in its order, also a list of one; a plain name gives the object itself."""
    results = generate(llm, path, processor=list(names))
    assert isinstance(results, dict)
    assert tuple(results) == names
    assert not isinstance(generate(llm, path, processor=names[0]), dict)


def test_requests_with_different_picks_run_together(llm, path):
    """In one call each request gets its own picks."""
    wanted = [None, "Echo", ("Echo", "tensor"), ("tensor", "Echo"), "segmentation", ("segmentation",)]
    results = llm.generate([path] * 6, [OutputParams(processor=names) for names in wanted], use_tqdm=False)
    kinds = [tuple(r.outputs) if isinstance(r.outputs, dict) else type(r.outputs).__name__ for r in results]
    assert kinds == ["RasterOutput", "tuple", ("Echo", "tensor"), ("tensor", "Echo"), "RasterOutput", ("segmentation",)]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("bad", "kind"), [("ReduceRaises", ReduceError), ("DecodeRaises", DecodeError), ("DecodeReturnsNone", DecodeError)]
)
def test_an_error_of_one_pick_is_the_requests(llm, path, bad, kind, place):
    """Wherever it stands among the picks, it fails the request and names itself; a request beside it is well."""
    names = ["segmentation", "Echo"]
    names.insert(place, bad)
    failed, good = llm.generate([path, path], [OutputParams(processor=names), OutputParams()], use_tqdm=False)
    assert isinstance(failed.error, kind)
    assert bad in str(failed.error)
    with pytest.raises(kind):
        _ = failed.outputs
    assert isinstance(good.outputs, RasterOutput)


def test_a_pick_asked_for_twice_is_refused():
    """Two results cannot have one name."""
    with pytest.raises(OptionError, match="names one output processor twice"):
        OutputParams(processor=["Echo", "Echo"])


def read(path):
    rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
    with rasterio.open(path) as source:
        return source.read()


def test_a_result_is_written_to_a_file(llm, path, tmp_path):
    """``path`` names the file, ``outputs.path`` says so, and only names and style of the classes are left beside it."""
    wanted = tmp_path / "mask.tif"
    found = generate(llm, path, path=wanted)
    assert found.path == str(wanted)
    np.testing.assert_array_equal(read(wanted), found.array)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mask.qml", "mask.tif", "mask.tif.aux.xml"]


def test_the_suffix_is_the_format(llm, path, tmp_path):
    """A PNG is written where the name ends in .png."""
    from PIL import Image

    found = generate(llm, path, path=str(tmp_path / "mask.png"))
    with Image.open(found.path) as picture:
        assert picture.format == "PNG"
        assert picture.size == (80, 72)


def test_a_result_in_a_folder_is_called_as_its_input(llm, path, tmp_path):
    """An existing folder, or a path that ends as one and is made, gets a file named after the input."""
    assert generate(llm, path, path=str(tmp_path)).path == str(tmp_path / "scene.tif")
    made = tmp_path / "new" / "folder"
    assert generate(llm, path, path=f"{made}/").path == str(made / "scene.tif")
    unnamed = generate(llm, make_scene(64, 64).array, path=f"{made}/")
    assert unnamed.path == str(made / "output.tif")
    tiffs = ["output.tif", "scene.tif"]
    assert sorted(file.name for file in made.iterdir()) == sorted(
        [*tiffs, *(f"{name}.aux.xml" for name in tiffs), "output.qml", "scene.qml"]
    )


def test_several_results_in_a_folder(llm, path, tmp_path):
    """Each input of a call gets its own file."""
    paths = [write_scene(tmp_path / f"{name}.tif", make_scene(64, 64, seed=seed)) for seed, name in enumerate("abc")]
    results = llm.generate(paths, OutputParams(path=f"{tmp_path}/masks/"), use_tqdm=False)
    assert [result.outputs.path for result in results] == [f"{tmp_path}/masks/{name}.tif" for name in "abc"]
    for result in results:
        np.testing.assert_array_equal(read(result.outputs.path), result.outputs.array)


def test_several_picks_are_written_side_by_side(llm, path, tmp_path):
    """In a folder each pick has its name and its own usual suffix; beside a file name it has its name."""
    results = generate(llm, path, processor=["segmentation", "tensor"], path=f"{tmp_path}/all/")
    assert results["segmentation"].path == f"{tmp_path}/all/scene-segmentation.tif"
    np.testing.assert_array_equal(read(results["segmentation"].path), results["segmentation"].array)
    assert results["tensor"].path == f"{tmp_path}/all/scene-tensor.npz"
    np.testing.assert_array_equal(np.load(results["tensor"].path)["output"], results["tensor"].array)

    results = generate(llm, path, processor=["tensor", "segmentation"], path=str(tmp_path / "one.npz"))
    assert [output.path for output in results.values()] == [
        str(tmp_path / "one-tensor.npz"),
        str(tmp_path / "one-segmentation.npz"),
    ]


UNWRITABLE = {
    "no such folder": ("missing/mask.tif", ["missing", "does not exist", "make it first"]),
    "a file in the way of the folder": ("file/", ["file", "cannot be made"]),
    "a file in the way of a folder above": ("file/deep/", ["cannot be made"]),
    "a file instead of a folder": ("file/mask.tif", ["file", "does not exist"]),
    "no suffix": ("mask", ["no suffix", ".tif"]),
    "an unknown suffix": ("mask.xyz", ["'.xyz'", ".tif"]),
}


@pytest.mark.parametrize(("name", "says"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_cannot_be_written_is_the_requests_error(llm, path, tmp_path, name, says):
    """The message names the place and the remedy; the other request of the call is well, and nothing is left over."""
    (tmp_path / "file").write_text("in the way")
    failed, good = llm.generate([path, path], [OutputParams(path=f"{tmp_path}/{name}"), OutputParams()], use_tqdm=False)
    assert isinstance(failed.error, SaveError)
    assert [part for part in says if part not in str(failed.error)] == []
    assert good.error is None
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_an_object_that_cannot_be_saved(llm, path, tmp_path):
    """A processor's own kind of object has no file; the error says what it is."""
    with pytest.raises(SaveError, match="a tuple cannot be saved"):
        generate(llm, path, processor="Echo", path=str(tmp_path / "echo.tif"))


def test_no_pick_is_written_over_the_input(llm, tmp_path):
    """A result with the name of its processor may not replace the input, nor the result of another request."""
    scene = write_scene(tmp_path / "map-segmentation.tif", make_scene(64, 64))
    before, picks = scene.read_bytes(), {"processor": ["segmentation"], "path": f"{tmp_path}/map.tif"}
    with pytest.raises(SaveError, match=r"over its own input .*map-segmentation\.tif"):
        generate(llm, scene, **picks)
    with pytest.raises(OptionError, match="several results of this call"):
        llm.generate([scene, scene], [OutputParams(**picks), OutputParams(path=str(scene))], use_tqdm=False)
    assert scene.read_bytes() == before


def test_two_results_for_one_file_are_refused(llm, path, tmp_path):
    """Neither would overwrite the other unseen: nothing is run."""
    other = write_scene(tmp_path / "scene.tif", make_scene(64, 64))
    for inputs, place in (([path, path], tmp_path / "mask.tif"), ([path, other], f"{tmp_path}/masks/")):
        with pytest.raises(OptionError, match="several results of this call") as caught:
            llm.generate(inputs, OutputParams(path=place), use_tqdm=False)
        assert isinstance(caught.value, MMOutError)
    assert [file.name for file in tmp_path.iterdir()] == ["scene.tif"]
