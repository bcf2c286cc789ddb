"""The output processor CoverPercent: shares become percent, a byte a pixel, in colours from soil to leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from vllm_mmout import OutputProcessor, RasterOutput
from vllm_mmout.errors import OptionError, ReduceError

if TYPE_CHECKING:
    import torch
    from vllm_mmout import OutputParams

NODATA = 255
STEPS = (1, 2, 5, 10, 20, 25, 50)
SOIL, GRASS, LEAF = (217, 207, 180), (166, 190, 104), (0, 90, 50)


class CoverPercent(OutputProcessor):
    """An output processor that makes a raster of percent from shares 0 to 1, or returns the shares unchanged.

    ``OutputParams(output=...)`` selects "percent" (the default), uint8 with nodata 255, or "share", float32 with nodata
    NaN.

    Args:
        step: Percent are rounded to multiples of this divisor of 100, which is at most 50.

    Raises:
        OptionError: The step is not such a divisor.

    """

    modality = "raster"
    outputs = ("percent", "share")

    def __init__(self, *, step: int = 1) -> None:
        if step not in STEPS:
            raise OptionError(f"step must be one of {', '.join(map(str, STEPS))}, got {step!r}")
        self._step = step
        self._palette = _palette()

    def reduce(self, output: torch.Tensor, params: OutputParams) -> torch.Tensor:
        """Reduce the model's output in the worker, on the device, so that one byte a pixel is sent instead of four.

        Args:
            output: Shares [n, 1, height, width], with the requests on axis 0.
            params: The options of the requests, of which ``output`` is used.

        Returns:
            Percent, uint8 [n, height, width], or shares, float32 [n, height, width].

        Raises:
            ReduceError: The model's output has another shape or type.

        """
        import torch

        if not isinstance(output, torch.Tensor) or output.ndim != 4 or output.shape[1] != 1:
            received = list(output.shape) if isinstance(output, torch.Tensor) else f"a dict of {', '.join(output)}"
            raise ReduceError(f"CoverPercent takes shares [n, 1, height, width], got {received}")
        share = output[:, 0].float()
        if params.output == "share":
            return share
        percent = (share.clamp(0, 1) * (100 // self._step)).round() * self._step
        return percent.nan_to_num(nan=NODATA).to(torch.uint8)

    def decode(self, raw: torch.Tensor, params: OutputParams, state: Any = None) -> RasterOutput:
        """Make the raster of a request, in a thread of the frontend. The engine then adds the input's georeference.

        Args:
            raw: The result of ``reduce`` for this request, [height, width], read-only.
            params: The options of the request, as in ``reduce``.
            state: Unused.

        """
        array = raw.numpy()[np.newaxis].copy()
        if params.output == "share":
            return RasterOutput(array, nodata=float("nan"), band_names=["green cover"])
        return RasterOutput(array, nodata=NODATA, band_names=["green cover"], units=["%"], palette=self._palette)


def _palette() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the colours of 0 to 100 percent, uint8 [101, 3]."""
    colours = np.array([SOIL, GRASS, LEAF], float)
    return np.stack([np.interp(np.arange(101), [0, 50, 100], channel) for channel in colours.T], 1).astype(np.uint8)
