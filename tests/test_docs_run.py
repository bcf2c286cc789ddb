"""What README.md and the pages of docs/ show is run as it stands there, in a folder where their files are."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from http_server import running
from model_folders import ENGINE, KEPT, engine_here, vllm_starts
from pages import ROOT, all_blocks, commands
from serving import served

from scripts import run_script

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]

ELSEWHERE = {
    ("embeddings.md", ""): "wings/transformers/engine/test_embedding_grids.py",
    ("formats.md", ""): "test_docs.py",
    ("inputs.md", "MyLlava"): "engine/test_generating_guide.py",
    ("inputs.md", ""): "engine/test_inputs_guide.py",
    ("processors.md", ""): "test_docs.py",
    ("terratorch.md", ""): "wings/terratorch/engine/test_terratorch_guide.py",
    ("clusters.md", ""): "wings/ray/test_cluster.py",
    ("archives.md", ""): "wings/archives/engine/test_archives.py",
    ("transformers.md", ""): "wings/transformers/engine/test_heads.py",
    ("iterative.md", ""): "wings/iterative/test_iterative_guide.py",
    ("map-tiles.md", ""): "wings/map_tiles/test_map_tiles_served.py",
    ("models.md", ""): "test_models_page.py",
    ("jobs-folder.md", "VACUUM"): "wings/jobs/server/test_jobs_folder_page.py",
    ("ogc.md", "owslib"): "wings/jobs/ogc/test_ogc_served.py",
    ("ogc.md", '"mosaic": "newest"'): "wings/jobs/ogc/test_ogc_served.py",
    ("jobs.md", "client.videos"): "wings/jobs/server/test_videos_served.py",
    ("stac.md", "localhost:8000"): "wings/stac/test_served_results.py",
    ("stac.md", ""): "wings/stac/test_stac_runs.py",
    ("tokens.md", ""): "wings/tokens/serving/test_tokens_guide.py",
    ("io-plugins.md", "ibm-nasa-geospatial"): "wings/terratorch/engine/test_terratorch_guide.py",
    ("io-plugins.md", "--model-impl terratorch"): "wings/io_plugins/test_plugin_launch.py",
    ("serving.md", "painter"): "wings/tokens/serving/test_tokens_guide.py",
    ("serving.md", "a lake"): "wings/tokens/serving/test_tokens_guide.py",
    ("serving.md", "speech"): "wings/tokens/serving/test_tokens_guide.py",
    ("serving.md", "USER: {prompt}"): "wings/tokens/serving/test_tokens_guide.py",
    ("use.md", "pip install"): "test_wheel.py",
    ("README.md", ". .venv/bin/activate"): "test_docs_run.py",
    ("own-models.md", "serve land-cover"): "test_docs_run.py",
    ("own-models.md", "land-cover.tif"): "test_docs_run.py",
}
"""(Page, a part of what is shown) -> the test file that has it."""
FORKED = {"io-plugins.md", "jobs.md"}
"""Pages whose server has the IO plugin and may fetch from this machine."""
CHANGING = (
    (r"scene_[\w-]{20,}|pooling-[0-9a-f]+", r"[\\w-]+"),
    (r'"created(_at)?":\d+', r'"created\1":\\d+'),
    (r"results/[\w-]+", r"results/[\\w-]+"),
    (r'"status":"\w+","progress":\d+', r'"status":"\\w+","progress":\\d+'),
    (r'"done":\d+', r'"done":\\d+'),
)
"""What differs each time -> as an expression; ``...`` on a page is anything."""


def elsewhere(block, text=""):
    """The test file that runs a block, or a command of it, where that is not this one."""
    of_page = [(part, file) for (page, part), file in ELSEWHERE.items() if page == block.page]
    return next((file for part, file in of_page if part in (text or block.text)), None)


def here(kind):
    """The blocks that this file runs."""
    return [block for block in all_blocks(kind) if not elsewhere(block)]


def commands_here():
    """Block, command, and what the page says that it prints."""
    every = [(block, *pair) for block in all_blocks("shell") for pair in commands(block)]
    return [one for one in every if not elsewhere(one[0], one[1])]


@dataclass
class Walk:
    """A reader's folder, and the servers that the pages speak of."""

    folder: Path
    files: str
    """Serves the folder ``demo-output``; ``localhost:PORT``."""
    server: str = ""
    """``localhost:PORT``."""
    job: str = ""
    """The id of the last one."""

    def here(self, text: str) -> str:
        """The same with the addresses, models and names of this folder."""
        for shown, there in (
            ("localhost:8000", self.server),
            ("host:8000", self.server),
            ("localhost:9000", self.files),
            ("https://host/", f"http://{self.files}/away/"),
            ("MODEL", "water-index"),
            ("LC09_.../", "LC09_L2SP_195027_20240817/"),
            ("my/model", "flood"),
            ("my/flood", "flood"),
            ("scene_4fX...", self.job),
            ("scene_Qk...", self.job),
        ):
            text = text.replace(shown, there)
        return text

    def shell(self, command: str) -> str:
        """What a command prints; it must end well."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "ID": self.job, "NO_PROXY": "*"}
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", self.here(command)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """The folder after ``make demo``, with the files that the pages name."""
    import rasterio
    from rasterio.transform import Affine, array_bounds, from_origin
    from rasterio.warp import transform_bounds
    from scene_generator import make_scene, write_scene
    from synthetic_catalogue import make_catalogue

    from vllm_mmout import embedded_scene

    folder = tmp_path_factory.mktemp("walk")
    (folder / "demo-output").mkdir()
    scene = embedded_scene(folder / "demo-output/scene.tif")
    make_catalogue(folder)
    (folder / "report").mkdir()
    wide = make_scene(512, 1280)
    for name in ("scene.tif", "large.tif"):
        write_scene(folder / name, wide)
    west, south, east, north = transform_bounds(
        wide.crs, "EPSG:4326", *array_bounds(512, 1280, Affine(*wide.transform))
    )
    ring = [[west, north], [east, north], [(west + east) / 2, (south + north) / 2], [west, north]]
    feature = {
        "type": "Feature",
        "properties": {"name": "north"},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }
    other = {**feature, "properties": {"name": "all"}}
    fields = {"type": "FeatureCollection", "features": [feature, other]}
    (folder / "fields.geojson").write_text(json.dumps(fields), encoding="utf-8")
    counties = [
        {"type": "Feature", "properties": {"name": name}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        for name, ring in (
            ("west", [[11.99, 45.05], [12.02, 45.05], [12.02, 45.07], [11.99, 45.05]]),
            ("east", [[12.02, 45.05], [12.04, 45.05], [12.04, 45.07], [12.02, 45.05]]),
        )
    ]
    text = json.dumps({"type": "FeatureCollection", "features": counties})
    (folder / "counties.geojson").write_text(text, encoding="utf-8")  # where docs/mosaics.md looks
    landsat = folder / "LC09_L2SP_195027_20240817"
    landsat.mkdir()
    with rasterio.open(scene) as source:
        profile = {**source.profile, "count": 1}
        for band in range(1, 7):
            for file in (folder / f"B{band + 1}.tif", landsat / f"{landsat.name}_SR_B{band + 1}.TIF"):
                with rasterio.open(file, "w", **profile) as target:
                    target.write(source.read(band), 1)
        for name in ("a.tif", "b.tif"):  # with a band before the model's six
            with rasterio.open(folder / name, "w", **{**profile, "count": 7}) as target:
                target.write(source.read([1, 1, 2, 3, 4, 5, 6]))
        for name, zone, west in (
            ("west_2024-05-01", 32, 735_000),
            ("east_2024-05-01", 33, 264_000),
            ("west_2024-06-01", 32, 736_000),
        ):
            place = {"crs": f"EPSG:326{zone}", "transform": from_origin(west, 4_995_000, 10, 10)}
            with rasterio.open(folder / f"{name}.tif", "w", **{**source.profile, **place}) as target:
                target.write(source.read())
        away = {**source.profile, "transform": from_origin(452_000, 5_266_000, 60, 60)}  # where docs/scenes.md looks
        (folder / "away").mkdir()
        with rasterio.open(folder / "away/scene.tif", "w", **away) as target:
            target.write(source.read())
    with running() as files:
        files.serve("/scene.tif", scene.read_bytes())
        files.serve("/away/scene.tif", (folder / "away/scene.tif").read_bytes())
        yield Walk(folder, files.address.removeprefix("http://").replace("127.0.0.1", "localhost"))


@pytest.fixture(scope="module")
def plugin_server():
    """The server of docs/io-plugins.md, as its command has it."""
    (command,) = [text for _, text, _ in commands_here() if text.startswith("vllm-mmout") and "-plugin mmout" in text]
    _, _, model, *flags = shlex.split(command)
    with served(model, *flags) as server:
        yield server


def test_every_block_is_run_by_a_test():
    """What a test elsewhere runs is named there; no entry is left over."""
    tests = Path(__file__).parent
    blocks = [block for kind in ("python", "json", "shell") for block in all_blocks(kind)]
    for (page, part), file in ELSEWHERE.items():
        assert any(block.page == page and part in block.text for block in blocks), (page, part)
        assert page in (tests / file).read_text(), (page, file)
    assert {block.page for block in here("json")} == {"own-models.md"}
    assert {block.page for block in here("python")} == {
        *("area-and-date.md", "README.md", "io-plugins.md", "mosaics.md", "own-models.md", "report.md", "scenes.md"),
        *("serving.md", "use.md"),
    }


OFFLINE = (
    "vllm-mmout run",
    "vllm-mmout figure",
    "vllm-mmout areas",
    "vllm-mmout info",
    "vllm-mmout processors",
    "vllm-mmout doctor",
    "make demo",
)
COMMANDS = [
    pytest.param(block, command, printed, id=f"{block}-{command.split('#')[0].strip()[:40]}")
    for block, command, printed in commands_here()
    if not command.startswith(OFFLINE)
]
SERVING = re.compile(r"(\w+=\S+ )?(vllm-mmout|vllm) serve ")


@pytest.mark.slow
def test_commands_without_a_server(walk):
    """Those of all pages, one after the other in one process, which imports the engine once; then README's script."""
    lines = [walk.here(command) for _, command, _ in commands_here() if command.startswith(OFFLINE)]
    (recipe,) = re.findall(r"^demo:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    script, _ = [block.text for block in here("python") if block.page == "README.md"]
    whole = [recipe if "make demo" in line else line.replace("\\\n", "") for line in lines]
    words = [shlex.split(line, comments=True) for line in whole]
    arguments = [line[3:] if "-m" in line else line[1:] for line in words]  # behind "python -m vllm_mmout.cli" too
    assert len(arguments) >= 6
    (walk.folder / "readme.py").write_text(script)
    (walk.folder / "commands.py").write_text(
        textwrap.dedent(f"""
            import runpy
            from vllm_mmout.cli import main

            if __name__ == "__main__":
                for arguments in {arguments}:
                    print("status:", main(arguments), flush=True)
                runpy.run_path("readme.py", run_name="__main__")
        """)
    )
    done = run_script("commands.py", cwd=walk.folder, VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
    assert done.stdout.count("status: 0\n") == len(arguments), done.stdout
    (printed,) = [block.text for block in all_blocks("") if block.page == "README.md"]
    for line in printed.splitlines():
        assert line in done.stdout
    for file in ("out/a.tif", "out/b.tif", "flood.geojson", "water.tif"):
        assert (walk.folder / file).stat().st_size > 1000, file


@pytest.mark.slow
@pytest.mark.parametrize(("block", "command", "printed"), COMMANDS)
def test_a_command(block, command, printed, walk, water_server, request):
    """It ends well and prints what its page says; a command that serves is up."""
    if SERVING.match(command):
        _serves(command, walk)
        return
    server = request.getfixturevalue("plugin_server") if block.page in FORKED else water_server
    walk.server = server.url.removeprefix("http://").replace("127.0.0.1", "localhost")
    if command.startswith("ID="):
        return  # of the answer to the command before
    if "--resume" in command or "limit=2" in command:
        for _ in range(1 if "--resume" in command else 3):
            walk.job = walk.shell("vllm-mmout submit scene.tif --server http://localhost:8000 --no-wait").strip()
    if any(part in command for part in ("/content", "/figure", "/pixel")) or "$ID/results" in command:
        _wait(server, walk.job)
    if "-C -" in command:  # the download broke
        os.truncate(walk.folder / "water.tif", 1000)
    said = walk.shell(command)
    while printed and '"status":"in_progress"' in printed and '"tiles":null' in said:
        said = walk.shell(command)
    if "/v1/scenes -F" in command:
        walk.job = json.loads(said)["id"]
    if "respond-async" in command:
        walk.job = json.loads(said)["jobID"]
    expected = re.sub(r"scene_[\w-]+(\.\.\.)?", f"scene_{20 * 'x'}", printed)
    pattern = ".*".join(_pattern(walk.here(part)) for part in expected.split("..."))
    assert not expected or re.match(pattern, re.sub(r"\n\s*", "", said), re.DOTALL), f"{pattern}\n{said[:2000]}"


def _pattern(text):
    """An expression for a piece of an answer."""
    spots = list(re.finditer("|".join(f"(?:{old})" for old, _ in CHANGING), text))
    if not spots:
        return re.escape(text)
    first = spots[0]
    new = next(re.sub(old, new, first[0]) for old, new in CHANGING if re.fullmatch(old, first[0]))
    return re.escape(text[: first.start()]) + new + _pattern(text[first.end() :])


def _wait(server, job):
    deadline = time.monotonic() + 120
    while (told := httpx.get(f"{server.url}/v1/scenes/{job}", trust_env=False).json())["status"] != "completed":
        assert told["status"] in ("queued", "in_progress"), told
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _serves(command, walk):
    """Start a server by a page's flags, at a port that is free."""
    words = shlex.split(walk.here(command), comments=True)
    environment = dict(word.split("=") for word in words if re.match(r"[A-Z_]+=", word))
    program, _, model, *flags = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    for flag in ("--host", "--port"):
        if flag in flags:
            del flags[flags.index(flag) : flags.index(flag) + 2]
    # vLLM's own command asks for a distribution "vllm", which its build for the CPU is not.
    vllms = ("-m", "vllm.entrypoints.openai.api_server", "--model")
    served_by = vllms if program == "vllm" else ("-m", "vllm_mmout.cli", "serve")
    folders = {"/data": walk.folder, "results": walk.folder / "results"}
    flags = [str(folders.get(flag, flag)) for flag in flags]
    if model == "flood":
        from vllm_mmout import embedded_model

        model = embedded_model("water-index")
    with served(model, *flags, environment=environment, command=served_by) as server:
        assert httpx.get(f"{server.url}/v1/models", trust_env=False).status_code in (200, 401)


def run(block, walk, monkeypatch, **names):
    """Run a block of Python in the folder."""
    monkeypatch.chdir(walk.folder)
    text = walk.here(block.text)
    if "async for" in text:
        text = f"async def ask():\n{textwrap.indent(text, '    ')}"
    exec(compile(text, str(block), "exec"), names)  # noqa: S102 - the pages are our own
    return names


@pytest.mark.parametrize("page", ["area-and-date.md", "use.md", "scenes.md", "mosaics.md", "report.md"])
@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_python_with_an_engine(page, walk, llm, monkeypatch):
    """Each block of a page but the one of AsyncLLM, in order."""
    from vllm_mmout import OutputParams

    monkeypatch.setattr("vllm.LLM", lambda *_: llm)
    names = {"llm": llm, "OutputParams": OutputParams, "names": ["a.tif", "nothing.tif"]}
    for block in here("python"):
        if block.page == page and "async for" not in block.text:
            names = run(block, walk, monkeypatch, **names)
    report = ("scene-classes.tif", "scene-polygons.geojson", "scene-areas.csv", "figure.pdf")
    june = ("june-classes.tif", "june-classes.qml", "june-polygons.gpkg", "june-areas.csv", "june-classes.json")
    wanted = {
        "area-and-date.md": [f"report/{name}" for name in (*june, "figure.png", "collection.json")],
        "mosaics.md": ["map.tif", "any.tif", "any.tif.aux.xml", "any.qml", "any.png", "counties.csv"],
        "use.md": ["mask.tif"],
        "scenes.md": ["out/scene.tif", "fields.csv", "masked/scene.tif", "flood.geojson", "flood.gpkg", "mask.tif"],
        "report.md": [f"report/{name}" for name in report],
    }
    assert [file for file in wanted[page] if not (walk.folder / file).is_file()] == []


@pytest.mark.slow
def test_python_with_an_asynchronous_engine(walk, water_index, monkeypatch, capsys):
    """The block prints the tiles, then the file."""
    from quick_engines import quick_engines
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from vllm_mmout import OutputParams

    (block,) = [block for block in here("python") if "async for" in block.text]

    async def ask():
        with quick_engines():
            engine = AsyncLLM.from_engine_args(AsyncEngineArgs(water_index, **ENGINE))
        try:
            await run(block, walk, monkeypatch, engine=engine, OutputParams=OutputParams)["ask"]()
        finally:
            engine.shutdown()

    asyncio.run(ask())
    lines = [line for line in capsys.readouterr().out.splitlines() if "tiles" in line or line.endswith(".tif")]
    assert lines[0].endswith("tiles")
    assert Path(walk.folder, lines[-1]).name == "scene.tif"


def test_python_with_openais_client(walk, water_server, monkeypatch, capsys):
    """What docs/serving.md shows of pictures."""
    walk.server = water_server.url.removeprefix("http://")
    names = {}
    for block in here("python"):
        if block.page == "serving.md":
            names = run(block, walk, monkeypatch, **names)
    printed = capsys.readouterr().out
    assert printed.startswith("256x256\n")
    assert "image_edit.completed" in printed


def test_python_of_the_plugin(walk, monkeypatch, capsys):
    """The answer names the file."""
    (block,) = [block for block in here("python") if block.page == "io-plugins.md"]
    with vllm_starts("0"):
        KEPT.append(run(block, walk, monkeypatch)["llm"])
    assert "path water.tif" in capsys.readouterr().out


def _own_models(walk, monkeypatch):
    """Write the modules and folders of docs/own-models.md; return its other blocks: a check, and processors by name."""
    from safetensors.torch import save_file

    flood, land_cover, weights, check, by_name = [
        block.text for block in here("python") if block.page == "own-models.md"
    ]
    _, flood_of_readme = [block.text for block in here("python") if block.page == "README.md"]
    assert flood_of_readme == flood
    for name, text in (("flood_net", flood), ("land_cover", land_cover)):
        (walk.folder / f"{name}.py").write_text(text)
    for name, config in zip(("flood", "land-cover"), here("json"), strict=True):
        (walk.folder / name).mkdir(exist_ok=True)
        (walk.folder / name / "config.json").write_text(config.text)
    monkeypatch.chdir(walk.folder)
    monkeypatch.syspath_prepend(walk.folder)
    from flood_net import FloodNet

    save_file(FloodNet(json.loads(here("json")[0].text)).state_dict(), "flood/model.safetensors")
    exec(weights, {})  # noqa: S102 - the pages are our own
    return check, by_name


def test_a_model_of_ones_own(walk, monkeypatch):
    """The class and its folder, as docs/own-models.md has them."""
    _own_models(walk, monkeypatch)
    result = engine_here("flood").generate("scene.tif")[0].outputs
    assert result.array.shape == (1, 512, 1280)
    assert set(np.unique(result.array)) <= {0, 1, 255}


def test_a_processor_of_ones_own(walk, monkeypatch):
    """Blended tiles give the classes of plain PyTorch, by the decorator and by name; the check passes."""
    import torch
    from rasterio import open as opened
    from safetensors.torch import load_file

    from vllm_mmout import OutputParams

    check, by_name = _own_models(walk, monkeypatch)
    from land_cover import LandCoverNet

    net = LandCoverNet(json.loads(Path("land-cover/config.json").read_text()))
    net.load_state_dict(load_file("land-cover/model.safetensors"))
    with opened("scene.tif") as scene:
        pixels, observed = scene.read(), (scene.read() != scene.nodata).all(axis=0)
    with torch.inference_mode():
        expected = net(torch.from_numpy(np.where(observed, pixels, 0))[None]).softmax(1)[0].numpy()
    sure = observed & (np.abs(expected.max(0) - 0.3) > 1e-4)
    ids = np.where(expected.max(0) >= 0.3, expected.argmax(0), 255)
    result = engine_here("land-cover").generate("scene.tif", OutputParams(overlap=64))[0].outputs
    assert (result.array[0] != ids)[sure].mean() < 1e-4
    assert (result.array[0][~observed] == 255).all()
    assert result.class_names == ("water", "forest", "crop", "built-up")
    exec(by_name.replace("my/model", "land-cover"), {"LLM": engine_here})  # noqa: S102 - the pages are our own
    names = {}
    exec(check, names)  # noqa: S102 - the pages are our own
    names["test_land_cover"]()


@pytest.mark.slow
def test_a_processor_of_ones_own_is_served(walk, monkeypatch):
    """The commands of docs/own-models.md: the server starts, and its answer is a GeoTIFF of the classes."""
    import rasterio

    _own_models(walk, monkeypatch)
    serve, ask = [
        command
        for block in all_blocks("shell")
        if block.page == "own-models.md" and "serve land-cover" in block.text
        for command, _ in commands(block)
    ]
    assert serve.split() == ["PYTHONPATH=.", "vllm-mmout", "serve", "land-cover"]
    path = os.pathsep.join([str(walk.folder), os.environ.get("PYTHONPATH", "")])
    with served(walk.folder / "land-cover", environment={"PYTHONPATH": path}) as server:
        walk.server = server.url.removeprefix("http://").replace("127.0.0.1", "localhost")
        walk.shell(ask)
    with rasterio.open(walk.folder / "land-cover.tif") as result:
        assert (result.height, result.width, result.nodata) == (512, 1280, 255)
        assert set(np.unique(result.read())) <= {0, 1, 2, 3, 255}
