"""Results of scenes on disk: reading in part, saving, and when the temporary file goes."""

from __future__ import annotations

import gc
import tempfile

import numpy as np
import pytest
from scenes_for_tests import TILE, classes, generate, pixels, probabilities, write

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, OptionError, SaveError
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.outputs.stored import StoredRaster

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels(11)
GAPS = np.random.default_rng(12).random(ARRAY.shape[1:]) < 0.1
DUG = np.where(GAPS, np.uint16(0), ARRAY)
MASK = classes(ARRAY, ~GAPS)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The system's folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def files(folder):
    """Everything in a folder, hidden files too."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def result(llm):
    """The mask of a scene with gaps, on disk."""
    return generate(llm, DUG, nodata=0)


def test_a_result_is_read_in_part_or_whole(result):
    """Windows and all of it are parts of the oracle's mask; size, dtype and nodata are known without reading."""
    assert isinstance(result, StoredRaster)
    assert (result.count, result.height, result.width, result.dtype, result.nodata) == (1, 75, 90, np.uint8, 255)
    assert result.path is None
    for window in (Window(0, 0, 75, 90), Window(13, 40, 30, 1), Window(74, 89, 1, 1)):
        np.testing.assert_array_equal(result.read(window), MASK[:, window.rows, window.cols])
    np.testing.assert_array_equal(result.read(), MASK)
    np.testing.assert_array_equal(result.array, MASK)
    np.testing.assert_array_equal(result.valid, ~GAPS)
    with pytest.raises(InputError):
        result.read(Window(70, 0, 6, 90))


def test_the_temporary_file_lives_as_long_as_the_result(result, temporary):
    """It is the only one, and goes when the result is closed; reading then is an error."""
    assert len(files(temporary)) == 1
    result.close()
    assert files(temporary) == []
    with pytest.raises(InputError, match="closed"):
        _ = result.array
    result.close()


def test_the_temporary_file_goes_with_a_result_that_nobody_holds(llm, temporary):
    """Nothing of a run holds on to its results."""
    kept = llm.generate([DUG, ARRAY], OutputParams(tile=TILE), use_tqdm=False)
    assert len(files(temporary)) == 2
    del kept[0]
    gc.collect()
    assert len(files(temporary)) == 1
    np.testing.assert_array_equal(kept[0].outputs.array, classes(ARRAY))
    kept.clear()
    gc.collect()
    assert files(temporary) == []


def test_a_result_is_saved_as_geotiff(result, temporary, tmp_path):
    """The temporary file becomes the first GeoTIFF, a second is a copy; the result is read from there."""
    first, second = result.save(tmp_path / "a.tif"), result.save(tmp_path / "b.tiff")
    assert files(temporary) == []
    assert first.read_bytes() == second.read_bytes()
    with rasterio.open(first) as file:
        np.testing.assert_array_equal(file.read(), MASK)
    assert result.path == str(first)
    result.close()
    assert first.exists()


def test_a_result_is_saved_in_other_formats(result, temporary, tmp_path):
    """PNG shows the palette, transparent where nothing is known; NPZ holds the array; the result stays as it is."""
    from PIL import Image

    palette = np.array([[0xD9, 0xCF, 0xB4], [0, 0x72, 0xB2]], np.uint8)
    with Image.open(result.save(tmp_path / "mask.png")) as picture:
        shown = np.asarray(picture.convert("RGBA"))
    np.testing.assert_array_equal(shown[..., 3] > 0, ~GAPS)
    np.testing.assert_array_equal(shown[..., :3][~GAPS], palette[MASK[0][~GAPS]])
    np.testing.assert_array_equal(np.asarray(result.image.convert("RGBA"))[..., 3] > 0, ~GAPS)
    with np.load(result.save(tmp_path / "mask.npz")) as arrays:
        np.testing.assert_array_equal(arrays["array"], MASK)
    assert len(files(temporary)) == 1
    np.testing.assert_array_equal(result.array, MASK)
    with pytest.raises(SaveError):
        result.save(tmp_path / "mask.xyz")


@pytest.mark.parametrize("output", ["classes", "probabilities"])
def test_a_picture_of_a_large_result_is_small(llm, output):
    """Its longer side has 2048 pixels; each is one of the pixels, or the mean of those, that it stands for."""
    array = np.repeat(np.repeat(pixels(13, 4, 1024), 4, axis=1), 4, axis=2)
    result = generate(llm, array, tile=700, output=output)
    image = result.image
    assert image.size == (2048, 8)
    if output == "classes":
        shown = np.asarray(image.convert("RGB"))[..., 2] == 0xB2
        np.testing.assert_array_equal(shown, classes(array)[0, ::2, ::2] == 1)
    else:
        land = probabilities(array)[0, ::2, ::2]
        grey = (land - land.min()) / (land.max() - land.min()) * 255
        np.testing.assert_allclose(np.asarray(image.convert("L")), grey, atol=1)


def test_a_path_names_the_file(llm, temporary, tmp_path):
    """It and the names of its classes lie there, and nothing else anywhere; an older file of that name is replaced."""
    target = tmp_path / "out" / "mask.tif"
    target.parent.mkdir()
    target.write_bytes(b"old")
    result = generate(llm, DUG, nodata=0, path=str(target))
    assert result.path == str(target)
    assert files(target.parent) == ["mask.qml", "mask.tif", "mask.tif.aux.xml"]
    assert files(temporary) == []
    with rasterio.open(target) as file:
        np.testing.assert_array_equal(file.read(), MASK)
    np.testing.assert_array_equal(result.read(Window(5, 6, 7, 8)), MASK[:, 5:12, 6:14])
    result.close()
    assert target.exists()


@pytest.mark.parametrize("suffix", [".png", ".npz"])
def test_a_path_may_name_another_format(llm, temporary, tmp_path, suffix):
    """The suffix is the format; the pixels can be read all the same, from a temporary file."""
    result = generate(llm, DUG, nodata=0, path=str(tmp_path / f"mask{suffix}"))
    assert (tmp_path / f"mask{suffix}").stat().st_size > 0
    assert result.path == str(tmp_path / f"mask{suffix}")
    np.testing.assert_array_equal(result.array, MASK)
    result.close()
    assert files(temporary) == []
    assert [name for name in files(tmp_path) if name.endswith(".tif")] == []


def test_a_path_may_be_a_folder(llm, temporary, tmp_path):
    """It is made, and each result is called as its input is."""
    inputs = [write(tmp_path / f"{name}.tif", pixels(seed, 40, 50)) for seed, name in enumerate("abc")]
    params = OutputParams(tile=TILE, path=f"{tmp_path}/new/folder/")
    results = llm.generate([*inputs, pixels(9, 20, 20)], params, use_tqdm=False)
    folder = tmp_path / "new" / "folder"
    names = ["a.tif", "b.tif", "c.tif", "output.tif"]
    assert files(folder) == sorted(
        f"{stem}{end}" for stem in ("a", "b", "c", "output") for end in (".tif", ".tif.aux.xml", ".qml")
    )
    assert files(temporary) == []
    assert [result.outputs.path for result in results] == [str(folder / name) for name in names]
    for seed, name in enumerate("abc"):
        with rasterio.open(folder / f"{name}.tif") as file:
            np.testing.assert_array_equal(file.read(), classes(pixels(seed, 40, 50)))


def test_two_scenes_of_one_name_are_refused(llm, sent, tmp_path):
    """Before either is read."""
    with pytest.raises(OptionError, match="several results of this call would be written to"):
        llm.generate([ARRAY, ARRAY], OutputParams(tile=TILE, path=str(tmp_path / "a.tif")), use_tqdm=False)
    assert sent == []


@pytest.mark.parametrize(("name", "kind"), [("no/a.tif", SaveError), ("a.xyz", SaveError)])
def test_a_path_that_cannot_be_is_an_error(llm, temporary, tmp_path, name, kind):
    """A missing folder, an unknown format: nothing is left anywhere, and the next scene works."""
    with pytest.raises(kind):
        generate(llm, DUG, path=str(tmp_path / name))
    gc.collect()
    assert files(tmp_path) == []
    np.testing.assert_array_equal(generate(llm, DUG, nodata=0).array, MASK)


@pytest.mark.parametrize("target", ["scene.tif", "./", "other.tif"])
def test_a_result_is_not_written_over_its_own_input(llm, tmp_path, monkeypatch, target):
    """Neither by its name nor into its own folder; the input is as it was."""
    array = pixels(5)
    source = write(tmp_path / "scene.tif", array)
    before = source.read_bytes()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.tif").symlink_to(source)
    with pytest.raises(SaveError, match="over its own input"):
        generate(llm, source, path=target)
    assert source.read_bytes() == before
    assert generate(llm, source, path="result.tif").path == "result.tif"
