"""TerratorchMapper: from rasters to the tensors of a TerraTorch model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Layer, OpenRaster, OpenStack
from vllm_mmout.models.inputs.band_choice import BandChoice
from vllm_mmout.models.inputs.mapper import RasterMapper, with_frames
from vllm_mmout.models.inputs.open_input import OpenedPlanes, chosen_layers, opened_planes
from vllm_mmout.models.inputs.raster_view import DTYPES, RasterView
from vllm_mmout.models.inputs.tensor_spec import TensorSpec
from vllm_mmout.models.inputs.unpacking import has_numbers
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.terratorch.config import DATES, LOCATION, RAW, Modality, TerratorchConfig
from vllm_mmout.wings.terratorch.scaling import MEANS, STDS, no_scale
from vllm_mmout.wings.terratorch.where_and_when import dates_of, location_of


@dataclass(frozen=True, slots=True)
class TerratorchMapper(RasterMapper):
    """Maps rasters to the images of a TerraTorch model, as the files hold them; the model scales and standardises.

    A model of several images (TerraMind) takes ``{"S2L2A": file, "S1GRD": file}``, or a list of files in the order of
    ``config.json``; they are brought to one grid and cut into tiles together.

    Where the model takes a location and dates, those of the request are sent, else what the files say, unless the
    folder says that the model was trained without (``use_metadata``); where nobody says them they are left out, for
    which such models have been trained.
    """

    images: tuple[Modality, ...] = ()
    extras: tuple[str, ...] = ()
    metadata: bool = True
    """Whether what the files say of location and dates is sent."""
    crop: tuple[int, int] = (1, 1)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TerratorchMapper:
        """Make the mapper of a folder's model."""
        known = TerratorchConfig.of(config)
        frames = {one.frames for one in known.modalities}
        if len(frames) > 1 or (len(known.modalities) > 1 and frames != {None}):
            raise OptionError(
                "config.json has several images, and not all without dates; models of several images and dates are not"
                " served"
            )
        return cls(
            model=known.task,
            bands=tuple(band for one in known.modalities for band in one.bands),
            max_size=max(known.crop),
            keyword=RAW.format(known.modalities[0].name),
            min_size=min(known.crop),
            num_frames=frames.pop(),
            images=known.modalities,
            extras=known.extras,
            metadata=known.metadata,
            crop=known.crop,
        )

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        """What the model takes; its own tensors, already standardised, are not looked at here."""
        frames = () if self.num_frames is None else (self.num_frames,)
        return {RAW.format(one.name): TensorSpec((len(one.bands), *frames, *self.crop), DTYPES) for one in self.images}

    def dummy(self) -> dict[str, NDArray[Any]]:
        """The tensors of a file that says where it lies, as most do, but not when it was taken."""
        place = {LOCATION: np.zeros(2, np.float32)} if LOCATION in self.extras and self.metadata else {}
        return {name: spec.zeros() for name, spec in self.inputs.items()} | place

    @property
    def options(self) -> tuple[str, ...]:
        """Location and dates where the model takes them; statistics where it has one image."""
        told = {LOCATION: "location", DATES: "dates"}
        return (*(told[name] for name in self.extras), *((MEANS, STDS) if len(self.images) == 1 else ()))

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the images of a model that takes several."""
        return tuple(one.name for one in self.images) if len(self.images) > 1 else ()

    @property
    def sizes(self) -> str:
        """The one size that fits a forward."""
        return f"{self.crop[0]} x {self.crop[1]} pixels"

    def fits(self, size: tuple[int, int]) -> bool:
        """Whether (height, width) is that size."""
        return size == self.crop

    def too_small(self, size: tuple[int, int]) -> bool:
        """Whether (height, width) must be continued by reflection to fill a tile."""
        return size[0] < self.crop[0] or size[1] < self.crop[1]

    def tile_sides(self, asked: int | None) -> tuple[int, int]:
        """Height and width of the tiles: those of the model."""
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
        """Open one input of any size, reading only headers; several images are a mapping by name, or a list."""
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
        """The images as their files hold them, and what the request or the files say of place, dates and statistics.

        ``planes`` are as of `RasterMapper.tensors`; of several images the bands of one after those of the other.
        """
        found: dict[str, NDArray[Any]] = {}
        for one, place in self._places():
            part, dtype = planes[place], _dtype(view.raster, view.bands[place])
            if self.modalities and not _scaled(view.params) and dtype.name in DTYPES:
                part = part.astype(dtype, copy=False)  # as stored, where files of other dtypes stood beside it
            found[RAW.format(one.name)] = with_frames(part, one.frames)
        return {**found, **self._said(view)}

    def _places(self) -> Iterator[tuple[Modality, slice]]:
        """Each image, and which planes are its own."""
        first = 0
        for one in self.images:
            end = first + len(one.bands) * (one.frames or 1)
            yield one, slice(first, end)
            first = end

    def _said(self, view: RasterView) -> dict[str, NDArray[Any]]:
        """What is sent beside the images."""
        said: dict[str, NDArray[Any] | None] = {}
        if LOCATION in self.extras and (self.metadata or view.params.location is not None):
            said[LOCATION] = location_of(view)
        if DATES in self.extras and (self.metadata or view.params.dates is not None):
            said[DATES] = dates_of(view, self.num_frames or 1)
        for name in (MEANS, STDS):
            numbers = getattr(view.params, name)
            said[name] = None if numbers is None else np.array(numbers, np.float32)
        return {name: value for name, value in said.items() if value is not None}

    def _check(self, params: OutputParams) -> None:
        """Refuse options that do not suit the model."""
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
        """The file of each image."""
        names = self.modalities
        if isinstance(data, Sequence) and not isinstance(data, str | bytes) and len(data) == len(names):
            return dict(zip(names, data, strict=True))
        if not isinstance(data, Mapping) or set(data) != set(names):
            what = f"the keys {', '.join(map(repr, data))}" if isinstance(data, Mapping) else type(data).__name__
            example = ", ".join(f'"{name}": file' for name in names)
            raise InputError(f"the model takes {len(names)} images; give {{{example}}}, got {what}")
        return {name: data[name] for name in names}

    def _with_scale(self, params: OutputParams, raster: OpenRaster, planes: Sequence[int]) -> OutputParams:
        """The request's options; with the model's scale among them where integers cannot travel as what they are.

        Whether values are reflectance is told by the dtype or by the request, never guessed from their mean.
        """
        if _scaled(params):
            return params
        wide = raster.dtype.kind in "iu" and raster.dtype.name not in DTYPES
        scales: list[float | None] = []
        for one, place in self._places():
            members = raster.members_of(planes[place])
            whole = [member for member in members if member.dtype.kind in "iu"]
            if whole:
                _check_integers(one, params, mixed=len(whole) < len(members))
                wide = wide or _dtype(raster, planes[place]).name not in DTYPES
            scales += [one.scaling.scale if whole else 1.0] * len(one.bands)
        if not wide:
            return params
        if None in scales:
            raise InputError(
                f"the input's dtype is {raster.dtype}, and config.json does not say what such integers are to be"
                f" multiplied by; give scale=0.0001 (the constant_scale of the training) in the request, or say it in"
                ' config.json: "mmout": {"input": {"constant_scale": 0.0001}}'
            )
        return msgspec.structs.replace(params, scale=tuple(scale for scale in scales if scale is not None))

    def _opened_together(self, files: Mapping[str, Any], params: OutputParams) -> OpenedPlanes:
        noted: list[str] = []
        with ExitStack() as opened:
            layers: list[Layer] = []
            for one in self.images:
                choice = BandChoice(self.model, one.bands, params, noted=noted)
                try:
                    there = chosen_layers(files[one.name], choice, opened)
                except InputError as error:
                    raise InputError(f"{one.name}: {error}", param=error.param) from error
                layers += there
            name = " and ".join(self.modalities)
            stack = OpenStack(layers, name, resampling=params.resampling, nodata=params.nodata)
            opened.pop_all()  # the stack closes them
        return OpenedPlanes(stack, tuple(range(1, len(layers) + 1)), tuple(dict.fromkeys(noted)))


def _scaled(params: OutputParams) -> bool:
    """Whether the request scales: then values travel as float32."""
    return has_numbers(params)


def _dtype(raster: OpenRaster, bands: Sequence[int]) -> np.dtype[Any]:
    """What holds the values of all files that bands, numbered from 1, come from."""
    return np.result_type(*(member.dtype for member in raster.members_of(bands)))


def _check_integers(image: Modality, params: OutputParams, *, mixed: bool) -> None:
    """Refuse integers of one image that could be scaled wrongly; ``mixed``: floats stand beside them."""
    if mixed and image.scaling.scale != 1:
        raise InputError(
            f"some files of {image.name} hold integers, which the model's constant_scale is for, and others floats,"
            " which are taken as they are; give files of one kind, or say what all values are to be multiplied by:"
            " scale=0.0001"
        )
    if image.scaling.lacks_scale(params.means, params.stds):
        raise InputError(no_scale(image.name), param="scale")
