"""OutputProcessor, which the author of a model subclasses, and the Parts of a scene that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from vllm_mmout.errors import DecodeError, MMOutError, raise_interrupt, type_and_message

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.geo import TileGrid, Window
    from vllm_mmout.outputs import RasterOutput
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.partial_images import PartialImages
    from vllm_mmout.params import OutputParams

    Raw: TypeAlias = torch.Tensor | dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """One decoded part of a user's request, given to ``assemble``."""

    index: int
    """Place of the part in the request, from 0."""
    window: Window | None
    """Where the part lies in the input, or in the ``window`` of it that was asked for; None without pixels."""
    output: Any
    """What ``decode`` returned for it; None for a part without any observation, which was not given to the model."""
    valid: NDArray[np.bool_] | None = None
    """bool [height, width] of the window, False where its input holds no observation; None: everywhere valid."""


class OutputProcessor:
    """Turns what a model emits into one output object; subclass it and register it on the model's class.

    One instance lives in each process: ``reduce`` is called on the worker's, ``decode`` and ``assemble`` on the
    frontend's, from several threads at once. Keep decoder weights on ``self``; never keep anything of a request there.
    """

    modality: ClassVar[str] = "tensor"
    """Kind of the output object: "tensor", "image", "video", "audio", "raster", "structured"."""

    outputs: ClassVar[tuple[str, ...]] = ()
    """Values of ``OutputParams.output`` that this processor knows, the default first; empty: it has no choice."""

    binding: ClassVar[str] = "vllm_mmout.engine.binding:Binding"
    """What an engine of a model with this processor is bound by, a subclass of `EngineBinding` as "module:Class"."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> OutputProcessor:
        """Make the instance of a process.

        ``config`` is the model's ``config.json``; ``options``, by the names of the constructor's keyword arguments,
        are what the engine argument or the ``mmout`` table of ``config.json`` sets (unknown ones have been refused
        before).
        """
        return cls(**options)

    def formats(self, params: OutputParams) -> Mapping[str, str] | None:
        """The formats of what a request gets, suffix -> format, the usual one first; None: not known before.

        A name that tells none is refused before a scene is run, and so is an input whose place a format of the name
        "geojson" or "geoparquet" could not name.
        """
        from vllm_mmout.outputs import ImageOutput, MediaOutput, RasterOutput, VideoOutput

        known: dict[str, type[MediaOutput]] = {"raster": RasterOutput, "image": ImageOutput, "video": VideoOutput}
        return known[self.modality].formats if self.modality in known else None

    # The arguments are Any, not Raw: an author may say which of the two a processor takes.
    def reduce(self, output: Any, params: OutputParams) -> Raw:
        """Shrink the model's raw output in the worker, on the device, before it is copied to the host.

        Args:
            output: the model's output, or a dict of outputs; axis 0 holds the requests of this step that share shape
                and equal params.
            params: options that these requests share.

        Returns:
            A tensor or a dict of tensors with the same axis 0. That is what travels. The default returns all of it.

        Raises:
            ReduceError: the output has another shape or dtype than the processor takes, or does not fit its options.

        """
        given: Raw = output
        return given

    def decode(self, raw: Any, params: OutputParams, state: Any = None) -> Any:
        """Make the output object of one engine request, in a thread of the frontend.

        Args:
            raw: what ``reduce`` returned for this request, without axis 0, on the CPU. Read-only.
            params: options of the request.
            state: what ``begin`` returned for the user's request, None without it.

        Raises:
            DecodeError: ``raw`` is not what ``reduce`` returns, or no output can be made of its values.

        """
        raise NotImplementedError(f"{type(self).__name__} must define decode(raw, params, state=None)")

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join the parts of one user's request as they arrive, in any order, in a thread of the frontend.

        The default serves requests of a single part, and joins the tiles of rasters: where tiles overlap their values
        are averaged, integers are taken from the tile in whose middle they lie.

        Args:
            parts: a `Parts` for the tiles of a scene; its ``mosaic`` joins rasters, its ``grid`` says where tiles lie.
            params: options of the request.

        Raises:
            DecodeError: there are several parts and the processor does not say how to join them.

        """
        if isinstance(parts, Parts) and self.modality == "raster":
            return parts.mosaic(params)
        first = next(parts)
        if next(parts, None) is not None:
            raise DecodeError(
                f"{type(self).__name__} got an input of several parts and has no assemble(); define it, or send inputs"
                " that fit one forward"
            )
        return first.output

    @property
    def joins_parts(self) -> bool:
        """Whether `assemble` can join several parts; where it cannot, an input that needs tiles is refused at once."""
        return self.modality == "raster" or type(self).assemble is not OutputProcessor.assemble

    def begin(self, params: OutputParams) -> Any:
        """What one request remembers between its own chunks, handed to ``decode`` as ``state``; nothing by default."""
        return None


def formats_for(processor: OutputProcessor, params: OutputParams) -> Mapping[str, str] | None:
    """Return a processor's ``formats(params)``; whatever it raises is a DecodeError, so that it ends no server."""
    try:
        return processor.formats(params)
    except MMOutError:
        raise
    except BaseException as error:
        raise_interrupt(error)
        raise DecodeError(f"{type(processor).__name__} failed in formats(): {type_and_message(error)}") from error


class OwnInputsProcessor(OutputProcessor):
    """Makes the inputs of a request and, of the raw tensors that the model gives for them, its result."""

    honours: ClassVar[frozenset[str]] = frozenset({"processor"})
    """Fields of `OutputParams` that its requests may set."""

    def load(self) -> None:
        """Import what it needs; called before a process of the engine is started."""

    def started(self, vllm_config: Any, renderer: Any) -> Self:
        """The same for an engine that is there, with vLLM's renderer, which makes the model's inputs of prompts."""
        return self

    def request(self, pick: str, data: Any, params: OutputParams, limit_s: float) -> Any:
        """One request, a `vllm_mmout.engine.parts.parts_request.PartedRequest`, of which nothing is run yet.

        ``pick`` is the name of this processor on the engine, ``limit_s`` what one call of another author's code may
        take.
        """
        raise NotImplementedError(f"{type(self).__name__} must define request(pick, data, params, limit_s)")


class Parts(Iterator["Part"]):
    """Iterates over the parts that have an output, in order of arrival; each is given once.

    ``grid`` says where the tiles lie, which ``Part.index`` counts; ``source`` is the scene; ``folder`` is where a
    result on disk is to be made, None for the system's folder for temporary files; ``growing`` is shown what `mosaic`
    has finished.
    """

    def __init__(
        self,
        parts: Iterable[Part],
        *,
        grid: TileGrid,
        source: Source,
        folder: Path | None = None,
        growing: PartialImages | None = None,
    ) -> None:
        self._parts = iter(parts)
        self.grid = grid
        self.source = source
        self.folder = folder
        self._growing = growing

    def __next__(self) -> Part:
        return next(part for part in self._parts if part.output is not None)

    def every(self) -> Iterator[Part]:
        """Those parts as well that were not given to the model, since their input holds no observation."""
        return self._parts

    def mosaic(
        self, params: OutputParams, finish: Callable[[RasterOutput], RasterOutput] | None = None
    ) -> RasterOutput:
        """Join tiles of a raster into one on disk, a `StoredRaster` that lies on the scene.

        The memory for it grows with a side of the scene where tiles overlap, never with its area; ``params`` say how
        they are joined. ``finish`` makes the result of joined values, pixel by pixel, on rectangles of any size:
        classes of averaged probabilities. DecodeError: an output is no raster, or tiles do not fit together.
        """
        from vllm_mmout.processors.mosaic import mosaic

        blend = params.blend if params.overlap and self.grid.overlap else "none"
        return mosaic(
            self.every(),
            self.grid,
            blend=blend,
            finish=finish,
            folder=self.folder,
            source=self.source,
            growing=self._growing,
        )
