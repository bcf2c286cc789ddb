"""Options for iterative models, such as diffusion models."""

from __future__ import annotations

import math
import re
from typing import Annotated

import msgspec

from vllm_mmout.option import said
from vllm_mmout.params.processors import wrong
from vllm_mmout.params.reading import ReadingOptions

OF_STEPS = ("num_inference_steps", "guidance_scale", "seed", "strength", "negative_prompt", "size")
"""Names of the options for iterative models, such as diffusion models. Other models do not accept these options."""


_SIZE = re.compile(r"[1-9]\d{0,4}x[1-9]\d{0,4}", re.ASCII)


class SteppingOptions(ReadingOptions, frozen=True, kw_only=True):
    """Options for iterative models such as diffusion models, named as in diffusers and OpenAI's API."""

    num_inference_steps: Annotated[
        int | None, said("number of steps of an iterative model. By default as the model says.", ge=1, le=100_000)
    ] = None
    guidance_scale: Annotated[
        float | None,
        said(
            "strength of classifier-free guidance: how closely the result follows the prompt. By default the model's."
        ),
    ] = None
    seed: Annotated[
        int | None,
        said(
            "seed of the random numbers of the request. The same seed gives the same result. By default random.",
            ge=0,
            le=2**63 - 1,
        ),
    ] = None
    strength: Annotated[
        float | None,
        said("how much of an input picture is changed, from 0 to 1. By default the model's.", ge=0, le=1),
    ] = None
    negative_prompt: Annotated[str | None, said("description of what the result should not show.")] = None
    size: Annotated[
        str | None,
        said(
            '"auto", or width and height of the result in pixels, such as 512x512.',
            metavar="WIDTHxHEIGHT",
            max_length=11,
        ),
    ] = None

    @property
    def sides(self) -> tuple[int, int] | None:
        """Requested (width, height) of the result in pixels, or None for the model's default."""
        if self.size is None:
            return None
        width, height = self.size.split("x")
        return int(width), int(height)

    def _check_steps(self) -> None:
        if self.guidance_scale is not None and not math.isfinite(self.guidance_scale):
            raise wrong("guidance_scale", f"must be finite, got {self.guidance_scale}")
        if self.size == "auto":
            msgspec.structs.force_setattr(self, "size", None)
        if self.size is not None and not _SIZE.fullmatch(self.size):
            raise wrong("size", f'must be "auto" or WIDTHxHEIGHT in pixels, got {self.size!r}')
