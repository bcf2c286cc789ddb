"""OpenTelemetry span of a user's request, which is the parent of the spans of its tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from vllm_mmout.engine.request.output_router import RoutedOutputProcessor
    from vllm_mmout.engine.request.request import Request

NAME: Final = "mmout_request"


AddAttributes: TypeAlias = "Callable[..., None]"
"""Function that adds its keyword arguments to a span as attributes. Each name gets the prefix "mmout."."""


@contextmanager
def request_span(router: RoutedOutputProcessor, request: Request) -> Iterator[AddAttributes]:
    """Open a span for the duration of a user's request, and yield a function that adds attributes to it.

    The span is a child of the caller's, which the request's trace headers name. They are changed to name this span, so
    that it is the parent of vLLM's own spans (``llm_request``). If vLLM does not export traces, no span is opened.
    """
    if not router.tracing_enabled:
        yield _ignore
        return
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from vllm.tracing import SpanKind, extract_trace_context

    span = trace.get_tracer(__name__).start_span(NAME, extract_trace_context(request.trace_headers), SpanKind.SERVER)
    below: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(below, trace.set_span_in_context(span))
    request.trace_headers = below

    def add_attributes(**attributes: str | int) -> None:
        span.set_attributes({f"mmout.{name}": value for name, value in attributes.items()})

    add_attributes(request_id=request.request_id, model=router.binding.model)
    try:
        yield add_attributes
    except Exception as error:
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, str(error))
        raise
    finally:
        span.end()


def _ignore(**attributes: str | int) -> None:
    """Ignore the attributes, because no span is open. Used if vLLM does not export traces."""
