"""What the embedded model must answer, in plain numpy; inputs that can be told apart; what an idle engine is."""

from __future__ import annotations

import numpy as np
from processors_for_tests import digest


def scene(seed, height=24, width=20):
    """A dim input of its own: uint16 [6, height, width], reflectances of 0.3 to 0.6, every logit between -3 and 3."""
    return np.random.default_rng(seed).integers(3000, 6000, (6, height, width), dtype=np.uint16)


def bright(seed, height=24, width=20):
    """The same with one pixel of clear water, whose logits are -8 and 8."""
    array = scene(seed, height, width)
    array[1, 3, 4], array[4, 3, 4] = 9000, 0
    return array


def logits(array):
    """float32 [2, height, width]: land and water are -8 and 8 times MNDWI (Xu 2006), bit for bit."""
    scale = np.float32(1e-4 if array.dtype.kind in "iu" else 1)
    reflectance = np.maximum(array.astype(np.float32) * scale, np.float32(0))
    green, swir = reflectance[1], reflectance[4]
    index = (green - swir) / np.maximum(green + swir, np.float32(1e-6))
    return np.stack([index * np.float32(-8), index * np.float32(8)])


def echo(array):
    """What ``Echo`` must say of the model's answer to an input."""
    answer = logits(array)
    return (answer.shape, "torch.float32", digest(answer))


def leftovers(router):
    """What an engine's output processor still holds, by name; empty for one that is idle."""
    held = {
        "request_states": dict(router.request_states),
        "external_req_ids": dict(router.external_req_ids),
        "parent_requests": dict(router.parent_requests),
        "pending": dict(router.pending),
        "ready": list(router.ready),
    }
    return {name: value for name, value in held.items() if value}
