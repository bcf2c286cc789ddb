"""Clients of ``/v1/scenes`` of running servers, and a scene that takes these a while."""

from __future__ import annotations

import ssl
import time

import httpx
import numpy as np
from scenes_for_tests import classes, pixels, write

DEADLINE = 600
"""Seconds that no step of these tests takes, on whatever machine."""
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing is encrypted here, and reading all certificates of the machine takes longer than a request."""
UNFINISHED = ("queued", "in_progress")
PALETTE = ((0xD9, 0xCF, 0xB4, 255), (0x00, 0x72, 0xB2, 255))
"""The colours of the embedded model's classes, as its config.json has them, opaque."""


def client(**more):
    """A client with no proxy, and a connection for each server that it asks."""
    return httpx.Client(trust_env=False, verify=_NO_CERTIFICATES, timeout=DEADLINE, **more)


def ask(server, method, path, **more):
    """One request by a connection of its own; the whole address of the server's may be given too."""
    with client(base_url=server.url) as asking:
        return asking.request(method, path, **more)


def made(answer):
    """The job of an answer, or anything else that a server says in JSON."""
    assert answer.status_code == 200, answer.text
    return answer.json()


def raster(content):
    """The pixels of a GeoTIFF, [bands, height, width]."""
    import rasterio

    with rasterio.MemoryFile(content) as file, file.open() as opened:
        return opened.read()


def wait_for(found, what, within_s=DEADLINE):
    """Wait until a function gives something, and give that."""
    deadline = time.monotonic() + within_s
    while not (value := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)
    return value


def listed(asking):
    """All jobs that a client's server knows, page by page, by id."""
    jobs, after = {}, {}
    while True:
        page = made(asking.get("/v1/scenes", params={"limit": 100, **after}))
        jobs |= {job["id"]: job for job in page["data"]}
        if not page["has_more"]:
            return jobs
        after = {"after": page["last_id"]}


def ended(asking, ids):
    """The jobs with these ids, when all of them are finished."""

    def finished():
        known = listed(asking)
        return all(known[one]["status"] not in UNFINISHED for one in ids) and known

    known = wait_for(finished, "jobs did not end")
    return {one: known[one] for one in ids}


def long_scene(path, side=2000):
    """Write a scene that takes a while in tiles of 32, 3969 of them by default; gives the file's bytes and its classes.

    Args:
        path: where the file is written.
        side: its pixels in a row and in a column, a multiple of 50.

    """
    from rasterio import Affine

    array = np.tile(pixels(3, 50, 50), (1, side // 50, side // 50))
    write(
        path,
        array,
        tiled=True,
        compress="deflate",
        crs="EPSG:32614",
        transform=Affine(10, 0, 500_000, 0, -10, 3_000_000),
    )
    return path.read_bytes(), classes(array)
