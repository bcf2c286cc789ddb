"""The flags ``--figure`` and ``--figure-title`` of ``vllm-mmout run``: a figure of the result for reports."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.geo import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE: Final = "--figure"
FIGURE_TITLE: Final = "--figure-title"
_SUFFIXES: Final = (".png", ".pdf", ".svg")


def check_figure(file: str, results: int) -> None:
    """Raise an error if no figure can be saved to ``file``, for example because there are several results.

    ``results`` is the number of inputs and mosaics, each of which has a result. Otherwise see `check_figure_file`.
    """
    if results > 1:
        raise OptionError(f"{FIGURE} {file} is a figure of one result, and there are {results} inputs; run them apart")
    check_figure_file(file, FIGURE)


def check_figure_file(file: str, flag: str) -> None:
    """Raise an error if no figure can be saved to ``file``, which the user named by ``flag``.

    Raises:
        OptionError: the format is unknown, or matplotlib is not installed.
        SaveError: the folder does not exist.

    """
    path = Path(file)
    if path.suffix.lower() not in _SUFFIXES:
        raise OptionError(f"{flag} {file} has no suffix of a figure ({', '.join(_SUFFIXES)})")
    if not path.parent.is_dir():
        raise SaveError(f"{flag} {file}: there is no folder {path.parent}; make it first")
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise OptionError(f'{flag} needs matplotlib ({error}); pip install "vllm-mmout[figure]"') from error


def save_figure(outputs: Any, file: str, title: str | None = None) -> None:
    """Save the figure of the first output that can be drawn, and print the path of the file.

    The default title is the model's name.
    """
    made = list(outputs.values()) if isinstance(outputs, Mapping) else [outputs]
    drawn = [output for output in made if hasattr(output, "figure")]
    if not drawn:
        raise OptionError(f"{FIGURE}: a {type(made[0]).__name__} has no figure; leave {FIGURE} out")
    write_figure(drawn[0].figure(title=title), file)


def write_figure(figure: Figure, file: str) -> None:
    """Write a figure to ``file``, in the format of the file's suffix. Print the path of the file."""
    with atomic_file(Path(file)) as part:
        figure.savefig(part, format=Path(file).suffix[1:].lower())
    print(file)
