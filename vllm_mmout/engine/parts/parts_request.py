"""PartInput: one part of a request that is many of the engine's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from vllm_mmout.engine.observer import SILENT, Observer
from vllm_mmout.errors import MMOutError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from vllm.pooling_params import PoolingParams

    from vllm_mmout.engine.parts.fan_out import FanOut
    from vllm_mmout.engine.request.budgets import TileBudget
    from vllm_mmout.engine.request.decode import Finish
    from vllm_mmout.geo.raster.window import Window
    from vllm_mmout.outputs.partial_images import PartialImages, PreviewRequest
    from vllm_mmout.params import OutputParams


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


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the engine gets: an input that fits one forward, or a part."""

    prompt: Any
    """A pre-rendered ``mm_input``, or a prompt that vLLM renders."""
    mark: Mapping[str, Any]
    """See `marker.mark`."""
    finish: Finish
    """What is done with the decoded output."""
    nbytes: int = 0
    """Bytes of input that travel; of a part they are the `TileBudget`'s."""
    pooling: PoolingParams | None = None
    """As of `PartInput`."""


@dataclass(frozen=True, slots=True)
class Driver:
    """Who runs the parts of a request."""

    budget: TileBudget
    """Of all requests of this kind."""
    wake: Callable[[], None]
    """Called from any thread when there is something to do."""
    observer: Observer = SILENT
    """Hears of parts."""
    growing: PartialImages | None = None
    """Shown the first pick's result."""
    request_id: str = ""
    """What the user calls the request."""


class PartedRequest(ABC):
    """What a `Run` needs of a request to run its parts."""

    params: OutputParams
    """The user's."""

    @property
    @abstractmethod
    def tile_params(self) -> OutputParams:
        """The params of each part's request."""

    @property
    def pixels(self) -> int:
        """Pixels of its input; 0 where nobody counts them."""
        return 0

    @property
    @abstractmethod
    def can_wait(self) -> bool:
        """Whether `pause` leaves little held, so that many may wait for their turn."""

    @abstractmethod
    def check_tiles(self, most: int) -> None:
        """Refuse, and close, a request of more parts than it may have."""

    @abstractmethod
    def made_in(self, folder: Path | None) -> Self:
        """The same with a folder for what lies on disk meanwhile, where it has none of its own."""

    def growing(self, notify: Callable[[], None], watch: PreviewRequest | None = None) -> PartialImages | None:
        """What makes the pictures of the growing result; None where it has none."""
        return None

    @abstractmethod
    def fan_out(self, driver: Driver) -> FanOut:
        """The request as its parts, not started."""

    def tile_finish(self, fan_out: FanOut, part: PartInput) -> Finish:
        """What is done with a part's decoded output: it is handed to those who join."""

        def finish(output: Any, pick: str | None) -> None:
            if pick is not None:
                fan_out.decoded(part, pick, output)

        return finish

    def outputs(self, results: Mapping[str, Any]) -> Any:
        """The results of the picks as the user asked for them: one alone, or a dict by name."""
        return dict(results) if isinstance(self.params.processor, tuple) else next(iter(results.values()))

    def pause(self) -> None:  # noqa: B027 - most hold nothing
        """Hold as little as can be until it is run."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what it holds."""
