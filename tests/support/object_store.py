"""An object store of one file, as a process: ``python object_store.py FILE LOG`` prints its port."""

from __future__ import annotations

import http.server
import re
import sys
from pathlib import Path

DATA = Path(sys.argv[1]).read_bytes()
OBJECT = "/bucket/a.tif"


class Bucket(http.server.BaseHTTPRequestHandler):
    """Gives ranges of the object, and writes down what it is asked for."""

    def do_GET(self) -> None:
        with Path(sys.argv[2]).open("a") as log:
            print(self.path, file=log)
        if self.path != OBJECT:
            self.send_error(404)
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(match[1]), min(int(match[2]), len(DATA) - 1)) if match else (0, len(DATA) - 1)
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(DATA[first : last + 1])

    def log_message(self, *_) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
