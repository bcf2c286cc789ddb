"""Makes the weights of the embedded model: ``python tests/support/make_weights.py FOLDER``.

They are not trained but written down, so that the shipped file can be made again, byte for byte.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

GREEN, SWIR_1 = 1, 4
"""Channels of the two bands that the index compares, from 0."""

STEEPNESS = 8.0
"""Logit of water for an index of 1; that of land is its negative, so an index of 0.1 is water with probability 0.83."""


def water_index_weights() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """The weights of `WaterIndex`: names of its ``state_dict`` to float32 arrays."""
    index = np.zeros((2, 6, 1, 1), np.float32)
    index[0, GREEN] = index[1, GREEN] = index[1, SWIR_1] = 1
    index[0, SWIR_1] = -1
    return {"index": index, "head": np.array([-STEEPNESS, STEEPNESS], np.float32).reshape(2, 1, 1)}


def write_weights(folder: Path) -> Path:
    """Write ``model.safetensors`` into a folder and return its path."""
    path = folder / "model.safetensors"
    path.write_bytes(save(water_index_weights(), metadata={"format": "pt"}))
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{write_weights(Path(sys.argv[1]))}\n")
