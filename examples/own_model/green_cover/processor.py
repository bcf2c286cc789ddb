"""CoverPercent: shares become percent, one byte a pixel, in colours from soil to leaf."""

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
    """Turns shares from 0 to 1 into a raster of percent, or gives them as they are.

    ``OutputParams(output=...)`` chooses: "percent" (the default), uint8 with nodata 255; or "share", float32 with
    nodata NaN.

    Args:
        step: percent are rounded to multiples of it; a divisor of 100 from 1 to 50.

    Raises:
        OptionError: the step is none of these.

    """

    modality = "raster"
    outputs = ("percent", "share")

    def __init__(self, *, step: int = 1) -> None:
        if step not in STEPS:
            raise OptionError(f"step must be one of {', '.join(map(str, STEPS))}, got {step!r}")
        self._step = step
        self._palette = _palette()

    def reduce(self, output: torch.Tensor, params: OutputParams) -> torch.Tensor:
        """In the worker, on the device: of four bytes a pixel one is left to travel.

        Args:
            output: shares [n, 1, height, width], the requests on axis 0.
            params: ``output`` says what is asked for.

        Returns:
            Percent, uint8 [n, height, width]; or shares, float32 [n, height, width].

        Raises:
            ReduceError: the model gave something else.

        """
        import torch

        if not isinstance(output, torch.Tensor) or output.ndim != 4 or output.shape[1] != 1:
            given = list(output.shape) if isinstance(output, torch.Tensor) else f"a dict of {', '.join(output)}"
            raise ReduceError(f"CoverPercent takes shares [n, 1, height, width], got {given}")
        share = output[:, 0].float()
        if params.output == "share":
            return share
        percent = (share.clamp(0, 1) * (100 // self._step)).round() * self._step
        return percent.nan_to_num(nan=NODATA).to(torch.uint8)

    def decode(self, raw: torch.Tensor, params: OutputParams, state: Any = None) -> RasterOutput:
        """In a thread of the frontend: a raster of one request, which the engine then lays on its input.

        Args:
            raw: what ``reduce`` returned for this request, [height, width], read-only.
            params: as in ``reduce``.
            state: not used.

        """
        array = raw.numpy()[np.newaxis].copy()
        if params.output == "share":
            return RasterOutput(array, nodata=float("nan"), band_names=["green cover"])
        return RasterOutput(array, nodata=NODATA, band_names=["green cover"], units=["%"], palette=self._palette)


def _palette() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The colours of 0 to 100 percent, uint8 [101, 3]."""
    colours = np.array([SOIL, GRASS, LEAF], float)
    return np.stack([np.interp(np.arange(101), [0, 50, 100], channel) for channel in colours.T], 1).astype(np.uint8)
