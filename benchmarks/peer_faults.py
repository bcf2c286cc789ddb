"""The sixteen faults of vLLM's IO Processor plugins with TerraTorch's, fired at that plugin and at ours.

``python -m benchmarks peer_faults`` uses Prithvi tiny with random weights, four classes, tiles of 224 pixels and
bfloat16. The same requests go to ``POST /pooling`` of vLLM's own server with ``terratorch_segmentation``, then of
``vllm-mmout serve`` with ``mmout``. A status of 0 means that no answer came within 20 seconds or that the connection
broke. ``agree`` is the share of observed pixels whose class is that of plain PyTorch, whatever number the file stores
for a class. ``alive`` says whether ``/health`` answered afterwards; if it did not, the server is restarted.

Faults that show only in the code are marked "(read)".
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.health_poller import HealthPoller
from benchmarks.peer_fault_files import LARGE, SIZE, TILE, Cases, make_cases
from benchmarks.peer_fault_side import Side, running
from benchmarks.report import Row, percentile
from benchmarks.served import HOST
from benchmarks.serving_health import Memory

OVERLAP = 64
RIGHT = 0.99
"""Minimum share of correct pixels of a correct answer. In bfloat16, the order of additions changes a few classes."""
MIB = 1 << 20
PACKAGES = ("terratorch",)

Figures = dict[str, float]


def share_right(side: Side, name: str, *others: str, **fields: Any) -> Figures:
    """Request a scene, and return the status and the share of correct pixels."""
    answer = side.ask(name, **fields)
    return {"status": answer.status, "agree": side.agree(answer, name, *others)}


def status(side: Side, data: Any, **fields: Any) -> Figures:
    """Send a faulty request, and return its status."""
    return {"status": side.ask(data, **fields).status}


def large_scene(side: Side) -> Figures:
    """Measure faults 2 to 5: ``/health`` latency, memory growth, bytes from the engine and time of a larger scene."""
    side.ask("scene")  # the first forward chooses kernels
    with HealthPoller(HOST, side.port) as poller, Memory(side.process) as memory:
        poller.begin("warm")
        time.sleep(1)
        memory.begin()
        before, started = side.received, time.perf_counter()
        poller.begin("scene")
        answer = side.ask("large")
        seconds = time.perf_counter() - started
        received = side.received - before
        poller.begin("end")
        polls = poller.latencies()["scene"]
    return {
        "status": answer.status,
        "health_p99_ms": percentile(polls, 99),
        "health_worst_ms": max(polls),
        "growth_MiB": (max(memory.peaks) - memory.idle) / MIB,
        "received_MiB": received / MIB,
        "answer_ms": 1e3 * seconds,
    }


def seams(side: Side) -> Figures:
    """Measure fault 6: how often neighbouring pixels differ at the border of two tiles, and elsewhere."""
    answer = side.ask("scene", overlap=OVERLAP)
    if answer.ids is None:
        return {"status": answer.status}
    ids = answer.ids
    columns, rows = (ids[:, 1:] != ids[:, :-1]).mean(0), (ids[1:] != ids[:-1]).mean(1)
    starts = range(0, SIZE - TILE + 1, TILE if side.peer == "stock" else TILE - OVERLAP)
    middle = [start + (0 if side.peer == "stock" else OVERLAP // 2) - 1 for start in starts if start]
    at_seams = np.concatenate([columns[middle], rows[middle]]).mean()
    return {
        "status": answer.status,
        "differ_at_seams": float(at_seams),
        "differ_elsewhere": float(np.concatenate([np.delete(columns, middle), np.delete(rows, middle)]).mean()),
    }


def class_ids(side: Side) -> Figures:
    """Measure fault 7: the class ids in the file."""
    answer = side.ask("scene")
    ids = {} if answer.ids is None else {f"id{n}": float(class_id) for n, class_id in enumerate(np.unique(answer.ids))}
    return {"status": answer.status, "agree": side.agree(answer, "scene"), **ids}


def nodata(side: Side) -> Figures:
    """Measure fault 8: the shares of the observed pixels and of the gaps that the file marks as nodata."""
    answer, gaps = side.ask("gaps"), side.cases.gaps["gaps"]
    if answer.ids is None:
        return {"status": answer.status}
    hidden = answer.ids == answer.nodata
    nodata = -1.0 if answer.nodata is None else answer.nodata
    figures = {"nodata": nodata, "seen_hidden": float(hidden[~gaps].mean()), "gaps_hidden": float(hidden[gaps].mean())}
    return {"status": answer.status, **figures, "agree": side.agree(answer, "gaps")}


def nan(side: Side) -> Figures:
    """Measure fault 10: the share of correct pixels in the tile that has a NaN pixel."""
    answer = side.ask("nan")
    if answer.ids is None:
        return {"status": answer.status}
    classes, right = side.classes(answer)[:TILE, :TILE], side.cases.right["nan"][:TILE, :TILE]
    observed = ~side.cases.gaps["nan"][:TILE, :TILE]
    return {
        "status": answer.status,
        "agree_in_tile": float((classes == right)[observed].mean()),
        "class_0_in_tile": float((classes == 0).mean()),
        "class_0_is": float((right == 0).mean()),
    }


@contextmanager
def fetchable(cases: Cases) -> Iterator[str]:
    """Serve a scene over HTTP on this machine, and yield its URL."""
    handler = partial(Quiet, directory=cases.outside.parent)
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}/{cases.outside.name}"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def any_address(side: Side) -> Figures:
    """Try fault 14: a URL that only the server's machine can reach."""
    with fetchable(side.cases) as address:
        return status(side, address, data_format="url")


def out_path(side: Side) -> Figures:
    """Try fault 14: the client chooses the folder that the server writes to."""
    folder = side.cases.folder.parent / f"written-{side.peer}"
    folder.mkdir()
    figures = status(side, "scene", out_data_format="path", out_path=str(folder))
    return {**figures, "files_written": len(list(folder.iterdir()))}


def one_name(side: Side) -> Figures:
    """Try fault 15: two concurrent requests with the same id."""
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda name: side.ask(name, {"X-Request-Id": "mine"}), ("scene", "gaps")))
    shares = [side.agree(answer, name) for answer, name in zip(answers, ("scene", "gaps"), strict=True)]
    return {"first": answers[0].status, "second": answers[1].status, "least_agree": min(shares)}


def gone(side: Side) -> Figures:
    """Try fault 15: a client disconnects in the middle of a scene. Then request another scene."""
    content = httpx.Request(
        "POST", side.url, json={"data": {"data": str(side.cases.scenes["large"]), "data_format": "path"}}
    ).read()
    head = (
        f"POST /pooling HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection((HOST, side.port)) as connection:
        connection.sendall(head.encode() + content)
        time.sleep(0.5)
    return share_right(side, "scene")


def itself(side: Side) -> Figures:
    """Try fault 11: a URL of the server itself."""
    started = time.perf_counter()
    figures = status(side, f"{side.url}/health", data_format="url")
    return {**figures, "ms": 1e3 * (time.perf_counter() - started)}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, which is a row of the result."""

    name: str
    fire: Callable[[Side], Figures] | None
    """The function that tries the fault, or None for a fault that shows only in the code."""
    asked: str = ""
    right: Callable[[Figures], bool] | None = None
    """A function that returns whether our figures meet the target."""


def _agrees(figures: Figures) -> bool:
    return figures["status"] == 200 and figures["agree"] >= RIGHT


def _refused(figures: Figures) -> bool:
    return figures["status"] == 400


def _mistake(name: str, data: Any, **fields: Any) -> Fault:
    return Fault(name, lambda side: status(side, data, **fields), "ours 400", _refused)


def _scene(name: str, *scenes: str) -> Fault:
    return Fault(name, lambda side: share_right(side, *scenes), f"ours 200, agree >= {RIGHT:g}", _agrees)


SQUARE = (
    Fault("1 pooling and encode only, one plugin a server (read)", None),
    Fault(f"2-5 a scene of {LARGE} x {LARGE} (one worker thread, no progress: read)", large_scene),
    Fault("6 seams", seams),
    Fault(
        "7 class ids", class_ids, "ours ids 0, 1, 2, 3", lambda f: [f.get(f"id{n}") for n in range(4)] == [0, 1, 2, 3]
    ),
    Fault(
        "8 nodata",
        nodata,
        "ours gaps alone",
        lambda f: (f.get("seen_hidden"), f.get("gaps_hidden")) == (0, 1) and _agrees(f),
    ),
    _scene("9 a scene that is mostly -9999", "mostly", "sunk"),
    Fault("10 one pixel NaN", nan, f"ours agree >= {RIGHT:g}", lambda f: f.get("agree_in_tile", 0) >= RIGHT),
    _mistake("12 missing file", "absent"),
    _mistake("12 not a TIFF", "text"),
    _mistake("12 truncated", "cut"),
    _mistake("12 too few bands", "few"),
    _scene("12 no CRS", "nowhere"),
    _mistake("12 no URL", "http//host", data_format="url"),
    _mistake("12 a URL that nobody answers at", f"http://{HOST}:9/a.tif", data_format="url"),
    Fault("13 too many bands", lambda side: share_right(side, "many"), "ours 400", _refused),
    Fault("14 a path elsewhere", lambda side: status(side, str(side.cases.outside)), "ours 400", _refused),
    Fault("14 an address of the server's machine", any_address, "ours 400", _refused),
    Fault("14 out_path", out_path, "ours 400, no file", lambda f: _refused(f) and f["files_written"] == 0),
    Fault("15 one request id twice", one_name, f"ours 200, agree >= {RIGHT:g}", lambda f: f["least_agree"] >= RIGHT),
    Fault("15 a client goes away (the stock plugin keeps its entry: read)", gone, "ours right", _agrees),
    _mistake("11 file descriptor 5", 5),
)
OBLONG = (_scene("16 tiles of 224 x 448", "oblong"), Fault("11 its own address", itself, "ours 400", _refused))
FLOAT32 = (Fault("11 float32, as its plugin sends it", lambda side: share_right(side, "float32")),)


def run() -> list[Row]:
    """Try all faults at both servers, and return a row for each."""
    with tempfile.TemporaryDirectory(prefix="mmout-faults-") as name:
        cases = make_cases(Path(name))
        stock, ours = (
            {
                **_fired(partial(running, peer, cases.square, cases, "bfloat16"), SQUARE),
                **_fired(partial(running, peer, cases.oblong, cases, "bfloat16"), OBLONG),
            }
            for peer in ("stock", "ours")
        )
        stock |= _fired(partial(running, "stock", cases.square, cases, "float32"), FLOAT32)
    faults = sorted((*SQUARE, *OBLONG, *FLOAT32), key=lambda fault: int(fault.name.split()[0].split("-")[0]))
    return [_row(fault, stock.get(fault.name, {}), ours.get(fault.name, {})) for fault in faults]


def _fired(start: Callable[[], AbstractContextManager[Side]], faults: tuple[Fault, ...]) -> dict[str, Figures]:
    """Try faults at a server, restart it if a fault breaks it, and return the figures by the name of the fault."""
    figures_by_fault: dict[str, Figures] = {}
    waiting = [fault for fault in faults if fault.fire is not None]
    while waiting:
        with start() as side:
            while waiting:
                fault = waiting.pop(0)
                assert fault.fire is not None
                figures = figures_by_fault[fault.name] = fault.fire(side)
                figures["alive"] = float(side.alive())
                print(side.peer, fault.name, figures, flush=True)
                if not figures["alive"]:
                    break
    return figures_by_fault


def _row(fault: Fault, stock: Figures, ours: Figures) -> Row:
    figures = {
        f"{peer}_{name}": value for peer, values in (("stock", stock), ("ours", ours)) for name, value in values.items()
    }
    met = None if fault.right is None else bool(fault.right(ours) and ours["alive"])
    return Row(fault.name, figures, fault.asked, met)
