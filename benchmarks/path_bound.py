"""A scene whose model costs next to nothing, so that the data path is measured: the stock pattern and ours, in turns.

The embedded model answers 8192 x 8192 pixels in six bands of uint16 (deflate), through ``POST /pooling`` of vLLM's own
server with an IO Processor plugin in TerraTorch's pattern (`stock_plugin`), and of ``vllm-mmout serve``. Each has one
API server and one engine, started before the first turn. Each answer, a GeoTIFF in base64, is compared with the
expected result. Then an engine with a trace runs the scene in more than ten thousand tiles, and the cost of the
10,000th tile is compared with that of the 16th.

``PATH_BOUND_SIZE=4096`` takes a smaller scene, ``PATH_BOUND_ROUNDS=1`` fewer rounds. ``SCENE_FOLDER`` sets the folder.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.report import Figure, Row, setting
from benchmarks.scene_child import call
from benchmarks.scene_files import BANDS, Scene, disk_folder, make_scene
from benchmarks.served import EMBEDDED, HOST, served
from benchmarks.stock_plugin import NAME, install
from vllm_mmout import embedded_model

SIZE = int(setting("PATH_BOUND_SIZE", "8192"))
ROUNDS = int(setting("PATH_BOUND_ROUNDS", "3"))
SMALL_TILE = 64
EARLY, LATE, COUNTED = 16, 10_000, 512
ASKED_SPEED, ASKED_TILE = 5.0, 1.05
VLLMS = ("-m", "vllm.entrypoints.openai.api_server", "--model")
UNBOUND = ("--additional-config", '{"mmout": {"output_processor": "none"}}')
PLOTTED = ("Mpx/s",)


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with disk_folder(2 * SIZE**2 * BANDS * 2) as name:
        folder = Path(name)
        scene = make_scene(folder, SIZE, "tiled")
        return [*_speeds(folder, scene), _tiles(folder, scene)]


def _speeds(folder: Path, scene: Scene) -> list[Row]:
    install(folder / "plugin")
    model = embedded_model("water-index")
    sides = {
        "stock": (
            (*VLLMS, model, "--served-model-name", "water-index", "--io-processor-plugin", NAME, *UNBOUND),
            {
                "VLLM_PLUGINS": f"vllm_mmout,{NAME}",
                "PYTHONPATH": os.pathsep.join((str(folder / "plugin"), os.environ.get("PYTHONPATH", ""))),
            },
        ),
        "ours": ((*EMBEDDED, "--io-processor-plugin", "mmout", "--allowed-local-media-path", str(folder)), {}),
    }
    turns: dict[str, list[Turn]] = {side: [] for side in sides}
    with ExitStack() as running:
        servers = {
            side: running.enter_context(served(folder / f"{side}.log", command, environment))
            for side, (command, environment) in sides.items()
        }
        for number in range(1 + ROUNDS):
            for side, (port, process) in servers.items():
                turn = Turn(scene, port, process)
                if number:  # the first scene warms up and is not counted
                    turns[side].append(turn)
    rows = [
        Row(
            f"{side}: a scene of {SIZE} by /pooling",
            {
                "s": Figure.of(turn.wall_s for turn in of_side),
                "Mpx/s": Figure.of(scene.megapixels / turn.wall_s for turn in of_side),
                "processor s": Figure.of(turn.processor_s for turn in of_side),
            },
        )
        for side, of_side in turns.items()
    ]
    pairs = [[turn.wall_s for turn in turns[side]] for side in ("stock", "ours")]
    costs = [[turn.processor_s for turn in turns[side]] for side in ("stock", "ours")]
    figures = {
        "ratio of Mpx/s": Figure.ratio(*pairs, at_least=ASKED_SPEED),
        "ratio of processor time": Figure.ratio(*costs),
    }
    return [*rows, Row("ours to stock", figures)]


class Turn:
    """A scene that a server answers, with its wall clock time and processor time in seconds."""

    def __init__(self, scene: Scene, port: int, process: int) -> None:
        data = {"data": str(scene.path), "data_format": "path", "image_format": "tiff", "out_data_format": "b64_json"}
        before, started = _processor_s(process), time.perf_counter()
        answer = httpx.post(
            f"http://{HOST}:{port}/pooling",
            json={"model": "water-index", "data": data, "softmax": False},
            timeout=1200,
            trust_env=False,
        )
        self.wall_s = time.perf_counter() - started
        self.processor_s = _processor_s(process) - before
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"{answer.status_code}: {answer.text[:500]}")
        result = scene.path.with_name("answer.tif")
        result.write_bytes(base64.b64decode(answer.json()["data"]["data"]))
        scene.check(result)


def _processor_s(process: int) -> float:
    """Return the processor time of a server and its engine so far, in seconds."""
    server = psutil.Process(process)
    times = [family_member.cpu_times() for family_member in (server, *server.children(recursive=True))]
    return sum(times_of_one.user + times_of_one.system for times_of_one in times)


def _tiles(folder: Path, scene: Scene) -> Row:
    """Compare late with early tiles, by medians of ``COUNTED`` tiles in the trace of a scene in each round."""
    file = folder / "trace.json"
    early, late = [], []
    for _ in range(ROUNDS):
        call("traced", folder, scene=str(scene.path), out=str(folder / "out.tif"), tile=SMALL_TILE, trace=str(file))
        costs = tile_costs(json.loads(file.read_text().rstrip().rstrip(",") + "]"))
        last = min(LATE, len(costs) - COUNTED)
        early.append(statistics.median(costs[EARLY : EARLY + COUNTED]))
        late.append(statistics.median(costs[last : last + COUNTED]))
    figures = {
        "tiles": len(costs),
        f"from tile {EARLY} on, ms": Figure.of(1e3 * seconds for seconds in early),
        f"from tile {last} on, ms": Figure.of(1e3 * seconds for seconds in late),
        "ratio": Figure.ratio(late, early, at_most=ASKED_TILE),
    }
    return Row(f"time of a tile of {SMALL_TILE} x {SMALL_TILE}, median of {COUNTED} tiles", figures)


def tile_costs(events: list[dict[str, Any]]) -> list[float]:
    """Return the seconds of work on each tile of a trace, in reading order. A block is split among its tiles."""
    costs: dict[int, float] = {}
    order: dict[int, float] = {}
    for event in events:
        first = event.get("args", {}).get("tile")
        if first is None or event["ph"] != "X":
            continue
        count = event["args"]["tiles"]
        for tile in range(first, first + count):
            if event["name"] == "read":
                order[tile] = event["ts"]
            costs[tile] = costs.get(tile, 0.0) + event["dur"] / 1e6 / count
    return [costs[tile] for tile in sorted(order, key=order.__getitem__)]
