"""A cluster of Ray on this machine, each node a raylet of its own with one processor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from unittest import mock

import psutil
import ray
from ray.cluster_utils import Cluster

STORE = 80 << 20
"""Bytes of a node's object store: rows are addresses and records."""


class Nodes:
    """A head that runs nothing, and nodes for engines."""

    def __init__(self, count):
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False},
        )
        self.nodes = [self._cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(count)]

    @property
    def address(self):
        """Of the cluster."""
        return self._cluster.address

    def kill(self):
        """Kill a node with all that it runs. This takes seconds, for which the other nodes' workers are suspended."""
        killed = self.nodes.pop()
        workers = [worker for node in self.nodes for worker in _workers(node)]
        try:
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.suspend()
            self._cluster.remove_node(killed, allow_graceful=False)
        finally:
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.resume()

    def close(self):
        """End all nodes."""
        self._cluster.shutdown()


def _workers(node):
    """The processes that run tasks and actors on a node."""
    (raylet,) = node.all_processes["raylet"]
    workers = []
    for child in psutil.Process(raylet.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "".join(child.cmdline()).startswith("ray::"):
                workers.append(child)
    return workers


@contextmanager
def nodes(count):
    """A cluster of so many nodes beside its head."""
    # The names of its sockets are long, and the folder of the tests is not the shortest.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        mock.patch.dict(os.environ, {"RAY_TMPDIR": folder, "RAY_health_check_failure_threshold": "2"}),
    ):  # a node is known to be dead after some seconds
        made = Nodes(count)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def connected(address=None, **options):
    """This process as a driver, of a cluster or of this machine alone."""
    ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
    try:
        yield
    finally:
        ray.shutdown()


class Command:
    """``vllm-mmout run --ray`` as a process."""

    def __init__(self, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vllm_mmout.cli", "run", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self):
        """Whether it has."""
        return self._process.poll() is not None

    def kill(self):
        """Kill it, with no time to clean up."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def done(self):
        """Wait for its end; exit status, output, errors."""
        out, errors = self._process.communicate(timeout=1800)
        return self._process.returncode, out, errors


def report_of(out):
    """The lines of the report of a run."""
    return [json.loads(line) for line in (out / "report.jsonl").read_text().splitlines()]


def records_of(out):
    """The bytes of all records, by name."""
    return {path.name: path.read_bytes() for path in (out / ".vllm-mmout").glob("*.json")}
