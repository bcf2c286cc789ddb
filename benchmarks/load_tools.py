"""Load tools that do not know this package, against ``vllm-mmout serve``: `vllm bench serve` and GuideLLM, unmodified.

Both post to ``/pooling`` of a server that runs the embedded model with the plugin ``mmout``. Requests are rasters of
512 x 512 pixels in six bands of uint16, in base64, and ``LOAD_AT_ONCE`` of them run at once; answers are GeoTIFFs. The
tools take turns, and requests per second and latencies are the tools' own figures. Before the tools start, each pixel
of the answers is checked. ``vllm bench serve`` runs as the module behind that command, because the command fails if
vLLM has no metadata (the wheel for CPUs). GuideLLM runs from ``.venv-guidellm`` (``make setup-bench``), if it is there.

``LOAD_ROUNDS``, ``LOAD_REQUESTS`` and ``LOAD_AT_ONCE`` change the run.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import Scene, make_image
from benchmarks.served import EMBEDDED, HOST, served

ROUNDS = int(setting("LOAD_ROUNDS", "5"))
REQUESTS = int(setting("LOAD_REQUESTS", "64"))
AT_ONCE = int(setting("LOAD_AT_ONCE", "8"))
IMAGES = 16
MODEL = "water-index"
GUIDELLM = Path(__file__).parents[1] / ".venv-guidellm" / "bin" / "guidellm"
VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
PLOTTED = ("requests/s", "p99 ms")
TIMEOUT_S = 600.0

Measured = dict[str, float]


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    tools: dict[str, Callable[[Path, int], Measured]] = {"vllm bench serve": _vllm_bench}
    if GUIDELLM.exists():
        tools[_call([str(GUIDELLM), "--version"]).strip().replace("guidellm version:", "GuideLLM")] = _guidellm
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = [make_image(folder, number) for number in range(IMAGES)]
        lines = [json.dumps({"prompt": {"data": _data(image)}}) for image in images]
        (folder / "requests.jsonl").write_text("\n".join(lines[place % IMAGES] for place in range(REQUESTS)))
        with served(folder / "server.log", (*EMBEDDED, "--io-processor-plugin", "mmout")) as (port, _):
            for image in images:
                _check(image, port, folder / "answer.tif")
            rounds = [{tool: measure(folder, port) for tool, measure in tools.items()} for _ in range(ROUNDS)]
    rows = [_row(tool, [round_[tool] for round_ in rounds]) for tool in tools]
    if not GUIDELLM.exists():
        rows.append(Row("GuideLLM: not measured, it is not in .venv-guidellm (make setup-bench)", {}))
    return rows


def _data(image: Scene) -> dict[str, str]:
    text = base64.b64encode(image.path.read_bytes()).decode()
    return {"data": text, "data_format": "b64_json", "image_format": "tiff"}


def _check(image: Scene, port: int, target: Path) -> None:
    """Send one request, and check each pixel of the answer."""
    body = {"model": MODEL, "data": _data(image)}
    answer = httpx.post(f"http://{HOST}:{port}/pooling", json=body, timeout=TIMEOUT_S, trust_env=False)
    target.write_bytes(base64.b64decode(answer.raise_for_status().json()["data"]["data"]))
    image.check(target)


def _vllm_bench(folder: Path, port: int) -> Measured:
    """Run ``vllm bench serve``, and return the figures from its file of results."""
    flags: dict[str, Any] = {
        "backend": "vllm-pooling",
        "base-url": f"http://{HOST}:{port}",
        "endpoint": "/pooling",
        "model": MODEL,
        "dataset-name": "custom",
        "dataset-path": folder / "requests.jsonl",
        "num-prompts": REQUESTS,
        "max-concurrency": AT_ONCE,
        "percentile-metrics": "e2el",
        "metric-percentiles": "50,95,99",
        "result-dir": folder,
        "result-filename": "vllm.json",
    }
    written = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    _call([sys.executable, "-c", VLLM_BENCH, *written, "--skip-tokenizer-init", "--save-result"])
    results = json.loads((folder / "vllm.json").read_text())
    return {
        "requests/s": results["request_throughput"],
        **{f"p{percent} ms": results[f"p{percent}_e2el_ms"] for percent in (50, 95, 99)},
        "failed": REQUESTS - results["completed"],
    }


def _guidellm(folder: Path, port: int) -> Measured:
    """Run GuideLLM, and return the figures from its report."""
    options = {
        "backend": f"kind=openai_http,target=http://{HOST}:{port},model={MODEL},request_format=/pooling",
        "profile": f"kind=concurrent,streams={AT_ONCE}",
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "data": f"kind=json_file,path={folder / 'requests.jsonl'}",
        "data-column-mapper": "kind=pooling_column_mapper",
        "output": f"kind=json,path={folder / 'guidellm.json'}",
    }
    written = [word for option, value in options.items() for word in (f"--{option}", value)]
    _call([str(GUIDELLM), "run", *written, "--disable-console"], {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"})
    metrics = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    latencies = metrics["request_latency"]["successful"]["percentiles"]
    return {
        "requests/s": metrics["requests_per_second"]["successful"]["mean"],
        **{f"p{percent} ms": 1e3 * latencies[f"p{percent}"] for percent in (50, 95, 99)},
        "failed": REQUESTS - metrics["request_totals"]["successful"],
    }


def _call(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its stdout."""
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def _row(tool: str, rounds: list[Measured]) -> Row:
    figures: dict[str, float | Figure] = {name: Figure.of(round_[name] for round_ in rounds) for name in rounds[0]}
    figures["failed"] = Figure(max(round_["failed"] for round_ in rounds), rounds=len(rounds), at_most=0)
    return Row(f"{tool}, {REQUESTS} requests of 512 x 512, {AT_ONCE} at once", figures)
