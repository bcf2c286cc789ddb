"""Map pictures, and the prompts beside them, to the input tensors of transformers models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, ModelError, OptionError
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.models.inputs.open_input import opened_planes
from vllm_mmout.models.inputs.picture_scaling import picture_scaling
from vllm_mmout.models.inputs.raster_view import RasterView
from vllm_mmout.models.inputs.tensor_spec import TensorSpec
from vllm_mmout.models.inputs.unpacking import has_numbers
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.transformers.features import FeaturesMapper, check_length, least_samples
from vllm_mmout.wings.transformers.heads import NATIVE, Head, described
from vllm_mmout.wings.transformers.loading import image_processor_of, keywords_of_network, processor_of
from vllm_mmout.wings.transformers.prompts import IMAGE, PICTURES, TEXTS, as_tensor, checked, example, processed

if TYPE_CHECKING:
    from vllm_mmout.geo import OpenRaster

SIZE: Final = "target_sizes"
"""Name of the tensor with the input's (height, width) in pixels, as in transformers' ``post_process_*`` methods."""

PASSED: Final[tuple[str, ...]] = (SIZE, TEXTS, "reshaped_input_sizes", "boxes")
"""Names of the tensors that skip the network and go to the output processor."""

_BANDS = ("red", "green", "blue")
_ANY = Head("image", "tensor")
_DEFAULT_SIDE = 256
"""Default side of a tile in pixels, for image processors that do not resize pictures."""
_MAX_SIDE = 8192
"""Maximum height and width in pixels of a picture that is processed without tiles."""


def mapper_of(config: Mapping[str, Any]) -> PictureMapper | FeaturesMapper:
    """Return the input mapper for a model folder's ``config.json``."""
    head, table = described(config)
    if head.takes != "image":
        return FeaturesMapper(
            config["architectures"][0],
            head,
            table["folder"],
            longest=config.get("max_position_embeddings"),
            frames=config.get("num_frames"),
            least_samples=least_samples(config),
        )
    channels = config.get("num_channels")  # None: a DPT model leaves it to its backbone
    if isinstance(channels, int) and channels != len(_BANDS):
        raise ModelError(
            f"{config['architectures'][0]} takes {channels} channels (num_channels in its config.json), but folders of"
            f" transformers get {len(_BANDS)}, red, green and blue; write a class that contains the model and takes"
            " your bands by RasterMapper (docs/own-models.md)"
        )
    processor = image_processor_of(table["folder"])
    crop = _sides(getattr(processor, "crop_size", None)) if getattr(processor, "do_center_crop", False) else None
    resized = _sides(getattr(processor, "size", None)) if getattr(processor, "do_resize", False) else None
    mapper = PictureMapper(
        model=config["architectures"][0],
        bands=_BANDS,
        max_size=_MAX_SIDE,
        tile_size=max(crop or resized or (_DEFAULT_SIDE,)),
        head=head,
        folder=table["folder"],
        cropped=crop,
        longest=_longest(config),
    )
    return NativePictureMapper.of(mapper, _native_side(config, crop or resized)) if table.get(NATIVE) else mapper


@dataclass(frozen=True, slots=True)
class PictureMapper(RasterMapper):
    """Mapper from pictures and rasters to RGB input tensors. A grey input is used for all three colours.

    A picture goes through the processor whole, as in transformers. If a raster has a georeference, and the head returns
    boxes or a result for each pixel, the raster is cut into tiles of the size that the processor scales to, so that the
    model sees it at full resolution. With ``tile`` in the request, this holds for any picture.

    A head's prompt is given beside the picture in a dict: ``{"image": ..., "text": [...]}``.
    """

    head: Head = _ANY
    folder: str = ""
    cropped: tuple[int, int] | None = None
    """Height and width to which the image processor crops pictures. None if it does not crop."""
    whole_only: bool = False
    """Whether the current input is processed as a whole, not in tiles."""
    prompt: Mapping[str, Any] = field(default_factory=dict)
    """Prompt fields of the current request by name, such as ``text`` or ``input_points``."""
    longest: int | None = None
    """Maximum number of tokens in a text that accompanies a picture, or None if it is unlimited."""

    @property
    def scaling(self) -> tuple[str, ...]:
        """Scaling of red, green and blue by the folder's image processor, as formulas such as "value * 0.00392157"."""
        return picture_scaling(image_processor_of(self.folder)) if self.folder else ()

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        """Required shapes and dtypes of the input tensors. The dict is always empty.

        Shapes and dtypes depend on the image processor.
        """
        return {}

    def dummy(self) -> Any:
        """Return a picture of noise with an example prompt, for a trial forward pass."""
        picture = np.random.default_rng(0).integers(0, 256, (3, *self.tile_sides(None)), np.uint8)
        beside = self.head.needs[:1] if self.head.alone else self.head.prompt
        return {IMAGE: picture, **{name: example(name, picture) for name in beside}}

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that a request may contain: the picture and its prompts."""
        return (IMAGE, *self.head.prompt)

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the request fields whose strings are texts, not file paths."""
        return tuple(name for name in self.head.prompt if name not in PICTURES)

    @property
    def one_for_all(self) -> bool:
        """Whether an input's only band may be used as every band of the model. Always True: pictures may be grey."""
        return True

    def open(self, data: Any, params: OutputParams) -> RasterView:
        """Open the picture or raster of a request, and check the fields beside it, such as texts, points or boxes."""
        beside = dict(data) if isinstance(data, Mapping) and IMAGE in data else {}
        if not beside and isinstance(data, Mapping) and set(data) <= set(self.fields):
            raise InputError(
                f'the request has {" and ".join(data) or "nothing"}, but no picture: {{"image": ..., ...}}'
            )
        prompt = {name: value for name, value in beside.items() if name != IMAGE}
        prompt = checked(prompt, self.head.prompt, self.head.needs, question=not self.head.alone)
        prompt = {name: self._picture(name, value) if name in PICTURES else value for name, value in prompt.items()}
        raster, planes, noted = opened_planes(beside.get(IMAGE, data), params, self)
        try:
            whole = self._goes_whole(raster, params)
            view = RasterView(raster, planes, params, replace(self, whole_only=whole, prompt=prompt), noted)
            _check_values(view)
        except BaseException:
            raster.close()
            raise
        return view

    def _goes_whole(self, raster: OpenRaster, params: OutputParams) -> bool:
        """Return whether an input is processed without tiles, even if it is large."""
        return not self.head.tiled or (raster.georeference is None and params.tile is None)

    def fits(self, size: tuple[int, int]) -> bool:
        """Return whether a picture of ``size`` (height, width) can be processed without tiles."""
        return max(size) <= (_MAX_SIDE if self.whole_only else max(self.tile_sides(None)))

    def tensors(self, view: RasterView, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """Convert pixels [3, height, width] and the prompts to tensors for the network and the output processor."""
        features = self._features(planes)
        sizes = [planes.shape[1:], *(other.size[::-1] for name, other in self.prompt.items() if name == "other_image")]
        texts = self.prompt.get("text")
        return {
            **{name: value if self.head.alone else value[0] for name, value in features.items()},
            **({SIZE: np.array(sizes if len(sizes) > 1 else sizes[0], np.int64)} if self.head.sized else {}),
            **({TEXTS: as_tensor(texts)} if texts and self.head.alone else {}),
            **({"boxes": np.array(self.prompt["boxes"])} if self.head.alone and "boxes" in self.prompt else {}),
        }

    def _features(self, planes: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Convert the picture ``planes`` and the request's prompts to tensors with the folder's processor."""
        picture = _picture(planes)
        processor = processor_of(self.folder) if self.head.prompt else image_processor_of(self.folder)
        options: dict[str, Any] = {}
        if self.cropped is not None and not self.whole_only:  # cropping would leave parts of a tile without a result
            options = {"do_center_crop": False, "size": dict(zip(("height", "width"), self.cropped, strict=True))}
        try:
            if self.head.prompt:
                features = processed(
                    processor,
                    picture,
                    self.prompt,
                    question=not self.head.alone,
                    repeated=self.head.repeated,
                    padding=self.head.padding,
                )
            else:
                features = processor(images=picture, return_tensors="pt", **options)
        except (ValueError, TypeError, ZeroDivisionError) as error:
            height, width = planes.shape[1:]
            beside = f" with this {' and '.join(self.prompt)}" if self.prompt else ""
            remedy = "; is it too long, or of another form?" if self.prompt else "; give one of usual proportions"
            raise InputError(
                f"{type(processor).__name__} takes no picture of {height} x {width} pixels{beside}: {error}{remedy}"
            ) from error
        if self.longest is not None and "text" in self.prompt and "input_ids" in features:
            check_length(np.asarray(features["input_ids"]).shape[-1], self.longest)
        keywords = (*keywords_of_network(self.model), *PASSED)
        arrays = {name: np.asarray(value) for name, value in features.items() if name in keywords}
        return {name: array for name, array in arrays.items() if array.size}  # EoMT's offsets of patches are empty

    def _picture(self, name: str, data: Any) -> Any:
        """Read a second picture of a request, such as ``other_image``. A trimap is converted to greyscale."""
        plain = replace(self, head=_ANY)
        with plain.open(data, OutputParams()) as view:
            picture = _picture(view.read().array)
        return picture.convert("L") if name == "trimaps" else picture


@dataclass(frozen=True, slots=True)
class NativePictureMapper(PictureMapper):
    """Mapper that cuts pictures into tiles of exactly the model's input size, so that nothing is scaled.

    The processor then scales nothing, so that each of the model's patches covers whole pixels of the input.
    """

    @classmethod
    def of(cls, mapper: PictureMapper, side: int) -> Self:
        """Create a copy of ``mapper`` that makes square tiles of ``side`` pixels."""
        settings = {each.name: getattr(mapper, each.name) for each in fields(mapper)}
        return cls(**{**settings, "min_size": side, "max_size": side, "tile_size": side})

    def _goes_whole(self, raster: OpenRaster, params: OutputParams) -> bool:
        return False

    def fits(self, size: tuple[int, int]) -> bool:
        """Return whether a picture of ``size`` (height, width) has exactly the size of a tile."""
        return size == (self.max_size, self.max_size)


def _picture(planes: NDArray[Any]) -> Any:
    """Convert an array [3, height, width] to a Pillow image."""
    from PIL import Image

    if planes.dtype != np.uint8:  # scaled values: some processors refuse floats, others expect them from 0 to 1
        planes = np.rint(planes).clip(0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(np.moveaxis(planes, 0, -1)))


def _longest(config: Mapping[str, Any]) -> int | None:
    """Return the maximum number of tokens in a text that accompanies a picture, or None if it is unlimited."""
    text = config.get("text_config")
    limits = [
        config.get("max_text_len"),
        (text if isinstance(text, Mapping) else config).get("max_position_embeddings"),
    ]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def _check_values(view: RasterView) -> None:
    """Raise OptionError if the input's values are not uint8 and the request has neither a scale nor an offset.

    The image processor takes pictures with values from 0 to 255.
    """
    if view.raster.dtype != np.uint8 and not has_numbers(view.params):
        raise OptionError(
            f"the input's dtype is {view.raster.dtype}, but the model's processor takes pictures of 0 to 255; convert"
            " it with scale, such as 0.0255 (255 / 10000) for reflectance in steps of 0.0001",
            param="scale",
        )


def _native_side(config: Mapping[str, Any], processed_size: tuple[int, int] | None) -> int:
    """Return the side in pixels of the square pictures that a model takes.

    ``processed_size`` is the (height, width) that the folder's processor makes. If it is None, the side is
    ``image_size`` of ``config.json``. Raise OptionError if the size is not square.
    """
    sides = processed_size or _sides(config.get("image_size")) or (_DEFAULT_SIDE, _DEFAULT_SIDE)
    if sides[0] != sides[1]:
        raise OptionError(
            f"the processor makes pictures of {sides[0]} x {sides[1]} pixels, and a result for each patch needs square"
            " ones; set another size in preprocessor_config.json"
        )
    return sides[0]


def _sides(size: Any) -> tuple[int, int] | None:
    """Convert a ``size`` from a config file to (height, width). Return None if the size is missing or incomplete."""
    if size is None:
        return None
    if isinstance(size, int):
        return size, size
    if isinstance(size, list | tuple):
        return int(size[0]), int(size[-1])
    sizes = dict(size)
    edge = sizes.get("shortest_edge") or sizes.get("longest_edge")
    height, width = sizes.get("height", edge), sizes.get("width", edge)
    return (int(height), int(width)) if height and width else None
