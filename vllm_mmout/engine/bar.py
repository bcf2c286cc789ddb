"""The progress bar of ``LLM.generate``: inputs, and where there are scenes, tiles and megapixels a second."""

from __future__ import annotations

import time
from typing import Any

from tqdm.auto import tqdm


class Bar:
    """Counts inputs that are done; a scene counts as its tiles.

    Args:
        use_tqdm: as of ``generate``: whether to show a bar, or what makes one.
        inputs: number of inputs.

    """

    def __init__(self, use_tqdm: Any, inputs: int) -> None:
        make = use_tqdm if callable(use_tqdm) else tqdm
        self._tqdm = make(total=inputs, desc="Inputs", unit="input", dynamic_ncols=True, disable=not use_tqdm)
        self._pixels = 0.0
        self._started: float | None = None

    def add_scene(self, tiles: int) -> None:
        """Count a scene, so far an input, as its tiles."""
        if self._started is None:
            self._started = time.monotonic()
            self._tqdm.unit = "tile"
            self._tqdm.set_description_str("Tiles", refresh=False)
        self._tqdm.total += tiles - 1

    def update(self, count: int = 1) -> None:
        """Some are done."""
        self._tqdm.update(count)

    def update_scene(self, tiles: int, pixels: float) -> None:
        """Some tiles of a scene are done, and with them some of its pixels."""
        self._pixels += pixels
        seconds = time.monotonic() - (self._started or 0)
        self._tqdm.set_postfix_str(f"{self._pixels / 1e6 / max(seconds, 1e-3):.1f} Mpx/s", refresh=False)
        self._tqdm.update(tiles)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._tqdm.close()
