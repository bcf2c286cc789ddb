"""Find the items of a static STAC catalogue by following its links."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from vllm_mmout.errors import InputError
from vllm_mmout.geo import without_secrets
from vllm_mmout.wings.stac.documents import Document, read_document

_MOST_DOCUMENTS: Final = 20_000
"""Maximum number of JSON documents that one search of a static catalogue reads."""
_DOWN: Final = frozenset({"child", "item"})


def items_below(catalog: str) -> Iterator[Document]:
    """Yield the items that can be reached from a catalogue, collection or item. Each document is read only once.

    Raises:
        InputError: a document cannot be read, or the catalogue is too large.

    """
    waiting, seen = deque([catalog]), {catalog}
    while waiting:
        address = waiting.popleft()
        document = read_document(address)
        if document is None:
            raise InputError(f"{without_secrets(address)} is no JSON, but is linked as a part of {catalog}")
        if document.content.get("type") == "Feature":
            yield document
            continue
        for link in _links(document):
            href = document.resolve(link)
            if href not in seen:
                seen.add(href)
                waiting.append(href)
        if len(seen) > _MOST_DOCUMENTS:
            raise InputError(
                f"{without_secrets(catalog)} has more than {_MOST_DOCUMENTS} documents; search a collection of it, or"
                " a STAC API"
            )


def _links(document: Document) -> Iterator[str]:
    links = document.content.get("links")
    for link in links if isinstance(links, list) else ():
        if isinstance(link, Mapping) and link.get("rel") in _DOWN and isinstance(link.get("href"), str):
            yield link["href"]
