"""A request's way in and out: its place among those that are served at once, and what it raises as its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from vllm_mmout.serving.body import discard
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.gone import Held
from vllm_mmout.serving.metrics import count_refusal
from vllm_mmout.serving.service import Service
from vllm_mmout.serving.tokens.service import TokenService

if TYPE_CHECKING:
    from vllm_mmout.serving.store import ResultStore

S = TypeVar("S")

GONE = 499
"""Status of a request whose client went away, as nginx has it; nobody receives it."""


async def answered(
    request: Request,
    find: Callable[[Request], S],
    work: Callable[[S, AsyncExitStack], Awaitable[Response]],
    *,
    placed: bool = True,
) -> Response:
    """Do one request's work, in a place of its own; what it raises is its answer.

    Args:
        request: of a client.
        find: gives what the routes share, `service_of` or `token_service_of`.
        work: reads the request and makes the answer; what must live until that is sent goes onto the stack.
        placed: whether the place is taken before the work begins; else it calls `take_place`.

    """
    held = AsyncExitStack()
    try:
        service = await _admitted(request, find, held) if placed else find(request)
        return Held(await work(service, held), held)
    except ClientDisconnect:
        await held.aclose()
        return Response(status_code=GONE)
    except Exception as error:  # noqa: BLE001 - each becomes the answer to its own request
        await held.aclose()
        shared = request.app.state.mmout
        if isinstance(shared, Service | TokenService):
            count_refusal(shared.observer, error)
        return error_response(error)
    except BaseException:
        await held.aclose()
        raise


async def _admitted(request: Request, find: Callable[[Request], S], held: AsyncExitStack) -> S:
    """Give a request its place among those that are served at once."""
    try:
        service = find(request)
        take_place(request, held)
    except ApiError:
        await discard(request)  # so that a client which is still sending sees the answer
        raise
    return service


def take_place(request: Request, held: AsyncExitStack) -> None:
    """Count a request among those that are served at once, until the stack is closed.

    Raises:
        ApiError: there is no place (429).

    """
    state = request.app.state
    held.enter_context(state.mmout_slots)
    if getattr(state, "enable_server_load_tracking", False):  # what vLLM's /load shows
        state.server_load_metrics += 1
        held.callback(_lighter, state)


def _lighter(state: Any) -> None:
    state.server_load_metrics -= 1


def service_of(request: Request) -> Service:
    """What the routes share that take images and any other input of a forward.

    Raises:
        ApiError: the model has no output processor, or generates tokens (400).

    """
    service = request.app.state.mmout
    if isinstance(service, Service):
        return service
    raise ApiError(400, service.takes if isinstance(service, TokenService) else str(service), param="model")


def token_service_of(request: Request) -> TokenService:
    """What the routes share that have pictures and speech generated.

    Raises:
        ApiError: the model has no output processor, or answers in one forward (400).

    """
    service = request.app.state.mmout
    if isinstance(service, TokenService):
        return service
    raise ApiError(400, service.gives if isinstance(service, Service) else str(service), param="model")


def store_of(request: Request) -> ResultStore:
    """Where the server's results are stored.

    Raises:
        ApiError: its model gives none (404).

    """
    service = request.app.state.mmout
    if isinstance(service, Service | TokenService):
        return service.store
    raise ApiError(404, "there are no results here: the model of this server gives none", param="name")
