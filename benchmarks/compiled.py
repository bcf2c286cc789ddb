"""Compiled against eager forwards: Prithvi tiny with UPerNet, a U-Net (ResNet-18), ViT-B/16; random weights.

Eager and compiled forwards take turns, in batches of 1 and 4. The engine's own `CompiledForward` compiles for batches
of 1, 2 and 4, with a fresh cache of kernels for each network and dtype (a second start would reuse the kernels). It
needs TerraTorch: ``.venv-terratorch/bin/python -m benchmarks compiled``. ``COMPILED_ROUNDS`` and ``COMPILED_DTYPES``
make shorter runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
    """A network to measure."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    """Bands, height and width of an input in pixels."""


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    networks = (
        Network("Prithvi tiny", partial(prithvi, "prithvi_eo_v2_tiny_tl", 64, (2, 5, 8, 11), CLASSES), (6, 224, 224)),
        Network("U-Net", _unet, (6, 256, 256)),
        Network("ViT-B/16", _vit, (3, 224, 224)),
    )
    return [row for network in networks for dtype in DTYPES for row in rows(network, dtype)]


def prithvi(backbone: str, channels: int, layers: Sequence[int], classes: int) -> nn.Module:
    """Build a Prithvi ``backbone`` with UPerNet by TerraTorch, with random weights.

    Args:
        backbone: TerraTorch's name of the backbone.
        channels: channels of the decoder.
        layers: indices of the backbone's layers that the decoder gets.
        classes: number of classes.

    """
    from terratorch.models import EncoderDecoderFactory

    network: nn.Module = EncoderDecoderFactory().build_model(
        task="segmentation",
        backbone=backbone,
        backbone_bands=["BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2"],
        backbone_pretrained=False,
        backbone_num_frames=1,
        decoder="UperNetDecoder",
        decoder_channels=channels,
        num_classes=classes,
        necks=[{"name": "SelectIndices", "indices": [*layers]}, {"name": "ReshapeTokensToImage"}],
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
    """Return the network as a served model, whose ``forward`` takes keyword arguments and returns a tensor."""
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

    torch._dynamo.reset()  # noqa: SLF001 - there is no public function for this
    with torch.inference_mode(), fresh_cache():
        yield


def rows(network: Network, dtype: str, device: str = "cpu", batches: Sequence[int] = BATCHES) -> Iterator[Row]:
    """Yield a row for each batch size of a network that the engine compiles as a single-pass model."""
    import torch

    from vllm_mmout.models.author import run as eager
    from vllm_mmout.models.compiled import CompiledForward

    def inputs(count: int) -> dict[str, Any]:
        return {"pixel_values": torch.randn((count, *network.shape), dtype=kind, device=device)}

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    plain = _served(network.make()).to(device, kind)
    ours = _served(plain.network)
    with _own_cache():
        eager(plain, inputs(1))
        started = time.perf_counter()
        forward = CompiledForward(ours, {name: batch[0] for name, batch in inputs(1).items()}, max(batches))
        start_s = time.perf_counter() - started
        for batch in batches:
            pairs = [_pair(lambda batch: eager(plain, batch), forward.run, inputs(batch)) for _ in range(ROUNDS)]
            eager_s, compiled_s, differences, differing = zip(*pairs, strict=True)
            figures = {
                "ratio": Figure.ratio(eager_s, compiled_s),
                "eager ms": Figure.of(1e3 * seconds for seconds in eager_s),
                "compiled ms": Figure.of(1e3 * seconds for seconds in compiled_s),
                "start s": start_s,
                "largest difference": max(differences),
                "pixels of the mask that differ": sum(differing),
            }
            yield Row(f"{network.name}, {dtype}, batch of {batch}", figures)
        forward.remove()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call and its result. On a CUDA device, wait until the device has finished."""
    import torch

    settle = torch.cuda.synchronize if torch.cuda.is_available() else int
    settle()
    started = time.perf_counter()
    result = call()
    settle()
    return time.perf_counter() - started, result


def _pair(
    eager: Callable[[Any], Any], compiled: Callable[[Any], Any], inputs: Mapping[str, Any]
) -> tuple[float, float, float, int]:
    """Return eager and compiled seconds, the relative difference and the number of pixels whose classes differ.

    The relative difference is the largest difference divided by the largest value. Ties are not counted. A pixel is a
    tie if its two best logits differ by at most twice the largest difference.
    """
    eager_s, expected = timed(lambda: eager(inputs).float())
    compiled_s, output = timed(lambda: compiled(inputs).float())
    difference = float((output - expected).abs().max())
    first, second = expected.topk(2, dim=1).values.unbind(1)
    differing = (output.argmax(1) != expected.argmax(1)) & (first - second > 2 * difference)
    return eager_s, compiled_s, difference / float(expected.abs().max()), int(differing.sum())
