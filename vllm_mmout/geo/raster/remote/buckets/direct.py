"""Check whether the server of a bucket redirects requests."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import timedelta
from typing import cast

from urllib3.exceptions import HTTPError

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import without_secrets
from vllm_mmout.geo.raster.remote.buckets.faults import errors_of
from vllm_mmout.geo.raster.remote.buckets.stores import Place, is_public
from vllm_mmout.geo.raster.remote.connections import Connections
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.geo.raster.remote.fetcher import certificate_fault

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_VALID = timedelta(minutes=5)


def redirect_fault(place: Place) -> str | None:
    """Return a message if the server of a bucket redirects a request for an object, or None.

    obstore follows redirects of what it reads to any address, this machine's included, and has no option
    against it. So the same request is made once without following. Only S3's servers can be chosen by
    AWS_ENDPOINT_URL; those of Google and Azure are trusted.
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
        if (distrusted := certificate_fault(error)) is not None:
            raise InputError(f"{place.name}: its server's certificate {distrusted}") from None
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
    """Return where a request is redirected, or None; a request that fails is repeated as often as the options say."""
    failures = 0
    while True:
        try:
            with closing(connections.request(url, {"Range": "bytes=0-0"})) as response:
                return response.headers.get("Location") if response.status in _REDIRECTS else None
        except HTTPError:
            failures += 1
            if failures > options.retries:
                raise
            time.sleep(options.pause(failures))


def _signed(place: Place) -> str:
    """Return the URL of an object, with a signature for reading it unless the bucket is public."""
    store = place.store
    import obstore
    from obstore.store import S3Store

    if not is_public():
        return obstore.sign(cast("S3Store", store), "GET", place.key, _VALID)
    # The signature is thrown away: any credentials do, and obstore does not search for real ones.
    unsigned = S3Store(place.bucket, config={"access_key_id": "public", "secret_access_key": "public"})
    return obstore.sign(unsigned, "GET", place.key, _VALID).partition("?")[0]
