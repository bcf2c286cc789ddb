"""What one call of ``LLM.generate`` knows of each of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.fan_out import FanOut
    from vllm_mmout.engine.part_input import PartInput
    from vllm_mmout.engine.parted import PartedRequest
    from vllm_mmout.params import OutputParams


@dataclass(slots=True)
class Wanted:
    """One input of a call and what was asked for it."""

    data: Any
    params: OutputParams
    priority: int
    lora_request: LoRARequest | None


@dataclass(slots=True)
class SceneRun:
    """A scene, or another request of many parts, whose tiles are in flight."""

    place: int
    request_id: str
    scene: PartedRequest
    fan_out: FanOut
    shown: int = 0
    """Tiles that the bar has counted."""
    aborted: bool = False
    counted: bool = False
    """Whether the bar has its number of tiles."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request between admission and delivery."""

    place: int
    nbytes: int
    internal_id: str
    run: SceneRun | None = None
    """The scene that it is a tile of."""
    part: PartInput | None = None
