"""Settings of an engine, which users give in ``additional_config={"mmout": {...}}``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.geo import READ_AHEAD_BYTES

OPTIONS_KEY = "mmout"
"""Key of this package's settings in vLLM's ``additional_config``."""

Positive = Annotated[int, msgspec.Meta(ge=1)]
Compile: TypeAlias = Literal["off", "on", "auto"]


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an engine that decodes outputs with output processors.

    Args:
        decode_threads: number of threads that decode outputs, by default one less than the machine's cores, at most 4.
        decode_timeout_s: longest time in seconds that a decode may run before its request fails, and that ``assemble``
            may work on a part. Its work after the last part, such as writing a large file, has no limit.
        max_in_flight: largest number of requests between admission and delivery, by default four times the engine's
            ``max_num_seqs``, at least 16. If a frontend has several engines (data parallel), this limit and the limits
            of bytes and tiles apply to each engine.
        max_in_flight_bytes: largest size of the inputs between admission and delivery, in bytes.
        max_scenes: largest number of scenes that are cut into tiles at once. Further scenes wait, single inputs do not.
        max_tiles: largest number of tiles of all scenes between reading and joining, by default twice the engine's
            ``max_num_seqs``, at least 512.
        max_tile_bytes: largest size of the inputs of these tiles, in bytes, by default 16 MiB for each thread that
            reads a file, at least 64 MiB and at most 256 MiB.
        step_timeout_s: longest time in seconds that a step of the model may take before the engine ends and ``/health``
            fails, by default vLLM's ``VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`` (300). Engines in the user's own process and
            engines that generate tokens have no such limit.
        compile: whether to compile ``forward`` at the start, for inputs of the largest size, if the model is not
            written for vLLM. "auto" keeps the compiled ``forward`` only if it is faster.
        trust_operators: operators that a ``.pt2`` archive may call in addition to the allowed operators, as
            "aten.name". Their memory accesses are not checked.
        trace: path of a file that records the time of each stage of each request and tile, see docs/serving.md. An
            existing trace is replaced.

    """

    decode_threads: Positive = max(1, min(4, (os.cpu_count() or 2) - 1))
    decode_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    max_in_flight: Positive | None = None
    max_in_flight_bytes: Positive = 256 << 20
    max_scenes: Positive = 4
    max_tiles: Positive | None = None
    max_tile_bytes: Positive = max(64 << 20, 2 * READ_AHEAD_BYTES)
    step_timeout_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    compile: Compile = "off"
    trust_operators: tuple[str, ...] = ()
    trace: str | None = None

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> EngineSettings:
        """Create the settings from a mapping of names to plain values.

        Raises:
            OptionError: a value has the wrong type or is out of range.

        """
        try:
            return msgspec.convert(dict(settings), cls)
        except msgspec.ValidationError as error:
            raise OptionError(f'additional_config["mmout"]: {error}') from None


def set_option(arguments: argparse.Namespace, name: str, value: object) -> None:
    """Set an engine setting in the ``additional_config`` of parsed command line arguments."""
    additional = getattr(arguments, "additional_config", None)
    config = dict(additional) if isinstance(additional, Mapping) else {}
    arguments.additional_config = {**config, OPTIONS_KEY: {**config.get(OPTIONS_KEY, {}), name: value}}
