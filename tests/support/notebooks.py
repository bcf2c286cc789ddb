"""The example notebooks: run by a kernel of their own, and read with their outputs."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from scripts import run_script

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

RUN = """\
import os, sys, nbformat
from nbclient import NotebookClient

os.environ.pop("PYTEST_CURRENT_TEST", None)  # where that is set a kernel does not show what its processes write
notebook = nbformat.read(sys.argv[1], as_version=4)
after = nbformat.v4.new_code_cell("from processes import children_left; print(children_left())")
after["id"] = "after"
notebook.cells.append(after)
try:
    NotebookClient(notebook, timeout=1200, kernel_name="of-the-test").execute()
finally:
    nbformat.write(notebook, sys.argv[2])
"""
"""Runs the notebook and, at its end, asks its kernel which processes it has."""


def cells_of(file):
    """Code cells by their id."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: cell for cell in cells if cell["cell_type"] == "code"}


def picture_of(cell):
    """The picture that a cell shows, RGBA, and what stands for it where no picture can be shown."""
    (result,) = [output for output in cell["outputs"] if output["output_type"] == "execute_result"]
    with Image.open(io.BytesIO(base64.b64decode(result["data"]["image/png"]))) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGBA")), "".join(result["data"]["text/plain"])


def printed(cell, stream="stdout"):
    """What a cell wrote to a stream."""
    outputs = [output for output in cell["outputs"] if output["output_type"] == "stream" and output["name"] == stream]
    return "".join("".join(output["text"]) for output in outputs)


def run_notebook(notebook, place, jupyter, **environment):
    """Run a notebook in the folder ``place``, where ``ran.ipynb`` gets its outputs.

    Args:
        notebook: path of the notebook.
        place: folder in which the notebook's kernel starts.
        jupyter: folder for Jupyter's own files.
        environment: further variables of the kernel.

    """
    kernel = jupyter / "kernels/of-the-test"
    kernel.mkdir(parents=True)
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": arguments, "display_name": "test", "language": "python"}))
    folders = {
        name: str(jupyter) for name in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")
    }
    run_script(
        "-c", RUN, notebook, "ran.ipynb", cwd=place, VLLM_ENABLE_V1_MULTIPROCESSING="1", **folders, **environment
    )
