"""TerratorchMapper: from rasters to the tensors of a TerraTorch model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.models.band_choice import BandChoice
from vllm_mmout.models.band_files import chosen_layers
from vllm_mmout.models.mapper import RasterMapper, with_frames
from vllm_mmout.models.raster_view import DTYPES, RasterView
from vllm_mmout.models.tensor_spec import TensorSpec
from vllm_mmout.models.terratorch.config import DATES, LOCATION, MEANS, RAW, STDS, TerratorchConfig
from vllm_mmout.models.terratorch.where_and_when import dates_of, location_of
from vllm_mmout.raster.stack.stack import Layer, OpenStack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.models.terratorch.config import Modality
    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, slots=True)
class TerratorchMapper(RasterMapper):
    """Maps rasters to the images of a TerraTorch model, as the files hold them; the model scales and standardises.

    A model of several images (TerraMind) takes ``{"S2L2A": file, "S1GRD": file}``, or a list of files in the order of
    ``config.json``; they are brought to one grid and cut into tiles together.

    Where the model takes a location and dates, those of the request are sent, else what the files say; where nobody
    says them they are left out, for which such models have been trained.
    """

    images: tuple[Modality, ...] = ()
    extras: tuple[str, ...] = ()
    crop: tuple[int, int] = (1, 1)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TerratorchMapper:
        """Make the mapper of a folder's model.

        Raises:
            OptionError: ``config.json`` is malformed.

        """
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
            crop=known.crop,
        )

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        """What the model takes; its own tensors, already standardised, are not looked at here."""
        frames = () if self.num_frames is None else (self.num_frames,)
        return {RAW.format(one.name): TensorSpec((len(one.bands), *frames, *self.crop), DTYPES) for one in self.images}

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
        """Height and width of the tiles: those of the model.

        Raises:
            OptionError: another size is asked for.

        """
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
        """Open one input of any size; of files nothing but their headers is read.

        Args:
            data: as of `RasterMapper.open`; for a model of several images a mapping of their names to files, or a list.
            params: the request's.

        Raises:
            InputError: it cannot be opened, or the model cannot take its bands or dtype.
            OptionError: an option does not suit the model.

        """
        self._check(params)
        if not self.modalities:
            return RasterMapper.open(self, data, params)
        return self._opened_together(self._files(data), params)

    def tensors(self, view: RasterView, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """What ``forward`` takes of one window, by keyword.

        Args:
            view: the input that the window is of.
            planes: as of `RasterMapper.tensors`; of several images the bands of one after those of the other.

        Returns:
            The images as their files hold them, and what the request or the files say of place, dates and statistics.

        """
        found: dict[str, NDArray[Any]] = {}
        first = 0
        for one in self.images:
            count = len(one.bands) * (one.frames or 1)
            part = planes[first : first + count]
            found[RAW.format(one.name)] = with_frames(_as_stored(part, view, view.bands[first]), one.frames)
            first += count
        return {**found, **self._said(view)}

    def _said(self, view: RasterView) -> dict[str, NDArray[Any]]:
        """What is sent beside the images."""
        said: dict[str, NDArray[Any] | None] = {}
        if LOCATION in self.extras:
            said[LOCATION] = location_of(view)
        if DATES in self.extras:
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

    def _opened_together(self, files: Mapping[str, Any], params: OutputParams) -> RasterView:
        with ExitStack() as opened:
            layers: list[Layer] = []
            for one in self.images:
                try:
                    there = chosen_layers(files[one.name], BandChoice(self.model, one.bands, params), opened)
                except InputError as error:
                    raise InputError(f"{one.name}: {error}", param=error.param) from error
                layers += there
            name = " and ".join(self.modalities)
            stack = OpenStack(layers, name, resampling=params.resampling, nodata=params.nodata)
            view = RasterView(stack, tuple(range(1, len(layers) + 1)), params, self)
            opened.pop_all()  # the view closes them
        return view


def _as_stored(part: NDArray[Any], view: RasterView, band: int) -> NDArray[Any]:
    """Planes in the dtype of their own file, where files of other dtypes stood beside it: integers are scaled."""
    dtype = view.raster.members_of([band])[0].dtype
    scaled = view.params.scale is not None or view.params.offset is not None
    if scaled or dtype.name not in DTYPES or view.params.resampling != "nearest":
        return part
    return part.astype(dtype, copy=False)
