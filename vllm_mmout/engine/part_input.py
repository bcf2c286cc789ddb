"""PartInput: one part of a request that is many of the engine's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import MMOutError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from vllm.pooling_params import PoolingParams

    from vllm_mmout.raster.window import Window


@dataclass(frozen=True, slots=True)
class PartInput:
    """One part, ready for the engine."""

    index: int
    window: Window | None
    prompt: Any
    """What the engine takes, rendered; None for a part without any observation, which is not sent."""
    valid: NDArray[np.bool_] | None = None
    where: str = "part"
    """What it is called in messages, which count from the first pixel of the input."""
    pooling: PoolingParams | None = None
    """vLLM's params of its request, where they are others than those of the model."""

    def sent(self) -> PartInput:
        """The same without what is sent, which need not stay in memory until the part is decoded."""
        return replace(self, prompt=None)

    def named_in(self, error: BaseException) -> BaseException:
        """The same error, saying which part it is about."""
        if not isinstance(error, MMOutError):
            return error
        try:
            named = type(error)(f"{self.where}: {error}")
        except Exception:  # noqa: BLE001 - an author's error that takes other arguments
            error.add_note(f"this was {self.where}")
            return error
        named.__cause__ = error.__cause__
        vars(named).update(vars(error))
        return named
