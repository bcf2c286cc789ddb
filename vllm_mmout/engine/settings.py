"""EngineSettings: how a bound engine decodes, set once an engine through ``additional_config={"mmout": {...}}``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from vllm_mmout.errors import OptionError

OPTIONS_KEY = "mmout"
"""Our table in ``additional_config``."""

Positive = Annotated[int, msgspec.Meta(ge=1)]
Compile: TypeAlias = Literal["off", "on", "auto"]


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a bound engine.

    Args:
        decode_threads: outputs decoded at once; by default one less than the machine's cores, at most 4.
        decode_timeout_s: seconds that one decode may run before its request fails, and that ``assemble`` may work on
            one part; what it does after the last part, as writing a large file, has no limit.
        max_in_flight: requests between admission and delivery; by default four times the engine's ``max_num_seqs``.
            Where several engines work for one frontend (data parallel), this is for each of them, and so are those of
            bytes and of tiles.
        max_in_flight_bytes: bytes of input between admission and delivery.
        max_scenes: scenes that are cut into tiles at once; further ones wait, single inputs do not.
        max_tiles: tiles of all scenes between reading and joining; by default twice the engine's ``max_num_seqs``.
        max_tile_bytes: bytes of their input.
        step_timeout_s: seconds that one step of the model may take before the engine ends, and ``/health`` fails; by
            default vLLM's ``VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`` (300). An engine in the user's own process has no such
            limit, nor has one that generates tokens.
        compile: whether ``forward`` of a model that is not written for vLLM is compiled at the start, for inputs of the
            largest size; "auto" keeps it where it was faster then.
        trust_operators: operators that a ``.pt2`` archive may call beside those that are allowed, as "aten.name"; what
            they do with memory is not checked.
        trace: a file that tells where the time of each request and tile goes, see docs/serving.md; made anew.

    """

    decode_threads: Positive = max(1, min(4, (os.cpu_count() or 2) - 1))
    decode_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    max_in_flight: Positive | None = None
    max_in_flight_bytes: Positive = 256 << 20
    max_scenes: Positive = 4
    max_tiles: Positive | None = None
    max_tile_bytes: Positive = 64 << 20
    step_timeout_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    compile: Compile = "off"
    trust_operators: tuple[str, ...] = ()
    trace: str | None = None

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> EngineSettings:
        """Check plain data.

        Raises:
            OptionError: a value has the wrong type or is out of range.

        """
        try:
            return msgspec.convert(dict(settings), cls)
        except msgspec.ValidationError as error:
            raise OptionError(f'additional_config["mmout"]: {error}') from None


def set_option(arguments: argparse.Namespace, name: str, value: object) -> None:
    """Set a setting in the arguments of a command line, as ``--additional-config`` there does."""
    given = getattr(arguments, "additional_config", None)
    config = dict(given) if isinstance(given, Mapping) else {}
    arguments.additional_config = {**config, OPTIONS_KEY: {**config.get(OPTIONS_KEY, {}), name: value}}
