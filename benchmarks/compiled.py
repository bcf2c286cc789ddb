"""Compiled forwards against eager ones: Prithvi tiny with UPerNet, a U-Net (ResNet-18), ViT-B/16; random weights.

Eager and compiled take turns, in batches of 1 and 4; the engine's own `CompiledForward` compiles for 1, 2 and 4. Needs
TerraTorch: ``.venv-terratorch/bin/python -m benchmarks compiled``. ``COMPILED_ROUNDS`` and ``COMPILED_DTYPES`` make
shorter runs.
Kernels are compiled anew for each, in a cache of its own; a second start takes them from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.report import Figure, Row, setting

if TYPE_CHECKING:
    from torch import nn

ROUNDS = int(setting("COMPILED_ROUNDS", "15"))
DTYPES = setting("COMPILED_DTYPES", "float32,bfloat16").split(",")
BATCHES = (1, 4)
CLASSES = 2
PLOTTED = ("ratio",)
PACKAGES = ("terratorch", "segmentation-models-pytorch", "timm")


@dataclass(frozen=True, slots=True)
class Network:
    """What is measured."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    """Bands, height and width of an input."""


def run() -> list[Row]:
    """Measure."""
    networks = (
        Network("Prithvi tiny", _prithvi, (6, 224, 224)),
        Network("U-Net", _unet, (6, 256, 256)),
        Network("ViT-B/16", _vit, (3, 224, 224)),
    )
    return [row for network in networks for dtype in DTYPES for row in rows(network, dtype)]


def _prithvi() -> nn.Module:
    from terratorch.models import EncoderDecoderFactory

    network: nn.Module = EncoderDecoderFactory().build_model(
        task="segmentation",
        backbone="prithvi_eo_v2_tiny_tl",
        backbone_bands=["BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2"],
        backbone_pretrained=False,
        backbone_num_frames=1,
        decoder="UperNetDecoder",
        decoder_channels=64,
        num_classes=CLASSES,
        necks=[{"name": "SelectIndices", "indices": [2, 5, 8, 11]}, {"name": "ReshapeTokensToImage"}],
        rescale=True,
    )
    return network


def _unet() -> nn.Module:
    import segmentation_models_pytorch as smp

    network: nn.Module = smp.Unet("resnet18", encoder_weights=None, in_channels=6, classes=CLASSES)
    return network


def _vit() -> nn.Module:
    import timm

    network: nn.Module = timm.create_model("vit_base_patch16_224", pretrained=False, num_classes=CLASSES)
    return network


def _served(network: nn.Module) -> nn.Module:
    """As a model that is served: keywords in, a tensor out."""
    from torch import nn

    class Served(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, pixel_values: Any) -> Any:
            output = self.network(pixel_values)
            return getattr(output, "output", output)

    return Served().eval()


@contextmanager
def _own_cache() -> Iterator[None]:
    import torch
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()  # noqa: SLF001 - it has no public name
    with torch.inference_mode(), fresh_cache():
        yield


def rows(network: Network, dtype: str, device: str = "cpu", batches: Sequence[int] = BATCHES) -> Iterator[Row]:
    """A network's figures by batch, of a single-pass model as the engine compiles it."""
    import torch

    from vllm_mmout.models.author import run as eager
    from vllm_mmout.models.compiled import CompiledForward

    def inputs(count: int) -> list[dict[str, Any]]:
        return [{"pixel_values": torch.randn(network.shape, dtype=kind, device=device)} for _ in range(count)]

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    plain = _served(network.make()).to(device, kind)
    ours = _served(plain.network)
    with _own_cache():
        eager(plain, inputs(1))
        started = time.perf_counter()
        forward = CompiledForward(ours, inputs(1)[0], max(batches))
        start_s = time.perf_counter() - started
        for batch in batches:
            pairs = [_pair(lambda given: eager(plain, given), forward.run, inputs(batch)) for _ in range(ROUNDS)]
            eager_s, compiled_s, differences, differing = zip(*pairs, strict=True)
            figures = {
                "ratio": Figure.ratio(eager_s, compiled_s),
                "eager ms": Figure.of(1e3 * each for each in eager_s),
                "compiled ms": Figure.of(1e3 * each for each in compiled_s),
                "start s": start_s,
                "largest difference": max(differences),
                "pixels of the mask that differ": sum(differing),
            }
            yield Row(f"{network.name}, {dtype}, batch of {batch}", figures)
        forward.remove()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call and what it gives; of a CUDA device's work until it is done."""
    import torch

    settle = torch.cuda.synchronize if torch.cuda.is_available() else int
    settle()
    started = time.perf_counter()
    result = call()
    settle()
    return time.perf_counter() - started, result


def _pair(
    eager: Callable[[Sequence[Any]], Any], compiled: Callable[[Sequence[Any]], Any], given: Sequence[Any]
) -> tuple[float, float, float, int]:
    """Seconds of both, the largest difference as a part of the largest value, and classes that differ but for ties.

    A tie is a margin of at most twice the largest difference.
    """
    eager_s, wanted = timed(lambda: eager(given).float())
    compiled_s, found = timed(lambda: compiled(given).float())
    off = float((found - wanted).abs().max())
    first, second = wanted.topk(2, dim=1).values.unbind(1)
    differing = (found.argmax(1) != wanted.argmax(1)) & (first - second > 2 * off)
    return eager_s, compiled_s, off / float(wanted.abs().max()), int(differing.sum())
