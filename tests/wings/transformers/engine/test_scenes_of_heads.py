"""Rasters that lie somewhere, given to heads of transformers: tiled, at the input's resolution, in its place."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rasterio
import torch
from model_folders import engine_here
from PIL import Image, ImageOps
from rasterio.transform import Affine
from small_heads import head, saved

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, OptionError

pytestmark = pytest.mark.engine
PLACE = {"crs": "EPSG:32614", "transform": Affine(10, 0, 500_000, 0, -10, 4_500_000)}
SIZE = (150, 200)


@pytest.fixture(scope="module")
def pixels():
    """A smooth picture: of noise each tile would be another world."""
    rows, cols = np.mgrid[: SIZE[0], : SIZE[1]]
    waves = [128 + 100 * np.sin(rows / span + cols / (span + 7)) for span in (9, 17, 31)]
    return np.stack(waves).astype(np.uint8)


@pytest.fixture(scope="module")
def scene(tmp_path_factory, pixels):
    """The same as a GeoTIFF."""
    file = tmp_path_factory.mktemp("scene") / "scene.tif"
    with rasterio.open(file, "w", "GTiff", width=SIZE[1], height=SIZE[0], count=3, dtype="uint8", **PLACE) as dataset:
        dataset.write(pixels)
    return file


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts engines, each architecture once."""
    started = {}

    def engine(architecture, **options):
        if architecture not in started:
            model, processor = head(architecture)
            folder = saved(tmp_path_factory.mktemp("folder"), model, processor)
            llm = engine_here(folder, max_num_seqs=4, additional_config={"mmout": options})
            started[architecture] = llm, model, processor
        return started[architecture]

    return engine


def one(llm, data, **options):
    (result,) = llm.generate([data], OutputParams(**options), use_tqdm=False)
    return result.outputs


def tiles(height, width, side):
    """Upper left corners of tiles that are shifted inward at the end."""
    return [
        (min(row, height - side), min(col, width - side))
        for row in range(0, height, side)
        for col in range(0, width, side)
    ]


def test_classes_are_those_of_each_tile_by_transformers(start, scene, pixels, tmp_path):
    """Without overlap a mask is what transformers makes of each tile of 64 pixels, laid where the tile lies."""
    llm, model, processor = start("SegformerForSemanticSegmentation")
    one(llm, scene, path=str(tmp_path / "mask.tif"))
    expected = np.empty(SIZE, np.uint8)
    for row, col in tiles(*SIZE, 64):
        picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels[:, row : row + 64, col : col + 64], 0, -1)))
        with torch.inference_mode():
            raw = model(**processor(picture, return_tensors="pt"))
        (mask,) = processor.post_process_semantic_segmentation(raw, target_sizes=[(64, 64)])
        expected[row : row + 64, col : col + 64] = mask
    with rasterio.open(tmp_path / "mask.tif") as dataset:
        assert dataset.crs.to_epsg() == 32614
        assert dataset.transform == PLACE["transform"]
        mask = dataset.read(1)
    np.testing.assert_array_equal(mask[:86, :136], expected[:86, :136])  # behind it tiles share pixels
    assert len(np.unique(mask)) > 1


def test_depth_has_no_seams_where_tiles_overlap(start, scene):
    """Steps from one pixel to the next at the ends of tiles are no larger than the largest elsewhere."""
    llm, _, _ = start("DPTForDepthEstimation")
    depth = one(llm, scene, overlap=32).array[0]
    assert depth.shape == SIZE
    assert np.isfinite(depth).all()
    steps = np.abs(np.diff(depth, axis=1)).max(axis=0)
    at_ends = [31, 63, 95, 127, 159]
    elsewhere = np.delete(steps, at_ends)
    assert steps[at_ends].max() <= elsewhere.max()


def test_a_larger_picture_lies_on_the_scene(start, scene, tmp_path):
    """Super-resolution of a scene has pixels of half the size and the same bounds."""
    llm, _, _ = start("Swin2SRForImageSuperResolution")
    one(llm, scene, tile=64, overlap=8, path=str(tmp_path / "fine.tif"))
    with rasterio.open(scene) as before, rasterio.open(tmp_path / "fine.tif") as after:
        assert after.res == (5, 5)
        assert after.bounds == before.bounds
        assert after.dtypes == ("uint8",) * 3
        assert after.nodata is None


def test_what_a_processor_would_crop_is_seen_in_a_scene(start, scene):
    """MobileViT's processor crops; the mask of a scene covers all of it, and is that of the tiles uncropped."""
    llm, model, processor = start("MobileViTForSemanticSegmentation")
    mask = one(llm, scene).array[0]
    assert mask.shape == SIZE
    with rasterio.open(scene) as dataset:
        tile = Image.fromarray(np.ascontiguousarray(np.moveaxis(dataset.read()[:, :64, :64], 0, -1)))
    with torch.inference_mode():
        raw = model(**processor(tile, return_tensors="pt", do_center_crop=False, size={"height": 64, "width": 64}))
    (expected,) = processor.post_process_semantic_segmentation(raw, target_sizes=[(64, 64)])
    np.testing.assert_array_equal(mask[:64, :64], expected)


def test_boxes_of_tiles_are_joined_and_named_in_coordinates(start, scene, tmp_path):
    """Boxes of a scene lie in its pixels, and as GeoJSON in its coordinate system."""
    llm, _, _ = start("YolosForObjectDetection", threshold=0.0)
    found = one(llm, scene, overlap=16, path=str(tmp_path / "boxes.geojson"))
    assert found.size == SIZE
    assert max(one.box[2] for one in found.detections) > 128  # beyond the first tiles
    features = json.loads((tmp_path / "boxes.geojson").read_text())["features"]
    assert len(features) == len(found.detections)
    xs = [x for feature in features for x, _ in feature["geometry"]["coordinates"][0]]
    assert min(xs) >= 500_000
    assert max(xs) <= 502_000


def test_a_picture_is_seen_whole_and_tiled_where_it_is_asked_for(start, pixels):
    """A picture that lies nowhere goes through the processor whole; with ``tile`` it is cut."""
    llm, model, processor = start("SegformerForSemanticSegmentation")
    picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels, 0, -1)))
    with torch.inference_mode():
        raw = model(**processor(picture, return_tensors="pt"))
    (expected,) = processor.post_process_semantic_segmentation(raw, target_sizes=[SIZE])
    np.testing.assert_array_equal(one(llm, picture).array[0], expected)
    tiled = one(llm, picture, tile=64).array[0]
    assert tiled.shape == SIZE
    assert (tiled != expected.numpy()).any()


def test_values_that_are_no_bytes_need_a_scale(start, tmp_path, pixels):
    """Reflectance in 16 bits is refused with what to do, and with ``scale`` is what its bytes would be."""
    llm, _, _ = start("DPTForDepthEstimation")
    file = tmp_path / "reflectance.tif"
    with rasterio.open(file, "w", "GTiff", width=64, height=64, count=3, dtype="uint16", **PLACE) as dataset:
        dataset.write(pixels[:, :64, :64].astype(np.uint16) * 4)
    with pytest.raises(OptionError, match=r"with scale, such as 0\.0255"):
        one(llm, file)
    with rasterio.open(
        tmp_path / "uneven.tif", "w", "GTiff", width=64, height=64, count=3, dtype="uint16", **PLACE
    ) as out:
        out.write(pixels[:, :64, :64].astype(np.uint16) * 39)
    rounded = np.rint(pixels[:, :64, :64].astype(np.uint16) * 39 * 0.0255).astype(np.uint8)
    uneven = one(llm, tmp_path / "uneven.tif", scale=0.0255).array
    np.testing.assert_allclose(uneven, one(llm, np.ascontiguousarray(rounded)).array, rtol=1e-4, atol=1e-4)
    expected = one(llm, np.ascontiguousarray(pixels[:, :64, :64])).array
    np.testing.assert_allclose(one(llm, file, scale=0.25).array, expected, rtol=1e-4, atol=1e-4)


def test_a_grey_picture_stands_for_all_three_colours(start, pixels):
    """As ``convert("RGB")`` makes of it."""
    llm, model, processor = start("ViTForImageClassification")
    grey = Image.fromarray(pixels[0])
    with torch.inference_mode():
        raw = model(**processor(grey.convert("RGB"), return_tensors="pt")).logits[0].softmax(0)
    assert one(llm, grey).score == pytest.approx(float(raw.max()), abs=1e-6)


@pytest.mark.parametrize("mode", ["RGBA", "CMYK", "P", "1", "LA"])
def test_pictures_of_other_modes_are_those_of_pillow(start, pixels, mode):
    """Alpha is left out, palettes and inks become colours."""
    llm, model, processor = start("ViTForImageClassification")
    picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels, 0, -1))).convert(mode)
    with torch.inference_mode():
        raw = model(**processor(picture.convert("RGB"), return_tensors="pt")).logits[0].softmax(0)
    assert one(llm, picture).score == pytest.approx(float(raw.max()), abs=1e-6)


def test_a_picture_that_exif_turns_is_seen_upright(start, pixels, tmp_path):
    """As pipelines of transformers see a file: a mask of the upright picture."""
    llm, model, processor = start("SegformerForSemanticSegmentation")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels, 0, -1))).save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as file:
        upright = ImageOps.exif_transpose(file)
    with torch.inference_mode():
        raw = model(**processor(upright, return_tensors="pt"))
    (expected,) = processor.post_process_semantic_segmentation(raw, target_sizes=[upright.size[::-1]])
    np.testing.assert_array_equal(one(llm, tmp_path / "turned.png").array[0], expected)


def test_of_an_animation_the_first_picture_is_seen(start, pixels, tmp_path):
    """As ``Image.open`` gives it."""
    llm, model, processor = start("ViTForImageClassification")
    frames = [Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels // part, 0, -1))) for part in (1, 2, 4)]
    frames[0].save(tmp_path / "moving.png", save_all=True, append_images=frames[1:])
    with torch.inference_mode():
        raw = model(**processor(frames[0], return_tensors="pt")).logits[0].softmax(0)
    assert one(llm, tmp_path / "moving.png").score == pytest.approx(float(raw.max()), abs=1e-6)


def test_pictures_that_cannot_be_scaled_are_refused(start):
    """A picture without area, and one a pixel high whose other side the processor would blow up."""
    llm, _, _ = start("ResNetForImageClassification")
    with pytest.raises(InputError, match="no pixels"):
        one(llm, np.zeros((3, 0, 8), np.uint8))
    with pytest.raises(InputError, match="5 bands"):
        one(llm, np.zeros((5, 8, 8), np.uint8))
