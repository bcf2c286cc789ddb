"""Folders of diffusers on a real engine: what a user sends, and the picture, frames or raster that comes."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

import small_pipelines  # noqa: E402 - after the imports that may skip
from model_folders import engine_here  # noqa: E402 - as above
from PIL import Image  # noqa: E402 - as above

from vllm_mmout import OutputParams  # noqa: E402 - as above
from vllm_mmout.errors import InputError, OptionError  # noqa: E402 - as above

pytestmark = [pytest.mark.engine]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A pipeline that starts from a picture, and an engine of its folder, which has no config.json."""
    pipeline = small_pipelines.pipeline("StableDiffusionImg2ImgPipeline")
    folder = tmp_path_factory.mktemp("image-to-image")
    pipeline.save_pretrained(folder)
    assert not (folder / "config.json").exists()
    return pipeline, engine_here(folder, max_num_seqs=3)


def picture(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (32, 48, 3), np.uint8))


def test_a_folder_with_nothing_but_a_pipeline_is_served(drawn, tmp_path):
    """Five requests of other lengths and strengths in an engine of three: each as diffusers gives it alone."""
    pipeline, llm = drawn
    file = tmp_path / "picture.png"
    picture(0).save(file)
    asked = [{"prompt": "a boat"[: 3 + n], "image": picture(n) if n else str(file)} for n in range(5)]
    options = [{"num_inference_steps": 4 + n % 3, "strength": 0.5 + n / 10, "guidance_scale": 2.0} for n in range(5)]
    options[1]["negative_prompt"] = "fog"
    results = llm.generate(asked, [OutputParams(seed=n, **said) for n, said in enumerate(options)])
    for n in (0, 1, 4):
        source = {**asked[n], "image": picture(n)}
        generator = torch.Generator().manual_seed(n)
        (own,) = pipeline(**source, **options[n], generator=generator).images
        assert results[n].outputs.array.shape == (32, 48, 3)
        assert np.abs(results[n].outputs.array.astype(int) - np.array(own)).max() <= 1


@pytest.mark.parametrize(
    ("data", "options", "error", "says"),
    [
        ("a boat", {}, InputError, "StableDiffusionImg2ImgPipeline refuses the request: .*PIL.Image"),
        ({"prompt": "a", "picture": 3}, {}, InputError, "got picture; leave it out"),
        (
            {"prompt": "a", "image": np.zeros((3, 8, 8))},
            {},
            InputError,
            "image must be a picture of uint8, got float32",
        ),
        ({"prompt": ["a"], "image": np.zeros((3, 8, 8), np.uint8)}, {}, InputError, "prompt must be a text"),
        ({"prompt": "a"}, {"size": "32x32"}, OptionError, "size is set"),
        ({"prompt": "a"}, {"bands": [1]}, OptionError, "bands says how a raster is read"),
    ],
)
def test_what_cannot_be_taken_is_said(drawn, data, options, error, says):
    """It names the field or the option."""
    with pytest.raises(error, match=says):
        drawn[1].generate(data, OutputParams(**options))


def test_a_raster_comes_back_on_its_place_with_finer_pixels(tmp_path_factory):
    """Four bands in, four bands out in twice the resolution, on the same ground."""
    rasterio = pytest.importorskip("rasterio")
    pipeline = small_pipelines.pipeline("LDMSuperResolutionPipeline")
    folder = tmp_path_factory.mktemp("super-resolution")
    pipeline.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"bands": ["blue", "green", "red", "nir"], "max_size": 64}))
    values = np.random.default_rng(4).random((4, 16, 16), np.float32)
    profile = {"driver": "GTiff", "count": 4, "height": 16, "width": 16, "dtype": "float32", "crs": "EPSG:32631"}
    place = rasterio.transform.Affine(20, 0, 500_000, 0, -20, 5_000_000)
    with rasterio.open(folder / "scene.tif", "w", transform=place, **profile) as file:
        file.write(values)
    llm = engine_here(folder, max_num_seqs=2)
    params = OutputParams(num_inference_steps=3, seed=7, scale=2.0, offset=-1.0)
    (result,) = llm.generate(str(folder / "scene.tif"), params)
    generator = torch.Generator().manual_seed(7)
    own = pipeline(torch.from_numpy(values * 2 - 1)[None], num_inference_steps=3, generator=generator, output_type="pt")
    np.testing.assert_allclose(result.outputs.array, own.images[0].numpy(), atol=1e-4)
    assert result.outputs.crs == "EPSG:32631"
    assert result.outputs.transform[0] == 10


def test_a_text_comes_back_as_frames(tmp_path_factory):
    """Of a number that the request says; a dict with a prompt is the pipeline's, not vLLM's."""
    pipeline = small_pipelines.pipeline("WanPipeline")
    folder = tmp_path_factory.mktemp("text-to-video")
    pipeline.save_pretrained(folder)
    llm = engine_here(folder, max_num_seqs=2)
    params = OutputParams(num_inference_steps=2, seed=3, size="48x32", negative_prompt="fog")
    results = llm.generate([{"prompt": "a boat", "num_frames": frames} for frames in (5, 9)], params)
    for result, frames in zip(results, (5, 9), strict=True):
        said = {"num_frames": frames, "height": 32, "width": 48, "negative_prompt": "fog", "num_inference_steps": 2}
        generator = torch.Generator().manual_seed(3)
        own = pipeline("a boat", **said, generator=generator, output_type="np").frames[0]
        array = result.outputs.frames
        assert array.shape == (frames, 32, 48, 3)
        assert np.abs(array.astype(int) - (own * 255).round()).max() <= 1
