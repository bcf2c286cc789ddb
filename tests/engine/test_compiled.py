"""``compile``: forwards of the engine that ``torch.compile`` has compiled before it serves."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
import torch
from model_folders import ENGINE, engine_elsewhere, folder_of, kept_engine, says
from models_for_tests import THREE_BANDS
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.errors import ModelError, OptionError
from vllm_mmout.models import compiled as compiling
from vllm_mmout.models.author import run
from vllm_mmout.models.compiled import TOLERANCE, CompiledForward, compile_model

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("compiling")]


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: THREE_BANDS)
class SmallUNet(nn.Module):
    """Down, up and across, with batch norms: logits of three classes."""

    def __init__(self, config):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.GELU())
        self.across = nn.Conv2d(3, 16, 3, padding=1)
        self.head = nn.Sequential(nn.BatchNorm2d(32), nn.Conv2d(32, 3, 1))

    def forward(self, pixel_values):
        pixels = pixel_values.float() / 255
        up = nn.functional.interpolate(self.down(pixels), pixels.shape[2:], mode="bilinear")
        return self.head(torch.cat([up, self.across(pixels)], 1))


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: THREE_BANDS)
class OfIntegers(nn.Module):
    """The same, of which what gets floats is compiled."""

    def __init__(self, config, network=SmallUNet):
        super().__init__()
        self.network = network(config)

    @property
    def compiled_part(self):
        return self.network

    def forward(self, pixel_values):
        return self.network(pixel_values.float())


class Picky(SmallUNet):
    """Raises at one value."""

    def forward(self, pixel_values):
        if (pixel_values == 255).all():
            raise ValueError("all is white")
        return super().forward(pixel_values)


class OtherNumbers(SmallUNet):
    """Gives other numbers when it is compiled."""

    def forward(self, pixel_values):
        return super().forward(pixel_values) + 0.01 * torch.compiler.is_compiling()


class Marked(SmallUNet):
    """Shows whether it is compiled, by less than what is allowed."""

    def forward(self, pixel_values):
        return super().forward(pixel_values) + 1e-5 * torch.compiler.is_compiling()


class Several(SmallUNet):
    """Gives two tensors."""

    def forward(self, pixel_values):
        logits = super().forward(pixel_values)
        return {"logits": logits, "classes": logits.argmax(1)}


def made(model, seed=0):
    torch.manual_seed(seed)
    return model({}).eval()


def dummy(size=16):
    return {"pixel_values": torch.zeros(3, size, size)}


def requests(count, size=16, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randint(0, 255, (count, 3, size, size), generator=generator).float()}


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield
    torch._dynamo.reset()


@pytest.fixture
def said(caplog, monkeypatch):
    """What the log says."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO, "vllm.mmout")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "vllm.mmout"]


def test_thousand_requests_of_mixed_sizes_compile_nothing(tmp_path):
    """Of the size that was compiled and others, in batches of one to four: values and classes as those of eager."""
    folder, weights = folder_of(tmp_path / "model", OfIntegers, mmout={"output_processor": "tensor"})
    llm = kept_engine(folder, **ENGINE, max_num_seqs=4, additional_config={"mmout": {"compile": "on"}})
    network = made(OfIntegers)
    network.load_state_dict(weights)
    rng = np.random.default_rng(0)
    sides = rng.choice([64, 64, 64, 48, 31], 1000)
    images = [rng.integers(0, 255, (3, side, side), np.uint8) for side in sides]
    graphs, frames = counters["stats"]["unique_graphs"], counters["frames"]["total"]
    assert graphs > 0
    arrays, sent = [], 0
    while sent < len(images):
        count = int(rng.integers(1, 13))
        results = llm.generate(images[sent : sent + count], use_tqdm=False)
        arrays += [result.outputs.array for result in results]
        sent += count
    assert (counters["stats"]["unique_graphs"], counters["frames"]["total"]) == (graphs, frames)
    for image, array in zip(images, arrays, strict=True):
        eager = network(torch.from_numpy(image)[None])[0]
        bound = TOLERANCE[torch.float32] * float(eager.abs().max())
        given = torch.from_numpy(np.array(array))
        assert float((given - eager).abs().max()) <= bound
        first, second = eager.topk(2, dim=0).values
        assert bool(((given.argmax(0) == eager.argmax(0)) | (first - second <= 2 * bound)).all())


def test_batches_are_of_the_sizes_that_were_compiled(monkeypatch):
    """At most a quarter of a batch is padding; what is larger than all is cut."""
    forward = CompiledForward(made(Several), dummy(), 8)
    assert forward.sizes == (1, 2, 4, 8)
    eager, sizes = made(Several), []
    monkeypatch.setattr(
        compiling, "run", lambda model, batch: sizes.append(len(batch["pixel_values"])) or run(model, batch)
    )
    wanted = {1: [1], 2: [2], 3: [4], 4: [4], 5: [4, 1], 6: [8], 7: [8], 8: [8], 9: [8, 1], 19: [8, 8, 4]}
    frames = counters["frames"]["total"]
    for count, batches in wanted.items():
        sizes.clear()
        alike = requests(count)
        given = forward.run(alike)
        assert sizes == batches
        expected = run(eager, alike)
        torch.testing.assert_close(given["logits"], expected["logits"])
        assert given["classes"].shape == expected["classes"].shape
    assert counters["frames"]["total"] == frames


def test_a_largest_batch_that_is_no_power_of_two_is_compiled(monkeypatch):
    """A step of 6 requests is one batch of 6, and one of 5 too."""
    monkeypatch.setattr(torch, "compile", lambda call, **way: call)
    forward = CompiledForward(made(Several), dummy(), 6)
    assert forward.sizes == (1, 2, 4, 6)
    assert [forward._next_batch(count) for count in (6, 5, 4, 3, 7)] == [(6, 6), (6, 5), (4, 4), (4, 3), (6, 6)]


def test_the_fastest_way_that_works_is_kept(monkeypatch):
    """A way that fails and a slower one are left; the smaller batches are compiled in the fastest."""
    ways = ({"backend": "no-such-backend"}, {"backend": "eager"}, {"backend": "aot_eager"})
    speedups = iter([2.0, 1.5])
    monkeypatch.setattr(compiling, "_WAYS", ways)
    monkeypatch.setattr(CompiledForward, "_speedup", lambda forward, batch: next(speedups))
    used = []
    monkeypatch.setattr(torch, "compile", lambda call, *, dynamic, backend: Way(call, backend, used))
    forward = CompiledForward(made(SmallUNet), dummy(), 2)
    assert forward.speedup == 2.0
    assert set(used[-3:]) == {"eager"}
    used.clear()
    forward.run(requests(2))
    assert used == ["eager"]


class Way:
    """Stands for a forward that is compiled by a backend."""

    def __init__(self, call, backend, used):
        self.call, self.backend, self.used = call, backend, used

    def __call__(self, **inputs):
        if self.backend == "no-such-backend":
            raise RuntimeError("there is no such backend")
        self.used.append(self.backend)
        return self.call(**inputs)


def test_another_shape_runs_as_it_was():
    """As one batch, to the bit."""
    model = made(SmallUNet)
    forward = CompiledForward(model, dummy(), 2)
    alike = requests(3, size=20)
    frames = counters["frames"]["total"]
    given = forward.run(alike)
    assert counters["frames"]["total"] == frames
    forward.remove()
    assert torch.equal(given, model(**alike))


def of_bytes(alike):
    return {name: tensor.byte() for name, tensor in alike.items()}


def test_another_dtype_runs_as_it_was(said):
    """Which is said once, with what to do."""
    model, eager = made(Marked), made(Marked)
    forward, alike = CompiledForward(model, dummy(), 2), requests(2)
    assert mark(forward.run(alike), run(eager, alike)) == pytest.approx(1e-5, rel=0.2)
    for _ in range(2):
        assert mark(forward.run(of_bytes(alike)), run(eager, alike)) == 0
    ((level, message),) = said()
    assert level == "WARNING"
    says(message, "Marked runs as it is for pixel_values uint8", "compiled for pixel_values float32", "`compiled_part`")


def test_a_compiled_part_takes_any_dtype_that_the_model_takes(said):
    """What it gets is made of it by the rest."""
    model, eager = (OfIntegers({}, Marked).eval() for _ in range(2))
    eager.load_state_dict(model.state_dict())
    forward, alike = CompiledForward(model, dummy(), 2), requests(2)
    assert mark(forward.run(of_bytes(alike)), run(eager, alike)) == pytest.approx(1e-5, rel=0.2)
    assert said() == []


def mark(given, eager):
    """How far compiled results are from eager ones, in the middle."""
    return float((given - eager).median())


def test_an_error_is_the_models_own():
    """Of what ``forward`` raises; the next batch is answered."""
    forward = CompiledForward(made(Picky), dummy(), 2)
    with pytest.raises(ModelError, match=r"Picky failed on 2 inputs of pixel_values.*all is white"):
        forward.run({"pixel_values": torch.full((2, 3, 16, 16), 255.0)})
    assert forward.run(requests(2)).shape == (2, 3, 16, 16)


def test_what_gives_other_numbers_runs_as_it_was(said):
    """With one warning that says how far they are off."""
    assert_not_compiled(OtherNumbers, said, r"compiled it is 0\.01\d* off")


def test_without_a_compiler_it_runs_as_it_was(said):
    """With one warning that says why."""
    with fresh_cache(), torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert_not_compiled(SmallUNet, said, "InvalidCxxCompiler.*no-such-compiler")


def assert_not_compiled(model, said, why):
    network = made(model)
    assert compile_model(network, dummy(), 4, if_faster=False) is None
    ((level, message),) = said()
    assert level == "WARNING"
    assert message.startswith(f"{model.__name__} runs as it is, it does not compile: ")
    assert re.search(why, message)
    assert "forward" not in vars(network)


def test_what_does_not_pay_runs_as_it_was(said, monkeypatch):
    """Where it is to be kept only if it is faster; else it is kept."""
    monkeypatch.setattr(compiling, "MIN_SPEEDUP", 1e9)
    network = made(SmallUNet)
    assert compile_model(network, dummy(), 1, if_faster=True) is None
    assert "forward" not in vars(network)
    assert compile_model(network, dummy(), 1, if_faster=False) is not None
    (_, first), (_, second) = said()
    says(first, "SmallUNet runs as it is: compiled it was", "times as fast")
    says(second, "SmallUNet is compiled for batches of 1:", "times as fast")


def test_an_unknown_value_is_refused(tmp_path):
    """Before anything is started."""
    folder, _ = folder_of(tmp_path / "model", SmallUNet, mmout={"output_processor": "tensor"})
    with pytest.raises(OptionError, match="compile") as raised:
        engine_elsewhere(folder, additional_config={"mmout": {"compile": "fast"}})
    says(raised.value, "fast", "compile")
