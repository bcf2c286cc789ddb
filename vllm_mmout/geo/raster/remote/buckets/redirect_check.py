"""Check whether a bucket's server redirects requests, since obstore would follow redirects to any address."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import timedelta
from typing import cast

from urllib3.exceptions import HTTPError

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import without_secrets
from vllm_mmout.geo.raster.remote.buckets.bucket_address import FileAddress
from vllm_mmout.geo.raster.remote.buckets.bucket_errors import errors_of
from vllm_mmout.geo.raster.remote.buckets.stores import is_public, store_of
from vllm_mmout.geo.raster.remote.connections import Connections
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.geo.raster.remote.fetcher import certificate_fault

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_VALID = timedelta(minutes=5)


def redirect_fault(place: FileAddress) -> str | None:
    """Return an error message if the server of a bucket redirects the request for an object. Otherwise return None.

    When obstore reads, it follows redirects to any address, even on the local machine, and has no option to stop
    that. Therefore one request is made here that does not follow redirects. Only S3 is checked, since
    AWS_ENDPOINT_URL can name any server. The servers of Google and Azure are trusted.
    """
    if place.scheme != "s3":
        return None
    options = FetchOptions.from_environment()
    with errors_of(place):
        url = _signed(place)
    connections = Connections(options)
    try:
        target = _redirect(connections, url, options)
    except HTTPError as error:
        if (fault := certificate_fault(error)) is not None:
            raise InputError(f"{place.name}: its server's certificate {fault}") from None
        raise InputError(f"{place.name}: its server cannot be asked: {type(error).__name__}; try again later") from None
    finally:
        connections.close()
    if target is None:
        return None
    return (
        f"the bucket's server redirects to {without_secrets(target)}, and redirects of buckets are not followed; set"
        " AWS_REGION or AWS_ENDPOINT_URL to where the bucket is"
    )


def _redirect(connections: Connections, url: str, options: FetchOptions) -> str | None:
    """Return the address that the server redirects a request to, or None if the server does not redirect it.

    A failed request is repeated up to ``options.retries`` times.
    """
    retries = options.new_retries()
    while True:
        try:
            with closing(connections.request(url, {"Range": "bytes=0-0"})) as response:
                return response.headers.get("Location") if response.status in _REDIRECTS else None
        except HTTPError:
            pause = retries.failed()
            if pause is None:
                raise
            time.sleep(pause)


def _signed(place: FileAddress) -> str:
    """Return a URL for reading an object. It is signed unless the bucket is public."""
    store = store_of(place)
    import obstore
    from obstore.store import S3Store

    if not is_public():
        return obstore.sign(cast("S3Store", store), "GET", place.key, _VALID)
    # The signature is cut off below. With credentials given here, obstore does not search the environment for any.
    unsigned = S3Store(place.bucket, config={"access_key_id": "public", "secret_access_key": "public"})
    return obstore.sign(unsigned, "GET", place.key, _VALID).partition("?")[0]
