"""An S3 server of the files in a folder that delays each answer.

``python -m benchmarks.bucket_server FOLDER SECONDS`` prints its port, and waits for the given seconds before each
answer, like a bucket in another region.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BUCKET = "bucket"


class Late(BaseHTTPRequestHandler):
    """A handler of ``GET /bucket/NAME``, with byte ranges."""

    protocol_version = "HTTP/1.1"
    folder: Path
    wait_s: float

    def do_GET(self) -> None:
        """Send a file, or the byte range of it that the request names."""
        time.sleep(self.wait_s)
        path = self.folder / Path(self.path).name
        size = path.stat().st_size
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(byte_range[1]), min(int(byte_range[2]), size - 1)) if byte_range else (0, size - 1)
        self.send_response(206 if byte_range else 200)
        if byte_range:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}"')
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        with path.open("rb") as file:
            self.connection.sendfile(file, first, last + 1 - first)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def late_bucket(folder: Path, wait_s: float) -> Iterator[dict[str, str]]:
    """Serve a folder as a bucket, and yield the environment variables that point clients to it."""
    command = [sys.executable, "-m", "benchmarks.bucket_server", str(folder), str(wait_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{process.stdout.readline().strip()}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }
        process.terminate()


if __name__ == "__main__":
    Late.folder, Late.wait_s = Path(sys.argv[1]), float(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Late)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
