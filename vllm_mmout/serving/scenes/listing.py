"""Pages of jobs, as OpenAI's lists have them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, Literal

from starlette.responses import JSONResponse, Response

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.field_types import shown

if TYPE_CHECKING:
    from starlette.requests import Request

    from vllm_mmout.serving.scenes.board import SceneBoard

_USUAL: Final = 20
_MOST: Final = 100
"""Jobs of one page."""


async def listed(request: Request, board: SceneBoard) -> Response:
    """The page that a request asks for, by ``limit``, ``after`` and ``order``.

    Raises:
        ApiError: one of these is wrong (400), or there is no job ``after`` (404).

    """
    limit, order = _limit(request.query_params.get("limit")), _order(request.query_params.get("order"))
    after = request.query_params.get("after")
    page = await asyncio.to_thread(board.page, limit, after, order)
    if page is None:
        raise ApiError(404, f"there is no job {shown(after)}; list from the start, without after", param="after")
    jobs, more = page
    return JSONResponse(
        {
            "object": "list",
            "data": [job.described() for job in jobs],
            "first_id": jobs[0].id if jobs else None,
            "last_id": jobs[-1].id if jobs else None,
            "has_more": more,
        }
    )


def _limit(given: str | None) -> int:
    if given is None:
        return _USUAL
    if not re.fullmatch(r"\d{1,9}", given, re.ASCII) or not 1 <= int(given) <= _MOST:
        raise ApiError(400, f"limit must be 1 to {_MOST}, got {shown(given)}", param="limit")
    return int(given)


def _order(given: str | None) -> Literal["asc", "desc"]:
    if given in (None, "desc"):
        return "desc"
    if given != "asc":
        raise ApiError(400, f"order must be asc or desc, got {shown(given)}", param="order")
    return "asc"
