"""Class `Scratch`: buffers that a thread reuses for each strip or tile that it decodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """Named buffers of one thread that grow to the largest size needed and are reused.

    Fresh memory for each segment would cost more time (page faults) than decoding some compressions.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, count: int) -> NDArray[np.uint8]:
        """Return an array of ``count`` bytes. The next call with the same ``name`` overwrites the array."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < count:
            self._buffers[name] = buffer = np.empty(count, np.uint8)
        return buffer[:count]
