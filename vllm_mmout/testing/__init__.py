"""Test tools for authors of output processors: hypothesis strategies, and checks of what engines require.

A complete test file::

    from flood_masks import FloodMask  # takes logits [n, 2, height, width]
    from hypothesis import given

    from vllm_mmout import OutputParams
    from vllm_mmout.testing import check_output_processor, tensors

    LOGITS = tensors(("n", 2, "height", "width"), dtype=("float32", "bfloat16"))


    def test_flood_mask_keeps_its_promises():
        check_output_processor(FloodMask, outputs=LOGITS)


    @given(LOGITS)
    def test_the_mask_is_where_water_is_likelier(logits):
        processor, params = FloodMask(), OutputParams()
        mask = processor.decode(processor.reduce(logits, params)[0], params)
        assert mask.array.shape == (1, *logits.shape[2:])

``check_output_processor`` runs every function of ``PROMISES``; each can be called alone with a ``Case``. It needs
torch, but neither a model nor an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_mmout.lazy import lazy_names
from vllm_mmout.wing import extensions

try:
    import hypothesis as _hypothesis  # noqa: F401 - this whole package needs it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'vllm_mmout.testing needs hypothesis; pip install "vllm-mmout[testing]"', name="hypothesis"
    ) from error

if TYPE_CHECKING:
    from vllm_mmout.testing.case import Case
    from vllm_mmout.testing.check import check_output_processor
    from vllm_mmout.testing.equality import difference
    from vllm_mmout.testing.promises import PROMISES
    from vllm_mmout.testing.strategies import georeferences, output_params, rasters
    from vllm_mmout.testing.tensor_strategies import FLOATING, model_outputs, tensors

__all__ = [
    "FLOATING",
    "PROMISES",
    "Case",
    "check_output_processor",
    "difference",
    "georeferences",
    "model_outputs",
    "output_params",
    "rasters",
    "tensors",
]

_HOMES = {
    "vllm_mmout.testing.case": "Case",
    "vllm_mmout.testing.check": "check_output_processor",
    "vllm_mmout.testing.equality": "difference",
    "vllm_mmout.testing.promises": "PROMISES",
    "vllm_mmout.testing.strategies": "georeferences output_params rasters",
    "vllm_mmout.testing.tensor_strategies": "FLOATING model_outputs tensors",
}
"""Maps each module to the public names that it defines, separated by spaces."""

_own, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    """Return a public object of this package, or a test function that an extension package adds."""
    return next(extensions("testing", name), None) or _own(name)
