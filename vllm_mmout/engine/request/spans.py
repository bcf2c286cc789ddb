"""OpenTelemetry span of a user's request, which is the parent of the spans of its tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm_mmout.engine.request.output_router import RoutedOutputProcessor

NAME: Final = "mmout_request"


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """OpenTelemetry span of a user's request. Its methods do nothing if vLLM does not export traces."""

    headers: Mapping[str, str] | None
    """Trace headers to pass to vLLM, so that this span is the parent of vLLM's own spans (``llm_request``)."""
    _span: Any = None

    def add_attributes(self, **attributes: str | int) -> None:
        """Add attributes to the span. Each name gets the prefix "mmout."."""
        if self._span is not None:
            self._span.set_attributes({f"mmout.{name}": value for name, value in attributes.items()})

    def failed(self, error: BaseException) -> None:
        """Record the error of a failed request in the span."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.record_exception(error)
            self._span.set_status(StatusCode.ERROR, str(error))


@contextmanager
def request_span(
    router: RoutedOutputProcessor, request_id: str, headers: Mapping[str, str] | None
) -> Iterator[RequestSpan]:
    """Open a span for the duration of a user's request, if vLLM exports traces.

    Args:
        router: the engine's output processor.
        request_id: name of the request.
        headers: ``traceparent`` and ``tracestate`` of the caller, whose span becomes the parent.

    """
    if not router.tracing_enabled:
        yield RequestSpan(headers)
        return
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from vllm.tracing import SpanKind, extract_trace_context

    span = trace.get_tracer(__name__).start_span(NAME, extract_trace_context(headers), SpanKind.SERVER)
    below: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(below, trace.set_span_in_context(span))
    made = RequestSpan(below, span)
    made.add_attributes(request_id=request_id, model=router.binding.model)
    try:
        yield made
    except Exception as error:
        made.failed(error)
        raise
    finally:
        span.end()
