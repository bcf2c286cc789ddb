"""The command line with an engine, in a folder of its own; `test_cli_refusals.py` has what needs none."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import forked_python
import numpy as np
import pytest
from scene_generator import make_scene, write_scene
from scenes_for_tests import classes

import vllm_mmout
from vllm_mmout.cli import main
from vllm_mmout.commands import run as run_command

pytestmark = pytest.mark.engine

QUIET = ("VLLM_LOGGING_LEVEL", "VLLM_LOGGING_STREAM", "TORCH_CPP_LOG_LEVEL", "PYTHONWARNINGS")
"""Variables that a user has not set, and the tests' own environment may."""


def environment_of_a_user(**variables):
    """Return this process's environment without what the tests set, and with some variables."""
    removed = {*QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING"}
    return {name: value for name, value in os.environ.items() if name not in removed} | variables


def run(*arguments, cwd, **variables):
    """Run a command in a forked process; return its status and the lines of its output and errors."""
    return run_forked("-m", "vllm_mmout.cli", *map(str, arguments), cwd=cwd, **variables)


def run_forked(*arguments, cwd, **variables):
    """Run Python in a forked process; return its status and the lines of its output and errors.

    Warnings of torch's C++ code are left out: torch has read ``TORCH_CPP_LOG_LEVEL`` before the fork.
    """
    status, printed, errors = lines_of(forked_python.run(arguments, cwd=cwd, env=environment_of_a_user(**variables)))
    return status, printed, [line for line in errors if not line.startswith("[W")]


def start_and_run(*arguments, cwd, **variables):
    """Run a command in an interpreter that has imported nothing, as a user does; return what `run` does."""
    return lines_of(
        subprocess.run(
            [sys.executable, "-m", "vllm_mmout.cli", *map(str, arguments)],
            cwd=cwd,
            env=environment_of_a_user(**variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
            stdin=subprocess.DEVNULL,
        )
    )


def lines_of(done):
    """Return the status of a process that ended, and the lines of its output and errors."""
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A folder with three small scenes and a file that is none."""
    folder = tmp_path_factory.mktemp("scenes")
    for seed, name in enumerate("abc"):
        write_scene(folder / f"{name}.tif", make_scene(64, 80, seed=seed))
    (folder / "broken.tif").write_bytes((folder / "a.tif").read_bytes()[:3000])
    return folder


def names(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def with_names_of_classes(files):
    """The files, and what lies beside GeoTIFFs of classes."""
    stems = [file.removesuffix(".tif") for file in files if file.endswith(".tif")]
    return sorted([*files, *(f"{stem}{end}" for stem in stems for end in (".tif.aux.xml", ".qml"))])


@pytest.mark.parametrize("start", [run, pytest.param(start_and_run, marks=pytest.mark.slow)])
def test_demo(tmp_path, start, demo_scene):
    """It writes a scene, a GeoTIFF and a PNG, and prints the IoU, 0.9 or more, without and with clouds, and no more."""
    from PIL import Image

    rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
    status, printed, errors = start("demo", cwd=tmp_path)
    assert (status, errors) == (0, [])
    written = ("scene.tif", "water.png", "water.qml", "water.tif", "water.tif.aux.xml")
    assert names(tmp_path) == [f"demo-output/{name}" for name in written]
    assert [line.split()[0] for line in printed] == ["scene", "GeoTIFF", "PNG", "IoU"]
    folder = tmp_path / "demo-output"
    with rasterio.open(folder / "scene.tif") as scene, rasterio.open(folder / "water.tif") as water:
        assert (water.crs, water.transform) == (scene.crs, scene.transform)
        classes = water.read(1)
    truth = demo_scene.truth
    found, there = (classes == 1)[truth != 255], (truth == 1)[truth != 255]
    iou = (found & there).sum() / (found | there).sum()
    assert iou >= 0.9
    cloudy = ((classes == 1) & (truth == 1)).sum() / ((classes == 1) | (truth == 1)).sum()
    assert cloudy < 0.9, "the clouds that are taken for water are not counted"
    assert [word for word in printed[3].split() if word[0] == "0"] == [f"{iou:.3f}", f"{cloudy:.3f}"]
    with Image.open(tmp_path / "demo-output/water.png") as picture:
        assert picture.size == (512, 512)


@pytest.mark.slow
def test_the_engines_own_processes_end_with_the_demo(tmp_path):
    """Where the user asks for an engine in processes of its own, none outlives the command."""
    import psutil

    marker = f"test-of-{os.getpid()}-{tmp_path.name}"
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "MMOUT_TEST": marker}
    status, printed, _ = start_and_run("demo", "-o", "out", cwd=tmp_path, **variables)
    assert status == 0
    assert printed[-1].startswith("IoU")
    for process in psutil.process_iter():
        try:
            assert process.environ().get("MMOUT_TEST") != marker, process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


@pytest.mark.slow
def test_run_on_several_files(scenes, tmp_path):
    """Each input gets its own file; the broken and the missing one are said and do not stop the others."""
    inputs = [scenes / "a.tif", scenes / "broken.tif", scenes / "b.tif", scenes / "missing.tif"]
    status, printed, errors = run("run", "water-index", *inputs, "-o", "masks", cwd=tmp_path)
    assert status == 1
    assert printed == ["masks/a.tif", "masks/b.tif"]
    assert names(tmp_path) == with_names_of_classes(printed)
    assert len(errors) == 3
    assert "broken.tif" in errors[0]
    assert errors[1].startswith("no such file: ")
    assert "missing.tif" in errors[1]
    assert errors[2] == "2 of 4 inputs failed"


def test_a_format_for_the_files_of_a_folder(tmp_path):
    """Each is named like its input, with the suffix of the format; the folder is made."""
    wanted = [run_command.RunInput("a/b.tif"), run_command.RunInput("s3://bucket/c/d.tif", "c/")]
    out = f"{tmp_path}/out/"
    assert run_command._paths(out, wanted, "jpeg") == [f"{out}b.jpg", f"{out}c/d.jpg"]
    assert run_command._paths(out, wanted, None) == [out, f"{out}c/"]
    assert (tmp_path / "out").is_dir()


@pytest.mark.slow
def test_run_with_options(hls, llm, tmp_path):
    """Bands, output and several processors go the same way as in Python; engine flags may stand behind them."""
    rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
    options = ["--bands", "2,3,4,5,6,7", "--output", "confidence", "--nodata", "-9999", "--max-num-seqs", "2"]
    status, printed, errors = run("run", "water-index", hls, "-o", "sure.tif", *options, cwd=tmp_path)
    assert (status, printed, errors) == (0, ["sure.tif"], [])
    params = vllm_mmout.OutputParams(bands=(2, 3, 4, 5, 6, 7), output="confidence")
    (result,) = llm.generate(hls, params, use_tqdm=False)
    with rasterio.open(tmp_path / "sure.tif") as written:
        np.testing.assert_array_equal(written.read(), result.outputs.array)


def test_run_on_scenes(scenes, tmp_path):
    """Inputs larger than a tile are cut in one engine, each into its file; one that is damaged within is said."""
    rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
    damaged = bytearray((scenes / "c.tif").read_bytes())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 800] = b"\xff" * 800
    (tmp_path / "damaged.tif").write_bytes(damaged)
    inputs = [scenes / "a.tif", tmp_path / "damaged.tif", scenes / "b.tif"]
    options = ["--tile", "20", "--overlap", "6", "--blend", "linear", "--window", "3,5,50,60"]
    values = ["--scale", "0.0001", "--offset", "0,-0.05,0,0,0.01,0"]
    options += ["--mmout-trace", "trace.json"]
    status, printed, errors = run("run", "water-index", *inputs, "-o", "out/", *options, *values, cwd=tmp_path)
    assert (status, printed) == (1, ["out/a.tif", "out/b.tif"])
    assert names(tmp_path) == ["damaged.tif", *with_names_of_classes(printed), "trace.json"]
    assert (tmp_path / "trace.json").read_text().count('"name":"deliver"') == 2
    assert len(errors) == 2
    assert "damaged.tif" in errors[0]
    assert "tile 1 of 16 (rows 3 to 22, columns 5 to 24)" in errors[0]
    for name in "ab":
        with rasterio.open(scenes / f"{name}.tif") as before, rasterio.open(tmp_path / f"out/{name}.tif") as after:
            part = before.read()[:, 3:53, 5:65]
            offset = np.array([0, -0.05, 0, 0, 0.01, 0], np.float32).reshape(-1, 1, 1)
            seen = part.astype(np.float32) * np.float32(1e-4) + offset
            np.testing.assert_array_equal(after.read(), classes(seen, (part != before.nodata).all(axis=0)))
            west, north = before.transform.c + 5 * 10, before.transform.f - 3 * 10
            assert tuple(after.transform)[:6] == (10, 0, west, 0, -10, north)
            assert after.crs == before.crs


@pytest.mark.slow
def test_run_with_several_processors(scenes, tmp_path):
    """The engine's table gives a model more processors; each pick gets its file."""
    status, printed, errors = run(
        "run",
        "water-index",
        scenes / "a.tif",
        "-o",
        "out/",
        "--processor",
        "segmentation,tensor",
        "--additional-config",
        '{"mmout": {"output_processor": ["segmentation", "tensor"]}}',
        cwd=tmp_path,
    )
    assert (status, errors) == (0, [])
    assert printed == ["out/a-segmentation.tif", "out/a-tensor.npz"]
    assert names(tmp_path) == with_names_of_classes(printed)


REFUSED_BY_THE_ENGINE = {
    "a misspelt flag": (["--ouptut", "classes"], 2, "unknown arguments: --ouptut classes; did you mean --output?"),
    "a misspelt engine flag": (["--max-num-sequences", "2"], 2, "did you mean --max-num-seqs?"),
    "a wrong value": (["--max-num-seqs", "few"], 2, "argument --max-num-seqs: invalid int value: 'few'"),
    "a table by dots": (["--additional-config.mmout.output_procesor", "tensor"], 2, "'output_procesor'"),
    "a value that vLLM refuses": (["--dtype", "float32", "--max-num-seqs", "-1"], 1, "the engine did not start"),
    "an unknown output": (["--output", "clases"], 2, "(known: classes, probabilities, confidence, polygons, areas)"),
    "an unknown processor": (["--processor", "masks"], 2, "'masks'"),
    "no processor": (["--additional-config", '{"mmout": {"output_processor": "none"}}'], 2, "has no output processor"),
    "a tile that the model cannot take": (["--tile", "2000"], 1, "tile must be 1 to 1024 pixels"),
    "an unknown suffix": (["-o", "o.xyz"], 1, "'.xyz'"),
}


ONE_AFTER_THE_OTHER = """
import contextlib, json, sys, tempfile
from vllm import LLM
from vllm_mmout.cli import main

start, kept = LLM.from_engine_args, {}
def started(arguments):
    if repr(arguments) not in kept:
        kept[repr(arguments)] = llm = start(arguments)
        llm.llm_engine.engine_core.shutdown = lambda: None
    return kept[repr(arguments)]
LLM.from_engine_args = started

for arguments in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:  # vLLM may ask for a fileno
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            try:
                status = main(arguments)
            except SystemExit as ended:
                status = ended.code
        said = []
        for file in (printed, errors):
            file.seek(0)
            said.append(file.read().splitlines())
    print(json.dumps([status, *said]), flush=True)
print(len(kept), "engines")
"""
"""Runs commands in one process. Commands whose engines have the same arguments share an engine."""


@pytest.fixture(scope="module")
def refusals(scenes, tmp_path_factory):
    """Return how each command of `REFUSED_BY_THE_ENGINE` ended and what it printed, and the folder in which it ran."""
    folder = tmp_path_factory.mktemp("refused")
    base = ["run", "water-index", str(scenes / "a.tif"), "-o", "o.tif"]
    commands = json.dumps([[*base, *flags] for flags, *_ in REFUSED_BY_THE_ENGINE.values()])
    status, printed, errors = run_forked("-c", ONE_AFTER_THE_OTHER, commands, cwd=folder)
    assert (status, errors, printed.pop()) == (0, [], "1 engines")
    return dict(zip(REFUSED_BY_THE_ENGINE, map(json.loads, printed), strict=True)), folder


@pytest.mark.parametrize("name", REFUSED_BY_THE_ENGINE)
def test_what_the_engine_refuses_is_said_in_a_line(refusals, name):
    """No traceback, no page of usage, nothing written."""
    _, status, says = REFUSED_BY_THE_ENGINE[name]
    ended, folder = refusals
    found, printed, errors = ended[name]
    assert (found, printed) == (status, []), errors
    assert says in "\n".join(errors)
    assert "Traceback" not in "\n".join(errors)
    assert len(errors) <= 2
    assert names(folder) == []


def test_processors(capsys):
    """Each is listed with what it returns and where it comes from."""
    assert main(["processors"]) == 0
    printed = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in printed]
    assert rows[0] == ["name", "returns", "output=", "from"]
    assert [row[:2] for row in rows[1:]] == [
        ["tensor", "tensor"],
        ["image", "image"],
        ["video", "video"],
        ["segmentation", "raster"],
        ["regression", "raster"],
        ["classification", "structured"],
        ["detection", "structured"],
        ["embedding", "tensor"],
        ["embedding_grid", "raster"],
        ["vq_image", "image"],
        ["codec_audio", "audio"],
        ["semantic-segmentation", "raster"],
        ["image-segmentation", "raster"],
        ["depth-estimation", "raster"],
        ["image-to-image", "raster"],
        ["object-detection", "structured"],
        ["zero-shot-object-detection", "structured"],
        ["zero-shot-classification", "structured"],
        ["text-segmentation", "raster"],
        ["mask-generation", "raster"],
        ["keypoint-detection", "structured"],
        ["pose-estimation", "structured"],
        ["keypoint-matching", "tensor"],
        ["normal-estimation", "raster"],
        ["image-matting", "raster"],
        ["text-to-waveform", "audio"],
    ]
    assert "classes, probabilities, confidence" in printed[4]
    assert "vllm_mmout.processors.segmentation:SegmentationProcessor (built in)" in printed[4]


def test_doctor(tmp_path):
    """All is well where these tests run; versions, runner, hooks, packages, wings and codecs are said."""
    status, printed, errors = run("doctor", cwd=tmp_path)
    assert (status, errors) == (0, [])
    assert all(line.startswith("ok  ") for line in printed)
    said = ["plugin:", "engine:", "runner:", "hooks:", "packages:", "wings:", "VLLM_PLUGINS:", "codecs:"]
    assert [line.split()[1] for line in printed] == said
    assert printed[2].startswith(
        "ok    runner: Model Runner V1 (no Triton); native: nothing; wrapped: EngineArgs.create_engine_config, "
    )


@pytest.mark.slow
def test_doctor_says_what_to_do(tmp_path):
    """A plugin that is kept out is found, and the exit status tells."""
    status, printed, _ = run("doctor", cwd=tmp_path, VLLM_PLUGINS="another")
    assert status == 1
    assert [line for line in printed if line.startswith("FAIL")] == [
        "FAIL  VLLM_PLUGINS='another' leaves the plugin out; add vllm_mmout to it"
    ]
