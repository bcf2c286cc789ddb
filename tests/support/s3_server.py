"""An S3 server, moto's, in a process of its own: ``python s3_server.py`` prints its address, and ends with its input.

Not in the tests' process: vLLM looks through all modules for its kernels, and flask's objects raise where it does.
``GET /-/asked`` tells what was asked since the last time, and ``PUT /-/refuse`` takes which requests get 403.
"""

from __future__ import annotations

import json
import logging
import sys

from moto.server import ThreadedMotoServer


class Faults:
    """Stands before the server."""

    def __init__(self, app):
        self._app = app
        self._asked = []
        self._refused = None
        """Method, and a part of path and query; None: none are."""

    def __call__(self, environ, start_response):
        """Answer one request."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        asked = f"{method} {path}?{environ.get('QUERY_STRING', '')}"
        if path.startswith("/-/"):
            return self._told(environ, path, start_response)
        self._asked.append(asked)
        if self._refused is not None and method == self._refused[0] and self._refused[1] in asked:
            _body(environ)
            start_response("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        return self._app(environ, start_response)

    def _told(self, environ, path, start_response):
        said, self._asked = self._asked, []
        if path == "/-/refuse":
            self._refused = json.loads(_body(environ))
        body = json.dumps(said).encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]


def _body(environ):
    return environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    server._server.app = Faults(server._server.app)
    sys.stdout.write("http://{}:{}\n".format(*server.get_host_and_port()))
    sys.stdout.flush()
    sys.stdin.read()
