"""The options of a request as command line flags."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from vllm_mmout.errors import OptionError
from vllm_mmout.option import Option
from vllm_mmout.params import LOCAL_ONLY
from vllm_mmout.params import OPTIONS as DECLARED


def flag(name: str) -> str:
    """Return the command line flag of an option, such as ``--chunk-seconds`` for "chunk_seconds"."""
    own: str | None = DECLARED[name].extra.get("flag") if name in DECLARED else None
    return own or f"--{name.replace('_', '-')}"


def argparse_settings(option: Option) -> Mapping[str, Any]:
    """Return the keyword arguments of argparse's ``add_argument`` for an option of a request."""
    text = option.meta.description.partition(". ")[0].removesuffix(".") if option.meta.description else ""
    arguments: dict[str, Any] = {"dest": option.name, "default": option.default, "help": text.replace("%", "%%")}
    if option.hint is bool:
        return {**arguments, "action": "store_true"}
    if option.choices:
        if "bare" in option.extra:
            arguments |= {"nargs": "?", "const": option.extra["bare"]}
        chosen = option.default or option.extra.get("bare")
        return {**arguments, "choices": option.choices, "help": f"{arguments['help']} ({chosen})"}
    default_metavar = "LIST" if option.items else option.extra.get("unit", "value").upper()
    if option.items and set(option.items) == {float}:
        arguments["help"] += f"; write {flag(option.name)}=-1,... where the first is negative"
    return {**arguments, "type": reading(option), "metavar": option.extra.get("metavar", default_metavar)}


def reading(option: Option) -> Callable[[str], Any]:
    """Return argparse's ``type`` for an option: a function that converts the flag's text to the option's value."""
    from_text = option.extra.get("read", option.from_text)

    def read(text: str) -> Any:
        try:
            return from_text(text)
        except OptionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    name: argparse_settings(option) for name, option in DECLARED.items() if name not in {*LOCAL_ONLY, "partial_images"}
}
"""Keyword arguments of argparse's ``add_argument`` for each option of a request, in the order of ``--help``."""


def _grid(text: str) -> str | tuple[str, float]:
    """Return the value of ``--grid``: the path or address of a raster file, or a coordinate system and a pixel size."""
    if os.path.exists(text) or not _CRS_AND_SIZE.fullmatch(text):  # noqa: PTH110 - Path.exists raises for long texts
        return text
    grid: tuple[str, float] = reading(DECLARED["mosaic_grid"])(text)
    return grid


_CRS_AND_SIZE = re.compile(r"\[.*|.+,[-+.\deE\s]+", re.DOTALL)
RUN_OPTIONS = {
    **OPTIONS,
    "mosaic_grid": {
        **OPTIONS["mosaic_grid"],
        "type": _grid,
        "metavar": "FILE|CRS,SIZE",
        "help": "grid of the map of a mosaic: that of a raster file, or a coordinate system and a pixel size, such as"
        " EPSG:3035,10",
    },
    "stac_item": argparse_settings(DECLARED["stac_item"]),
}
"""Keyword arguments of ``add_argument`` for all options of ``vllm-mmout run``."""
