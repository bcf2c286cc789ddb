"""The flags of ``vllm-mmout run`` that are options of its requests, as these are declared."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.params import LOCAL_ONLY
from vllm_mmout.params import OPTIONS as DECLARED
from vllm_mmout.request_options import Option


def flag(name: str) -> str:
    """What an option is called on the command line."""
    return f"--{name.replace('_', '-')}"


def out_file(out: str) -> Path | None:
    """The file that ``-o`` names for one result, whose suffix tells the format; None of a folder."""
    target = Path(out)
    if target.is_dir() or out.endswith(os.sep):
        return None
    if not target.parent.is_dir():
        raise SaveError(f"-o {out}: there is no folder {target.parent}; make it first")
    if not target.suffix:
        raise OptionError(
            f"-o {out} has no suffix, which tells the format (.tif, .png, ...); for a folder write {out}/"
        )
    return target


def _said(option: Option) -> Mapping[str, Any]:
    """What argparse is told of an option: the first sentence of its description, and how its value is read."""
    text = option.meta.description.partition(". ")[0].removesuffix(".") if option.meta.description else ""
    said: dict[str, Any] = {"default": option.default, "help": text.replace("%", "%%")}
    if option.choices:
        return {**said, "choices": option.choices, "help": f"{said['help']} (%(default)s)"}
    usual = "LIST" if option.items else option.extra.get("unit", "value").upper()
    if option.items and set(option.items) == {float}:
        said["help"] += f"; write {flag(option.name)}=-1,... where the first is negative"
    return {**said, "type": _reading(option), "metavar": option.extra.get("metavar", usual)}


def _reading(option: Option) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return option.from_text(text)
        except OptionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    name: _said(option) for name, option in DECLARED.items() if name not in {*LOCAL_ONLY, "partial_images"}
}
"""What argparse is told of each, by its name in `OutputParams`, in the order of ``--help``."""
