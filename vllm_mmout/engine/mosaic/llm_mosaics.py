"""`Mosaics`: the mosaics in a call of ``LLM.generate``. The engine runs their scenes together with the other inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.mosaic.mosaic import Mosaic, as_mosaic
from vllm_mmout.engine.mosaic.plan import Limits, MosaicPlan
from vllm_mmout.engine.mosaic.run import MosaicRun
from vllm_mmout.engine.request.request import Request
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.errors import MMOutError, OptionError
from vllm_mmout.geo import is_folder, place_of

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.params import OutputParams


@dataclass(slots=True)
class Mosaics:
    """Inputs and requests of a ``LLM.generate`` call, after each mosaic was replaced by its scenes."""

    inputs: list[Any] = field(default_factory=list)
    """Inputs for the engine."""
    requests: list[Request] = field(default_factory=list)
    """Requests for the engine, one for each of ``inputs``."""
    _input_ranges: list[range | MMOutError] = field(default_factory=list)
    """Range of indices in ``inputs`` for each input of ``generate``. The range of a mosaic covers all its scenes. A
    refused input has an error instead of a range."""
    _runs: dict[int, MosaicRun] = field(default_factory=dict)
    """Unfinished mosaics, which collect the results of their scenes. The key is a mosaic's index among the inputs of
    ``generate``."""
    _scenes: dict[int, tuple[MosaicRun, int]] = field(default_factory=dict)
    """Mosaic of each scene, and the scene's index in that mosaic. The key is the scene's index in ``inputs``."""

    @classmethod
    def of(cls, binding: Binding, inputs: Sequence[Any], requests: Sequence[Request]) -> Mosaics:
        """Open and check the mosaics among the inputs of a ``generate`` call. The caller must close the result."""
        mosaics = cls()
        try:
            for data, request in zip(inputs, requests, strict=True):
                mosaics._add(binding, data, request)
        except BaseException:
            mosaics.close()
            raise
        return mosaics

    def _add(self, binding: Binding, data: Any, request: Request) -> None:
        first, index = len(self.inputs), len(self._input_ranges)
        try:
            asked = as_mosaic(data, request.params)
            if asked is None:
                self._extend([data], [request])
            else:
                run = self._runs[index] = MosaicRun(MosaicPlan.of(binding, *asked, Limits()))
                scenes = [scene.data for scene in run.plan.scenes]
                own = [run.params(number) for number in range(len(scenes))]
                self._scenes |= {first + number: (run, number) for number in range(len(scenes))}
                self._extend(scenes, [_scene_request(request, params) for params in own])
        except MMOutError as error:
            self._input_ranges.append(error)
            return
        self._input_ranges.append(range(first, len(self.inputs)))

    def _extend(self, inputs: Sequence[Any], requests: Sequence[Request]) -> None:
        for place, request in enumerate(requests, start=len(self.inputs)):
            request.place = place
        self.inputs += inputs
        self.requests += requests

    def store_result(self, place: int, result: MultimodalRequestOutput) -> MultimodalRequestOutput:
        """Store the result of a mosaic's scene, and return the result without pixels.

        If ``result`` belongs to an input that is not a mosaic, return ``result`` unchanged. ``place`` is the index in
        ``inputs``.
        """
        if place not in self._scenes:
            return result
        run, index = self._scenes[place]
        error = None
        try:
            run.take(index, result)
        except MMOutError as refusal:
            error = refusal
        return MultimodalRequestOutput(result.request_id, None, [], 0, finished=True, error=error)

    def joined(self, results: Sequence[MultimodalRequestOutput]) -> list[MultimodalRequestOutput]:
        """Return a result for each input of the ``generate`` call. A mosaic has a single, joined result."""
        joined = []
        for index, places in enumerate(self._input_ranges):
            if isinstance(places, MMOutError):
                joined.append(_failed(f"mosaic-{index}", places))
            elif index in self._runs:
                joined.append(_joined(self._runs[index], [results[place] for place in places]))
            else:
                joined.append(results[places[0]])
        return joined

    def close(self) -> None:
        """Delete the temporary files that store the results of the mosaics' scenes."""
        for run in self._runs.values():
            run.close()


def check_folders(inputs: Sequence[Any], params: Sequence[OutputParams]) -> None:
    """Raise OptionError if a mosaic that writes a map for each day has the same output folder as another input.

    The names of the maps are their dates, which are unknown before the inputs are opened.
    """
    folders = [None if own.path is None else _folder_of(own.path) for own in params]
    for data, own, folder in zip(inputs, params, folders, strict=True):
        each_day = own.each_day or (isinstance(data, Mosaic) and data.each_day)
        if each_day and own.path is not None and is_folder(own.path) and folders.count(folder) > 1:
            raise OptionError(
                f"path: {own.path} gets files named by their dates (each_day), and another result of this call; give"
                " each its own folder",
                param="path",
            )


def _folder_of(path: str) -> PurePath:
    place = place_of(path)
    folder = place if is_folder(path) else place.parent
    return folder.absolute() if isinstance(folder, Path) else folder


def _scene_request(request: Request, params: OutputParams) -> Request:
    """Return a scene's request: with its own ``params``, and the priority and LoRA adapter of the mosaic's request."""
    return Request(params, lora_request=request.lora_request, priority=request.priority, may_be_empty=True)


def _joined(run: MosaicRun, results: Sequence[MultimodalRequestOutput]) -> MultimodalRequestOutput:
    request_id = results[0].request_id
    for result in results:
        if result.error is not None:
            return _failed(request_id, result.error)
    try:
        return run.result(request_id)
    except MMOutError as error:
        return _failed(request_id, error)


def _failed(request_id: str, error: MMOutError) -> MultimodalRequestOutput:
    return MultimodalRequestOutput(request_id, None, [], 0, finished=True, error=error)
