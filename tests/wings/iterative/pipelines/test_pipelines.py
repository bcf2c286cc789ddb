"""Pipelines of diffusers, step by step: what each request gets is what diffusers gives for it alone."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
small_pipelines = pytest.importorskip("small_pipelines")

from PIL import Image  # noqa: E402 - after the imports that may skip

from vllm_mmout import OutputParams  # noqa: E402 - as above
from vllm_mmout.errors import InputError, OptionError, RequestError  # noqa: E402 - as above
from vllm_mmout.wings.iterative.pipelines.arguments import as_bytes  # noqa: E402 - as above
from vllm_mmout.wings.iterative.pipelines.loading import KEY  # noqa: E402 - as above
from vllm_mmout.wings.iterative.pipelines.model import PipelineModel  # noqa: E402 - as above

pytestmark = [
    pytest.mark.engine,
    # Of some schedulers of diffusers, which give numpy tensors.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Gives a small pipeline, and its folder, with another scheduler where one is named."""
    made = {}

    def saved(name, scheduler=None):
        if (name, scheduler) not in made:
            pipeline = small_pipelines.pipeline(name)
            if scheduler is not None:
                prk = {"skip_prk_steps": True} if scheduler == "PNDMScheduler" else {}
                pipeline.scheduler = getattr(diffusers, scheduler).from_config(pipeline.scheduler.config, **prk)
            folder = tmp_path_factory.mktemp(name)
            pipeline.save_pretrained(folder)
            made[name, scheduler] = pipeline, str(folder)
        return made[name, scheduler]

    return saved


def model_of(folder, processor="image", **entries):
    model = PipelineModel(config_of(folder, processor, **entries))
    model.config = config_of(folder)
    return model


def config_of(folder, processor="image", **entries):
    return {"mmout": {"output_processor": processor}, KEY: {"folder": folder, **entries}}


def diffusers_own(pipeline, *, seed, **arguments):
    """What diffusers' own pipeline gives for one request."""
    generator = torch.Generator().manual_seed(seed)
    return pipeline(**arguments, generator=generator, output_type="pt", return_dict=False)[0][0]


def served(model, requests, drops=()):
    """A small engine: all requests beside each other, one more begins at each step; some are dropped on their way."""
    waiting, running, done, results = dict(enumerate(requests)), {}, {}, {}
    while waiting or running:
        if waiting:
            row = next(iter(waiting))
            inputs, asked = waiting.pop(row)
            running[row] = model.begin(inputs, asked), 0, model.count_steps(model.config, inputs, asked)
        states = model.step([state for state, _, _ in running.values()], [step for _, step, _ in running.values()])
        moved = {
            row: (new, step + 1, last) for (row, (_, step, last)), new in zip(running.items(), states, strict=True)
        }
        running = {row: one for row, one in moved.items() if one[1] < one[2] and not (row in drops and one[1] == 2)}
        done |= {row: one[0] for row, one in moved.items() if one[1] >= one[2]}
        if len(done) > 1 or not (waiting or running):
            results |= dict(zip(done, model.finish(list(done.values())), strict=True))
            done = {}
    return results


def tensor(value):
    if isinstance(value, str):
        return torch.from_numpy(as_bytes(value).copy())
    if isinstance(value, Image.Image):
        planes = np.array(value)
        return torch.from_numpy(planes[None] if planes.ndim == 2 else np.moveaxis(planes, -1, 0).copy())
    return value[0] if isinstance(value, torch.Tensor) else torch.tensor(value)


def picture(seed, height=32, width=32):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def mask(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 2, (4, 4), np.uint8) * 255).resize((32, 32), 0)


_SMALL = {"height": 32, "width": 32}
REQUESTS = {
    "DiTPipeline": lambda n: {"class_labels": [n], "guidance_scale": 1.0 if n % 3 == 2 else 1.5 + n},
    "StableDiffusionPipeline": lambda n: {
        "prompt": "a boat on lake"[: 5 + n],
        **(_SMALL if n % 4 else {"height": 32, "width": 48}),
        "guidance_scale": 1.0 if n % 3 == 2 else 2.0 + n,
        **({"negative_prompt": "fog"} if n % 2 else {}),
    },
    "StableDiffusion3Pipeline": lambda n: {"prompt": "a boat"[: 2 + n], **_SMALL, "guidance_scale": 1.0 + n},
    "StableDiffusionImg2ImgPipeline": lambda n: {"prompt": "a lake", "image": picture(n), "strength": 0.5 + n / 20},
    "StableDiffusionInpaintPipeline": lambda n: {
        "prompt": "a lake",
        "image": picture(n),
        "mask_image": mask(n),
        **_SMALL,
        "strength": 1.0 if n % 2 else 0.8,
    },
    "WanPipeline": lambda n: {"prompt": "a boat sails"[: 3 + n], **_SMALL, "num_frames": 9 if n == 4 else 5},
    "LDMSuperResolutionPipeline": lambda n: {
        "image": torch.rand(1, 4, 16, 16, generator=torch.Generator().manual_seed(n)) * 2 - 1
    },
}
OPTIONS = {"num_inference_steps", "guidance_scale", "strength", "negative_prompt", "seed"}
CASES = [
    *((name, None) for name in REQUESTS),
    ("StableDiffusionPipeline", "EulerAncestralDiscreteScheduler"),
    ("StableDiffusionPipeline", "PNDMScheduler"),
]


def split(arguments):
    """Arguments of diffusers as inputs and options."""
    options = {name: value for name, value in arguments.items() if name in OPTIONS}
    sides = {"height", "width"} & arguments.keys()
    if sides:
        options["size"] = f"{arguments['width']}x{arguments['height']}"
    inputs = {name: tensor(value) for name, value in arguments.items() if name not in OPTIONS and name not in sides}
    return inputs, OutputParams(**options)


@pytest.mark.parametrize(("name", "scheduler"), CASES)
def test_each_request_gets_what_diffusers_gives_for_it_alone(small, name, scheduler):
    """Alone, and beside seven others of other lengths, seeds and sizes, of which one is dropped."""
    pipeline, folder = small(name, scheduler)
    asked = [{**REQUESTS[name](n), "seed": 100 + n, "num_inference_steps": 3 + n % 3} for n in range(8)]
    model = model_of(folder, "tensor")
    alone = served(model, [split(asked[3])])[0]
    beside = served(model, [split(one) for one in asked], drops={2})
    assert beside.keys() == {0, 1, 3, 4, 5, 6, 7}
    assert not [one for one in beside.values() if not isinstance(one, torch.Tensor)]
    for row in (3, 4, 7):
        own = diffusers_own(pipeline, **asked[row])
        torch.testing.assert_close(beside[row], own, rtol=0, atol=1e-4)
        assert own.std() > 0.01
    torch.testing.assert_close(alone, beside[3], rtol=0, atol=1e-4)
    networks = {key[0].__self__ for key, together in model._runs._together._batches.items() if together}
    assert len(networks) == 2, "denoiser and decoder must have been run in batches"


def test_a_picture_has_the_bytes_that_diffusers_gives_it(small):
    """uint8 [3, height, width], rounded as diffusers rounds it for Pillow."""
    pipeline, folder = small("StableDiffusionPipeline")
    asked = {**REQUESTS["StableDiffusionPipeline"](1), "seed": 3, "num_inference_steps": 3}
    (result,) = served(model_of(folder), [split(asked)]).values()
    seed = asked.pop("seed")
    (own,) = pipeline(**asked, generator=torch.Generator().manual_seed(seed)).images
    assert np.abs(np.array(own).astype(int) - result.permute(1, 2, 0).numpy()).max() <= 1  # 1: where rounding decides
    assert result.dtype == torch.uint8
    assert result.shape == (3, 32, 32)


def test_a_large_picture_is_decoded_in_the_pipelines_own_tiles(small):
    """As `vae.enable_tiling` decodes it; a small one whole."""
    pipeline, folder = small("StableDiffusionPipeline")
    asked = [
        {"prompt": "a boat", "height": side, "width": side, "seed": 4, "num_inference_steps": 1} for side in (64, 32)
    ]
    results = served(model_of(folder, "tensor", tiled_above=48 * 48), [split(one) for one in asked])
    whole = [diffusers_own(pipeline, **one) for one in asked]
    pipeline.vae.enable_tiling()
    try:
        tiled = diffusers_own(pipeline, **asked[0])
    finally:
        pipeline.vae.disable_tiling()
    assert (tiled - whole[0]).abs().max() > 1e-3
    torch.testing.assert_close(results[0], tiled, rtol=0, atol=1e-4)
    torch.testing.assert_close(results[1], whole[1], rtol=0, atol=1e-4)


def test_a_request_that_fails_is_alone_with_it(small):
    """Its error stands in its place, when its step fails and when it ends; the others go on."""
    pipeline, folder = small("StableDiffusionPipeline")
    model = model_of(folder, "tensor")
    asked = {"prompt": "a boat", **_SMALL, "seed": 5, "num_inference_steps": 2}
    good, bad = (model.begin(*split(asked)) for _ in range(2))
    bad.task.call.kwargs["encoder_hidden_states"] = bad.task.call.kwargs["encoder_hidden_states"][..., :5]
    stepped = model.step([good, bad], [0, 0])
    assert stepped[0] is good
    assert isinstance(stepped[1], RequestError)
    assert "StableDiffusionPipeline failed: RuntimeError" in str(stepped[1])
    results = model.finish([good, bad])
    assert isinstance(results[1], RequestError)
    torch.testing.assert_close(results[0], diffusers_own(pipeline, **asked), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["StableDiffusion3Pipeline", "WanPipeline", "LDMSuperResolutionPipeline"])
def test_a_preview_is_what_the_latents_are_decoded_to(small, name):
    """After the last step it is the result; before it, a picture of that size, and the request goes on as before."""
    pipeline, folder = small(name)
    model = model_of(folder, "tensor")
    asked = {**REQUESTS[name](1), "seed": 8, "num_inference_steps": 2}
    state = model.begin(*split(asked))
    (state,) = model.step([state], [0])
    (early,) = model.preview([state])
    (state,) = model.step([state], [1])
    (last,) = model.preview([state])
    (result,) = model.finish([state])
    assert early.shape == result.shape
    assert not torch.equal(early, last)
    torch.testing.assert_close(last, result, rtol=0, atol=1e-4)
    torch.testing.assert_close(result, diffusers_own(pipeline, **asked), rtol=0, atol=1e-4)


def test_a_request_that_is_dropped_leaves_no_trace(small):
    """Its run ends, and the thread computes gradients as before."""
    _, folder = small("DiTPipeline")
    model = model_of(folder)
    dropped = model.begin({"class_labels": torch.tensor(3)}, OutputParams(num_inference_steps=4))
    task = dropped.task
    del dropped
    assert task.dead
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("inputs", "options", "error", "says"),
    [
        ({"class_labels": 3}, {"strength": 0.5}, OptionError, "strength is set, and DiTPipeline takes num_inference"),
        ({"class_labels": 3}, {"size": "32x32"}, OptionError, "size is set"),
        ({"class_labels": 3, "prompt": "a"}, {}, InputError, "DiTPipeline takes class_labels, guidance_scale"),
        ({}, {}, InputError, "DiTPipeline refuses the request: .*class_labels"),
    ],
)
def test_what_the_pipeline_does_not_take_is_refused(small, inputs, options, error, says):
    """With its name, before anything is computed."""
    _, folder = small("DiTPipeline")
    with pytest.raises(error, match=says):
        model_of(folder).begin({name: tensor(value) for name, value in inputs.items()}, OutputParams(**options))
