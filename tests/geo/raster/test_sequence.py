"""Windows of a file are decoded by threads, which stop where they are far ahead of the caller."""

from __future__ import annotations

import threading
import time

import numpy as np
from gdal_files import RNG, UTM, tiff

from vllm_mmout.geo import Window, open_raster
from vllm_mmout.geo.raster import sequence

ARRAY = RNG.integers(0, 4000, (2, 1024, 256)).astype("uint16")


def test_a_thread_that_is_about_to_stop_is_not_counted_on(tmp_path, monkeypatch):
    """The caller goes on while it is stopping, and has the next window decoded by another thread."""
    take = sequence._Reader._take_task

    def stops_slowly(reader):
        work = take(reader)
        if work is None:
            seen, until = reader._current, time.monotonic() + 0.2
            while reader._current == seen and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(0.01)  # meanwhile the caller has looked for threads, and waits
        return work

    monkeypatch.setattr(sequence._Reader, "_take_task", stops_slowly)
    monkeypatch.setattr(sequence, "THREADS", 2)
    monkeypatch.setattr(sequence, "READ_AHEAD_BYTES", 0)  # no window is decoded before it is asked for
    windows = [Window(row, 0, 32, 256) for row in range(0, 1024, 32)]
    read = []

    path = tiff(tmp_path / "a.tif", ARRAY, **UTM, blockysize=32, compress="deflate")

    def reads():
        with open_raster(path) as raster:
            read.extend(part.array for part in raster.windows(windows))

    reading = threading.Thread(target=reads, daemon=True)
    reading.start()
    reading.join(60)
    assert not reading.is_alive(), "the caller waits for a thread that has stopped"
    np.testing.assert_array_equal(np.concatenate(read, axis=1), ARRAY)
