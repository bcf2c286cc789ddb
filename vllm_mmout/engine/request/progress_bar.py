"""Progress bar of a call of ``LLM.generate``, which counts inputs and tiles."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

if TYPE_CHECKING:
    from vllm_mmout.engine.scene.run import Run


class Bar:
    """Progress bar of a call of ``LLM.generate``. It counts the finished inputs, and the finished tiles of scenes."""

    def __init__(self, use_tqdm: Any, inputs: int) -> None:
        make = use_tqdm if callable(use_tqdm) else tqdm
        self._tqdm = make(total=inputs, desc="Inputs", unit="input", dynamic_ncols=True, disable=not use_tqdm)
        self._pixels = 0.0
        self._started: float | None = None
        self._counted: dict[Run, int] = {}
        """Number of tiles that the progress bar has counted, by scene."""

    def update(self, count: int = 1) -> None:
        """Advance the progress bar by ``count`` finished inputs or tiles."""
        self._tqdm.update(count)

    def show(self, run: Run) -> None:
        """Advance the progress bar by the tiles of a scene that were finished since the last call."""
        if run.total and run not in self._counted:
            self._counted[run] = 0
            self._add_scene(run.total)
        tiles = run.done - self._counted.get(run, 0)
        if tiles:
            self._counted[run] += tiles
            self._pixels += tiles / run.total * run.pixels
            seconds = time.monotonic() - (self._started or 0)
            self._tqdm.set_postfix_str(f"{self._pixels / 1e6 / max(seconds, 1e-3):.1f} Mpx/s", refresh=False)
            self._tqdm.update(tiles)

    def uncounted(self, run: Run) -> int:
        """Return how many tiles of a scene the progress bar has not counted. A scene that never began counts as 1."""
        return max(run.total, 1) - self._counted.get(run, 0)

    def _add_scene(self, tiles: int) -> None:
        """Add the tiles of a scene to the progress bar's total, which so far counted the scene as a single input."""
        if self._started is None:
            self._started = time.monotonic()
            self._tqdm.unit = "tile"
            self._tqdm.set_description_str("Tiles", refresh=False)
        self._tqdm.total += tiles - 1

    def close(self) -> None:
        """Stop updating the bar."""
        self._tqdm.close()
