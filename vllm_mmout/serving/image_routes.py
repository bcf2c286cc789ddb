"""HTTP routes of OpenAI's image API, and helpers that run the requests of all routes of this package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from vllm_mmout.errors import as_exception, raise_interrupt
from vllm_mmout.serving.errors import ApiError, error_response, log_failure
from vllm_mmout.serving.metrics import count_refusal
from vllm_mmout.serving.options import flag
from vllm_mmout.serving.request.fields import EDITS, VARIATIONS
from vllm_mmout.serving.request.request_ids import id_header, request_id
from vllm_mmout.serving.response.ranges import ranged_response
from vllm_mmout.serving.response.responses import ClosingResponse, discard
from vllm_mmout.serving.service import ForwardService, Service

if TYPE_CHECKING:
    from vllm_mmout.serving.request.fields import Fields
    from vllm_mmout.serving.response.result_files import Encoded
    from vllm_mmout.serving.response.store import ResultStore


async def edits(request: Request) -> Response:
    """Answer ``/v1/images/edits``: run the model on the images or rasters of the request."""
    return await _edit(request, EDITS)


async def variations(request: Request) -> Response:
    """Answer ``/v1/images/variations``: run the model on the images or rasters of the request, without a prompt."""
    return await _edit(request, VARIATIONS)


async def generations(request: Request) -> Response:
    """Answer ``/v1/images/generations``: run the model on the text of the request."""
    return await answered(request, Service, lambda service, _: service.generated_images(request))


async def results(request: Request) -> Response:
    """Answer ``/v1/images/results/{name}``: send a stored result."""
    try:
        return await get_result(request, store_of(request))
    except Exception as error:  # noqa: BLE001 - each error is the answer to its own request
        return error_response(error)


async def get_result(request: Request, store: ResultStore) -> Response:
    """Return the response with a stored result, or with the byte range that the request's header ``Range`` names."""
    name = str(request.path_params["name"])
    entry = await run_sync(found_result, store, name)
    return ranged_response(request, entry, name, {"Cache-Control": "private, no-store"})


def found_result(store: ResultStore, name: str) -> Encoded:
    """Open the stored result ``name``. Raise an ApiError (404) if it is missing or expired. The call blocks."""
    entry = store.find(name)
    if entry is None:  # an expired result too: 410 would need a record of the names of removed results
        raise ApiError(
            404,
            f"there is no such result; results can be fetched for {store.ttl:g} seconds, and the oldest ones go when"
            " their folder is full; send the request again",
            param="name",
        )
    return entry


async def _edit(request: Request, fields: Fields) -> Response:
    return await answered(request, ForwardService, lambda service, held: service.edited_images(request, fields, held))


S = TypeVar("S", bound=Service)

GONE = 499
"""Status of a request whose client closed the connection, as in nginx. This status appears only in the log."""


def refused(request: Request, error: Exception) -> Response:
    """Return the error response for an exception that a route raised. FastAPI calls this for each ApiError."""
    answer = error_response(error, request_id(request))
    answer.headers.update(id_header(request))
    return answer


async def answered(
    request: Request,
    kind: type[S],
    work: Callable[[S, AsyncExitStack], Awaitable[Response]],
    *,
    placed: bool = True,
    refuse: Callable[[Request, Exception], Response] = refused,
) -> Response:
    """Answer a request by calling ``work(service, stack)``. An exception becomes an error response.

    ``service`` is the server's `Service`. The stack is closed when the response has been sent. With ``placed`` False
    the work must call `take_place` itself.

    Args:
        request: the HTTP request.
        kind: type of the service that the route needs; a server with another one answers 400.
        work: the work, which gets the service and the stack.
        placed: whether the request takes a place before its work starts.
        refuse: returns the response for an exception, by default in OpenAI's format.

    """
    held = AsyncExitStack()
    try:
        service = await _admitted(request, kind, held) if placed else service_of(request, kind)
        answer = await work(service, held)
        answer.headers.update(id_header(request))
        return ClosingResponse(answer, held.aclose)
    except ClientDisconnect:
        await held.aclose()
        log_failure(request_id(request), GONE, "the client closed its connection")
        return Response(status_code=GONE)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - an author's SystemExit must not end the server
        raise_interrupt(error)
        await held.aclose()
        failure = as_exception(error)
        shared = request.app.state.mmout
        if isinstance(shared, Service):
            count_refusal(shared.observer, failure)
        return refuse(request, failure)
    except BaseException:
        await held.aclose()
        raise


async def _admitted(request: Request, kind: type[S], held: AsyncExitStack) -> S:
    """Return the server's service, and count the request as running until the exit stack ``held`` closes.

    Raise an ApiError with status 400 if the service is not an instance of ``kind``, or with status 429 if too many
    requests are running. The rest of the request's body is discarded before the error is raised.
    """
    try:
        service = service_of(request, kind)
        take_place(request, held)
    except ApiError:
        await discard(request)  # so that a client that is still sending receives the response
        raise
    return service


def take_place(request: Request, held: AsyncExitStack) -> None:
    """Count a request as running until the exit stack ``held`` closes. Raise an ApiError (429) if the server is full.

    A request keeps its place from before its body is read until its response has been sent, because slow bodies and
    results fill memory and disks.
    """
    state = request.app.state
    held.enter_context(state.mmout_slots)
    if getattr(state, "enable_server_load_tracking", False):  # the number that vLLM's /load shows
        state.server_load_metrics += 1
        held.callback(_decrement_load, state)


def _decrement_load(state: Any) -> None:
    state.server_load_metrics -= 1


def service_of(request: Request, kind: type[S]) -> S:
    """Return the server's service. Raise an ApiError (400) if the service is not an instance of ``kind``."""
    service = request.app.state.mmout
    if isinstance(service, kind):
        return service
    raise ApiError(400, service.gives if isinstance(service, Service) else str(service), param="model")


def store_of(request: Request) -> ResultStore:
    """Return the server's store of results. Raise an ApiError (404) if the server does not have one."""
    service = request.app.state.mmout
    if isinstance(service, Service):
        return service.store
    raise ApiError(404, "there are no results here: the model of this server gives none", param="name")


class Slots:
    """Context manager that counts concurrent requests, and rejects requests above a limit with status 429."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0

    def __enter__(self) -> None:
        if self.taken >= self.count:
            raise ApiError(
                429,
                f"{self.count} requests are being served, which is this server's limit ({flag('max_waiting')}); try"
                " again",
                headers={"Retry-After": "5"},
            )
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self.taken -= 1
