"""`OutputProcessor`, the base class for decoding a model's output, and `Parts`, an iterator over a scene's tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from vllm_mmout.errors import DecodeError, MMOutError, OptionError, raise_interrupt, type_and_message
from vllm_mmout.processors.part import Part
from vllm_mmout.processors.parts import Parts

if TYPE_CHECKING:
    import torch

    from vllm_mmout.geo import PlacedArea
    from vllm_mmout.outputs import RasterOutput
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.option_values import ModelClass

    Raw: TypeAlias = torch.Tensor | dict[str, torch.Tensor]


class OutputProcessor:
    """Base class of output processors, which turn the tensors that a model returns into an output object.

    Subclass it and register the subclass on the model's class. Each process holds one instance: the worker calls
    ``reduce`` on its own, the frontend calls ``decode`` and ``assemble`` on its own from several threads at once.
    Keep decoder weights on ``self``, but never any state of a request.
    """

    modality: ClassVar[str] = "tensor"
    """Kind of the output: "tensor", "image", "video", "audio", "raster", "structured"."""

    outputs: ClassVar[tuple[str, ...]] = ()
    """Values of ``OutputParams.output`` that this processor accepts. The first value is the default. Empty if the
    processor has a single kind of output."""

    products: ClassVar[tuple[str, ...]] = ()
    """Kinds of output that one request may ask for together, the default kind first. Empty if a request may ask for
    one kind only.

    The method `product` converts an output of the default kind to the other kinds."""

    binding: ClassVar[str] = ""
    """Subclass of `EngineBinding`, as "module:Class", that adapts vLLM's engine to models with this processor. By
    default `Binding`, for models that answer in a single forward pass."""

    output_stride: int = 1
    """Number of input pixels, along each side, that one pixel of the output raster covers.

    Tiles begin at multiples of this number. An output pixel at the lower or right edge may extend beyond the input."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> OutputProcessor:
        """Create an instance for this process from the model's ``config.json`` and the processor's ``options``.

        ``config`` is the model's ``config.json``. ``options`` are the keyword arguments for the constructor, from the
        engine argument or from the ``mmout`` table of ``config.json``; unknown options have already been refused.
        """
        return cls(**options)

    @property
    def model_classes(self) -> Sequence[ModelClass]:
        """Classes that the model can detect, by ascending id. Empty if the names of the classes are unknown."""
        return ()

    def formats(self, params: OutputParams) -> Mapping[str, str] | None:
        """Return the file formats of the output, as a dict from suffix to format name. The first format is the default.

        Returns None if the formats are not known in advance. Before a scene is run, a file name whose suffix is not
        among the formats is refused, and so is an input without a position on the Earth if the suffix selects the
        format "geojson" or "geoparquet".
        """
        from vllm_mmout.outputs import ImageOutput, MediaOutput, RasterOutput, VideoOutput

        classes: dict[str, type[MediaOutput]] = {"raster": RasterOutput, "image": ImageOutput, "video": VideoOutput}
        return classes[self.modality].formats if self.modality in classes else None

    # The arguments are Any rather than Raw, so that a subclass may narrow them to a tensor or to a dict.
    def reduce(self, output: Any, params: OutputParams) -> Raw:
        """Shrink the model's raw output on the device, in the worker process, before it is copied to the host.

        Args:
            output: the model's output, or a dict of outputs; axis 0 holds the requests of this step whose outputs have
                the same shape and whose params are equal.
            params: options of these requests.

        Returns:
            A tensor or a dict of tensors with the same axis 0. It is copied to the host and sent to the frontend. The
            default returns ``output`` unchanged.

        Raises:
            ReduceError: the output has a shape or dtype that the processor does not support, or does not fit its
                options.

        """
        raw: Raw = output
        return raw

    def decode(self, raw: Any, params: OutputParams, state: Any = None) -> Any:
        """Build the output object of one input or one tile, in a thread of the frontend process.

        Args:
            raw: return value of ``reduce`` for this request, without axis 0, on the CPU. Read-only.
            params: options of the request.
            state: return value of ``begin`` for the user's request, or None without it.

        Raises:
            DecodeError: ``raw`` does not come from ``reduce``, or its values do not give an output.

        """
        raise NotImplementedError(f"{type(self).__name__} must define decode(raw, params, state=None)")

    def decode_tiles(self, raw: Any, params: OutputParams) -> Sequence[Any] | None:
        """Build the outputs of several tiles at once. Return None if the processor does not support that.

        If None is returned, ``decode`` is called for each tile. The default returns None. Override the method if that
        is faster; the outputs must equal those of ``decode``. If the method raises, ``decode`` is called for each tile,
        so that the error names the tile.

        Args:
            raw: return value of ``reduce``, with the tiles on axis 0, on the CPU. Read-only.
            params: options of the request.

        """
        return None

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join the decoded parts of a user's request, such as tiles. Parts arrive in any order.

        Called in a thread of the frontend process.

        The default handles requests of a single part, and joins the tiles of rasters. Where tiles overlap, it averages
        floating-point values, and takes integers from the tile whose centre is nearest.

        Args:
            parts: a `Parts` for the tiles of a scene; its ``mosaic`` joins rasters, its ``grid`` holds the windows of
                the tiles.
            params: options of the request.

        Raises:
            DecodeError: there are several parts, and the processor does not define how to join them.

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

    def mosaic_scene(self, params: OutputParams) -> OutputParams:
        """Return the options for computing one scene of a mosaic. The output of the scene must be a raster.

        The default returns ``params``. Raises OptionError if results of this processor cannot be joined to one map.
        """
        if self.modality != "raster":
            raise OptionError(
                f"a mosaic joins rasters, and {type(self).__name__} gives {self.modality}; leave mosaic out",
                param="mosaic",
            )
        if params.mosaic == "confident":
            raise OptionError(
                f'mosaic="confident" needs the probabilities of classes, which {type(self).__name__} does not give;'
                ' choose "newest", "first" or "clear"',
                param="mosaic",
            )
        return params

    def mosaic_pixels(self, params: OutputParams) -> Callable[[RasterOutput], RasterOutput] | None:
        """Return the function that computes the result from a mosaic's pixels, or None if the pixels are the result."""
        return None

    def mosaic_output(self, raster: RasterOutput, params: OutputParams, area: PlacedArea | None) -> Any:
        """Convert the joined raster of a mosaic to the requested kind of output. By default, return it unchanged.

        ``area`` is the area of interest, to which the raster is masked already, or None.
        """
        return raster

    @property
    def joins_parts(self) -> bool:
        """True if `assemble` can join the outputs of tiles. If False, inputs that need tiles are refused."""
        return self.modality == "raster" or type(self).assemble is not OutputProcessor.assemble

    def product(self, output: Any, kind: str, params: OutputParams, source: Source) -> Any:
        """Convert an output of the default kind to ``kind``, for a request that asks for several kinds.

        Called in a thread of the frontend process. The products of a request share ``output``, so it must not be
        changed or closed.

        Args:
            output: the finished result of the default kind, georeferenced like its input.
            kind: the kind to make, which may be the default itself.
            params: options of the request.
            source: description of the input, such as its area of interest.

        """
        raise NotImplementedError(f"{type(self).__name__} must define product(output, kind, params, source)")

    def begin(self, params: OutputParams) -> Any:
        """Begin decoding an output. Return the state that is passed to ``decode``, or None if it needs no state.

        An output that is decoded in chunks needs a state. The default is None.
        """
        return None


def formats_for(processor: OutputProcessor, params: OutputParams) -> Mapping[str, str] | None:
    """Return ``processor.formats(params)``. Convert unexpected exceptions to DecodeError.

    A server thus survives a faulty processor.
    """
    try:
        return processor.formats(params)
    except MMOutError:
        raise
    except BaseException as error:
        raise_interrupt(error)
        raise DecodeError(f"{type(processor).__name__} failed in formats(): {type_and_message(error)}") from error


def check_output(name: str, processor: OutputProcessor, output: str | tuple[str, ...] | None) -> None:
    """Raise OptionError if the processor ``name`` cannot return the kinds of output that a request asks for.

    It may lack a kind, or be unable to return several kinds for one request.
    """
    if output is None:
        return
    kinds = output if isinstance(output, tuple) else (output,)
    for kind in kinds:
        if kind not in processor.outputs:
            known = ", ".join(processor.outputs)
            has = f"known: {known}" if known else "it has one kind of output; leave the option out"
            raise OptionError(f"output processor {name!r} has no output {kind!r} ({has})", param="output")
    apart = [kind for kind in kinds if kind not in processor.products]
    if isinstance(output, tuple) and apart:
        together = ", ".join(processor.products)
        has = f"it makes {together} together" if together else "it makes one kind in a run"
        raise OptionError(
            f"output processor {name!r} does not make {' and '.join(apart)} together with other kinds ({has}); ask for"
            " each in a request of its own",
            param="output",
        )


class OwnInputsProcessor(OutputProcessor):
    """Base class of processors that also convert a user's request to the model's inputs."""

    honours: ClassVar[frozenset[str]] = frozenset({"processor"})
    """Names of the options in `OutputParams` that requests to this processor may set. Other options are refused."""

    def load(self) -> None:
        """Import the modules that the processor needs.

        This method is called before the processes of the engine are started.
        """

    def started(self, vllm_config: Any, renderer: Any) -> Self:
        """Return the processor that serves requests after the engine has started. By default, return ``self``.

        ``renderer`` is the engine's renderer of prompts.
        """
        return self

    def request(self, pick: str, data: Any, request: Any, limit_s: float) -> Any:
        """Return a `Run` for a user's request. The `Run` splits the user's request into requests to the engine.

        The `vllm_mmout.engine.scene.run.Run` is not started yet.

        Args:
            pick: name under which the engine holds this processor.
            data: the input.
            request: the `vllm_mmout.engine.request.request.Request` of the user.
            limit_s: seconds that one call of another author's code may take.

        """
        raise NotImplementedError(f"{type(self).__name__} must define request(pick, data, request, limit_s)")
