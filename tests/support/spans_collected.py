"""A collector of OpenTelemetry's spans over http, as a fixture of the session."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENVIRONMENT = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "100"}


class Collector:
    """Holds the spans that were sent."""

    def __init__(self):
        self.spans = []
        collector = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self):
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def of_trace(self, trace_id, count):
        """The spans of a trace, when so many have come."""
        deadline = time.monotonic() + 120
        while len(found := [span for span in self.spans if span.trace_id == trace_id]) < count:
            assert time.monotonic() < deadline, f"{len(found)} spans of {count}"
            time.sleep(0.05)
        return found

    def close(self):
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
