"""Strategy for the options of a request."""

from __future__ import annotations

from hypothesis import strategies as st

from vllm_mmout.params import OutputParams
from vllm_mmout.processors.base import OutputProcessor

_BANDS = st.lists(st.integers(1, 12) | st.sampled_from(["B02", "B03", "red"]), min_size=1, max_size=4).map(tuple)
_INDICES = st.lists(st.integers(0, 11), min_size=1, max_size=4).map(tuple)
_NODATA = st.none() | st.sampled_from([0.0, -9999.0, float("nan")])


@st.composite
def output_params(
    draw: st.DrawFn, processor: OutputProcessor | type[OutputProcessor] | None = None, *, free: bool = True
) -> OutputParams:
    """Options that a processor must take; shrinks to ``OutputParams()``.

    Args:
        draw: given by hypothesis.
        processor: its ``outputs`` are what ``output`` is drawn from, besides None; without one ``output`` is None.
        free: whether options that say how the *input* is read (``bands``, ``indices``, ``nodata``, ``overlap``), and
            how often a scene is shown (``partial_images``), are set as well; a processor is given them and has nothing
            to do with them.

    """
    output = draw(st.sampled_from((None, *(() if processor is None else processor.outputs))))
    if not free:
        return OutputParams(output=output)
    which = draw(st.sampled_from(["none", "bands", "indices"]))
    return OutputParams(
        output=output,
        bands=draw(_BANDS) if which == "bands" else None,
        indices=draw(_INDICES) if which == "indices" else None,
        nodata=draw(_NODATA),
        overlap=draw(st.integers(0, 64)),
        partial_images=draw(st.integers(0, 3)),
    )
