"""Map rasters to the input tensors of TerraTorch models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Layer, OpenRaster, OpenStack
from vllm_mmout.models.inputs.band_choice import BandChoice
from vllm_mmout.models.inputs.mapper import RasterMapper, with_frames
from vllm_mmout.models.inputs.open_input import chosen_layers, opened_planes
from vllm_mmout.models.inputs.raster_view import DTYPES, RasterView
from vllm_mmout.models.inputs.tensor_spec import TensorSpec
from vllm_mmout.models.inputs.unpacking import has_numbers
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.terratorch.config import DATES, LOCATION, RAW, Modality, TerratorchConfig
from vllm_mmout.wings.terratorch.file_scale import scaled_layers
from vllm_mmout.wings.terratorch.scaling import MEANS, STDS, no_scale
from vllm_mmout.wings.terratorch.where_and_when import dates_of, location_of


@dataclass(frozen=True, slots=True)
class TerratorchMapper(RasterMapper):
    """Input mapper that gives a TerraTorch model raw images, which the model itself scales and standardises.

    A model of several images (TerraMind) takes ``{"S2L2A": file, "S1GRD": file}``, or a list of files in the order of
    ``config.json``. The files are resampled to one grid and cut into tiles together.

    If the model takes a location and dates, they come from the request, or else from the files. Those of files are not
    sent if the model was trained without them (``use_metadata``). Unknown locations and dates are left out, as in the
    training of such models.
    """

    images: tuple[Modality, ...] = ()
    extras: tuple[str, ...] = ()
    metadata: bool = True
    """Whether locations and dates that are found in files are sent to the model."""
    crop: tuple[int, int] = (1, 1)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TerratorchMapper:
        """Build the mapper for a TerraTorch model. Raise OptionError for a model of several images with dates."""
        description = TerratorchConfig.of(config)
        frames = {image.frames for image in description.modalities}
        if len(frames) > 1 or (len(description.modalities) > 1 and frames != {None}):
            raise OptionError(
                "config.json has several images, some of which have dates; models of several images are only supported"
                " without dates"
            )
        return cls(
            model=description.task,
            bands=tuple(band for image in description.modalities for band in image.bands),
            max_size=max(description.crop),
            keyword=RAW.format(description.modalities[0].name),
            min_size=min(description.crop),
            num_frames=frames.pop(),
            images=description.modalities,
            extras=description.extras,
            metadata=description.metadata,
            crop=description.crop,
        )

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        """Required shape and dtypes of each raw image tensor. The keys are keyword arguments of ``forward``."""
        frames = () if self.num_frames is None else (self.num_frames,)
        return {
            RAW.format(image.name): TensorSpec((len(image.bands), *frames, *self.crop), DTYPES) for image in self.images
        }

    def dummy(self) -> dict[str, NDArray[Any]]:
        """Return example input tensors of zeros. They include a location, but not dates."""
        location = {LOCATION: np.zeros(2, np.float32)} if LOCATION in self.extras and self.metadata else {}
        return {name: spec.zeros() for name, spec in self.inputs.items()} | location

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the request options that this model supports, out of location, dates, means and stds."""
        names = {LOCATION: "location", DATES: "dates"}
        return (*(names[name] for name in self.extras), *((MEANS, STDS) if len(self.images) == 1 else ()))

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the input images. Empty if the model takes a single image."""
        return tuple(image.name for image in self.images) if len(self.images) > 1 else ()

    @property
    def images_of_bands(self) -> tuple[str, ...]:
        """Name of the image to which each band belongs. Empty if the model takes a single image."""
        return tuple(image.name for image in self.images for _ in image.bands) if self.modalities else ()

    @property
    def scaling(self) -> tuple[str, ...]:
        """Formula that scales the values of each band for the network."""
        return tuple(text for image in self.images for text in image.scaling.formulas(len(image.bands)))

    @property
    def sizes(self) -> str:
        """Image size that the model requires, as text for error messages."""
        return f"{self.crop[0]} x {self.crop[1]} pixels"

    def unpacked(self, layers: Sequence[Layer], params: OutputParams) -> list[Layer]:
        """Return the bands of the model's only image, scaled as the request or the files declare.

        The files' scale is only applied if it differs from the model's scale.
        """
        return scaled_layers(self.images[0].scaling, layers, params)

    def fits(self, size: tuple[int, int]) -> bool:
        """Return whether ``size`` (height, width) is the model's fixed image size."""
        return size == self.crop

    def too_small(self, size: tuple[int, int]) -> bool:
        """Return whether an image of ``size`` (height, width) is smaller than a tile. A smaller image is padded."""
        return size[0] < self.crop[0] or size[1] < self.crop[1]

    def tile_sides(self, asked: int | None) -> tuple[int, int]:
        """Return the model's tile size (height, width). Raise OptionError if the request asks for another size."""
        if asked is not None and (asked, asked) != self.crop:
            height, width = self.crop
            raise OptionError(
                f"tile is {asked}, and the model takes {height} x {width} pixels, as"
                ' "tiled_inference_parameters" or the input\'s shape in its config.json say; leave tile out, or change'
                " it there",
                param="tile",
            )
        return self.crop

    def open(self, data: Any, params: OutputParams) -> RasterView:
        """Open one or several images, reading only headers. Several images are given as a dict by name, or a list."""
        self._check(params)
        with ExitStack() as opened:
            if self.modalities:
                raster, planes, noted = self._opened_together(self._files(data), params)
            else:
                raster, planes, noted = opened_planes(data, params, self)
            opened.callback(raster.close)
            view = RasterView(raster, planes, self._with_scale(params, raster, planes), self, noted)
            opened.pop_all()  # the caller closes it
        return view

    def tensors(self, view: RasterView, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """Return the model's input tensors: the raw images, and any location, dates and statistics.

        ``planes`` are those of `RasterMapper.tensors`. With several images, the bands of each image follow those of the
        one before.
        """
        tensors: dict[str, NDArray[Any]] = {}
        for image, place in self._images_with_slices():
            part, dtype = planes[place], _common_dtype(view.raster, view.bands[place])
            if self.modalities and not _sets_scale(view.params) and dtype.name in DTYPES:
                part = part.astype(dtype, copy=False)  # back to the stored dtype, which other files had widened
            tensors[RAW.format(image.name)] = with_frames(part, image.frames)
        return {**tensors, **self._optional_tensors(view)}

    def _images_with_slices(self) -> Iterator[tuple[Modality, slice]]:
        """Yield each image, and the slice that selects its bands among the bands of all images."""
        first = 0
        for image in self.images:
            end = first + len(image.bands) * (image.frames or 1)
            yield image, slice(first, end)
            first = end

    def _optional_tensors(self, view: RasterView) -> dict[str, NDArray[Any]]:
        """Return the tensors of location, dates, means and stds that the request or the input files contain."""
        tensors: dict[str, NDArray[Any] | None] = {}
        if LOCATION in self.extras and (self.metadata or view.params.location is not None):
            tensors[LOCATION] = location_of(view)
        if DATES in self.extras and (self.metadata or view.params.dates is not None):
            tensors[DATES] = dates_of(view)
        for name in (MEANS, STDS):
            numbers = getattr(view.params, name)
            tensors[name] = None if numbers is None else np.array(numbers, np.float32)
        return {name: value for name, value in tensors.items() if value is not None}

    def _check(self, params: OutputParams) -> None:
        """Raise OptionError if the request's options do not fit the model's bands or images."""
        for name in (MEANS, STDS):
            numbers = getattr(params, name)
            if numbers is not None and len(numbers) != len(self.bands):
                raise OptionError(
                    f"{name} has {len(numbers)} numbers for {len(self.bands)} bands; give one for each", param=name
                )
        if self.modalities and (params.bands is not None or params.indices is not None):
            option = "bands" if params.indices is None else "indices"
            raise OptionError(
                f"{option} cannot choose bands of several images; give files that hold the bands of each", param=option
            )

    def _files(self, data: Any) -> Mapping[str, Any]:
        """Convert ``data`` to a dict from image name to file. Raise InputError if images are missing or unknown."""
        names = self.modalities
        if isinstance(data, Sequence) and not isinstance(data, str | bytes) and len(data) == len(names):
            return dict(zip(names, data, strict=True))
        if not isinstance(data, Mapping) or set(data) != set(names):
            received = f"the keys {', '.join(map(repr, data))}" if isinstance(data, Mapping) else type(data).__name__
            example = ", ".join(f'"{name}": file' for name in names)
            raise InputError(f"the model takes {len(names)} images; give {{{example}}}, got {received}")
        return {name: data[name] for name in names}

    def _with_scale(self, params: OutputParams, raster: OpenRaster, planes: Sequence[int]) -> OutputParams:
        """Return the options, with the model's scale added if pixels must be scaled before the model gets them.

        The model itself scales integers of `DTYPES`. Integers of other dtypes, such as uint32, are scaled beforehand.
        The dtype or the request decides whether values are reflectance. It is never guessed from their mean.
        """
        if _sets_scale(params):
            self._check_offset(params, raster, planes)
            return params
        wide = raster.dtype.kind in "iu" and raster.dtype.name not in DTYPES
        scales: list[float | None] = []
        for image, place in self._images_with_slices():
            members = raster.members_of(planes[place])
            whole = [member for member in members if member.dtype.kind in "iu"]
            if whole:
                _check_integers(image, params, mixed=len(whole) < len(members))
                wide = wide or _common_dtype(raster, planes[place]).name not in DTYPES
            scales += [image.scaling.scale if whole else 1.0] * len(image.bands)
        if not wide:
            return params
        if None in scales:
            raise InputError(
                f"the input's dtype is {raster.dtype}, and config.json does not set the factor for such integers; give"
                f" scale=0.0001 (the constant_scale of the training) in the request, or set it in"
                ' config.json: "mmout": {"input": {"constant_scale": 0.0001}}'
            )
        return msgspec.structs.replace(params, scale=tuple(scale for scale in scales if scale is not None))

    def _check_offset(self, params: OutputParams, raster: OpenRaster, planes: Sequence[int]) -> None:
        """Raise OptionError if the request sets ``offset`` without ``scale`` for a model that scales integers."""
        if params.offset is None or params.scale is not None:
            return
        for image, place in self._images_with_slices():
            scale = image.scaling.scale
            if scale != 1 and any(member.dtype.kind in "iu" for member in raster.members_of(planes[place])):
                example = scale or 0.0001
                raise OptionError(
                    f"offset is set without scale, so that {image.name} would reach the model as counts, and the model"
                    f" takes counts times its constant_scale; give both, in reflectance: scale={example:g},"
                    f" offset={example:g} * the offset in counts",
                    param="offset",
                )

    def _opened_together(
        self, files: Mapping[str, Any], params: OutputParams
    ) -> tuple[OpenRaster, tuple[int, ...], tuple[str, ...]]:
        """Open the files of several images as one raster. Return the raster, its band numbers, and notes for users."""
        if params.mask_clouds:
            raise InputError("mask_clouds is for one image, and the model takes several; leave it out")
        noted: list[str] = []
        with ExitStack() as opened:
            layers: list[Layer] = []
            for image in self.images:
                unpack = partial(scaled_layers, image.scaling)
                choice = BandChoice(self.model, image.bands, params, noted=noted, unpack=unpack)
                try:
                    image_layers = chosen_layers(files[image.name], choice, opened)
                except InputError as error:
                    raise InputError(f"{image.name}: {error}", param=error.param) from error
                layers += image_layers
            name = " and ".join(self.modalities)
            stack = OpenStack(layers, name, resampling=params.resampling, nodata=params.nodata)
            opened.pop_all()  # the stack closes them
        return stack, tuple(range(1, len(layers) + 1)), tuple(dict.fromkeys(noted))


def _sets_scale(params: OutputParams) -> bool:
    """Return whether the request sets a scale or offset as a number. The model then gets float32 values."""
    return has_numbers(params)


def _common_dtype(raster: OpenRaster, bands: Sequence[int]) -> np.dtype[Any]:
    """Return a dtype that can hold the values of all given bands. ``bands`` are band numbers, counted from 1."""
    return np.result_type(*(member.dtype for member in raster.members_of(bands)))


def _check_integers(image: Modality, params: OutputParams, *, mixed: bool) -> None:
    """Raise InputError if no scale is set for an image's integers, or if the image mixes integer and float files.

    ``mixed`` says that some files of the image hold integers, and others hold floats.
    """
    if mixed and image.scaling.scale != 1:
        raise InputError(
            f"some files of {image.name} hold integers, which need the model's constant_scale, and others hold floats,"
            " which are used unscaled; give files of one kind, or set the factor for all values: scale=0.0001"
        )
    if image.scaling.lacks_scale(params.means, params.stds):
        raise InputError(no_scale(image.name), param="scale")
