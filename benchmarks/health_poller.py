"""A process that polls a server's ``/health``: ``python -m benchmarks.health_poller HOST PORT``.

It sends a poll every five milliseconds, whether or not the previous polls were answered: a server that blocks for three
seconds gives six hundred late answers, not one. A poll uses a free connection or opens a new one. Each line of input
names a phase that begins, and is confirmed with a line. At the end of the input, the process prints the latencies of
all phases as JSON, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

from benchmarks.phases import PhasedProcess

PERIOD_S = 0.005
_REQUEST = b"GET /health HTTP/1.1\r\nHost: benchmark\r\n\r\n"


class HealthPoller(PhasedProcess):
    """A context manager for the polling process. A poll belongs to the phase that had begun when it was sent."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(["benchmarks.health_poller", host, str(port)])

    def latencies(self) -> dict[str, list[float]]:
        """End the polling, and return the latencies of the polls in milliseconds, by phase."""
        latencies: dict[str, list[float]] = self.measured()
        return latencies


class Polls:
    """A client that polls a server and keeps the latencies by phase, in milliseconds."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.phase: str | None = None
        self.found: dict[str, list[float]] = {}
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def run(self, ended: asyncio.Event) -> None:
        """Poll until ``ended`` is set."""
        loop = asyncio.get_running_loop()
        due, polls = loop.time(), set()
        while not ended.is_set():
            if self.phase is not None:
                poll = asyncio.create_task(self._poll(self.found.setdefault(self.phase, [])))
                polls.add(poll)
                poll.add_done_callback(polls.discard)
            due = max(due + PERIOD_S, loop.time())
            await asyncio.sleep(due - loop.time())
        await asyncio.gather(*polls)
        for _, writer in self._free:
            writer.close()

    async def _poll(self, latencies: list[float]) -> None:
        started = time.perf_counter()
        while True:
            reused = bool(self._free)
            reader, writer = self._free.pop() if reused else await asyncio.open_connection(self.host, self.port)
            writer.write(_REQUEST)
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                break
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                if not reused:  # the server may have closed a connection that was idle for long
                    raise
        latencies.append(1e3 * (time.perf_counter() - started))
        lines = head.decode().lower().split("\r\n")
        if " 200 " not in lines[0] + " ":
            raise RuntimeError(f"/health answered {lines[0]!r}")
        length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
        await reader.readexactly(length)
        self._free.append((reader, writer))


async def _main(host: str, port: int) -> None:
    polls, ended = Polls(host, port), asyncio.Event()

    async def listen() -> None:
        while line := await asyncio.to_thread(sys.stdin.readline):
            polls.phase = line.strip()
            print(polls.phase, flush=True)
        ended.set()

    await asyncio.gather(listen(), polls.run(ended))
    print(json.dumps(polls.found), flush=True)


def main() -> None:
    """Poll until the input ends, and print the latencies."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.health_poller")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    asyncio.run(_main(options.host, options.port))


if __name__ == "__main__":
    main()
