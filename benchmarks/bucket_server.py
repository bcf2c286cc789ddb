"""An S3 server of the files in a folder that answers late: ``python -m benchmarks.bucket_server FOLDER SECONDS``.

It prints its port. Each request waits so long before it is answered, as one to a bucket in another place does.
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
    """Answers for parts of ``/bucket/NAME``."""

    protocol_version = "HTTP/1.1"
    folder: Path
    wait_s: float

    def do_GET(self) -> None:
        """Send a part, or all, of a file."""
        time.sleep(self.wait_s)
        path = self.folder / Path(self.path).name
        size = path.stat().st_size
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(found[1]), min(int(found[2]), size - 1)) if found else (0, size - 1)
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}"')
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        with path.open("rb") as file:
            self.connection.sendfile(file, first, last + 1 - first)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def late_bucket(folder: Path, wait_s: float) -> Iterator[dict[str, str]]:
    """Serve a folder as a bucket; gives the environment through which it is found."""
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
