"""List bucket keys that obstore rejects because of an empty, "." or ".." path segment or a control character.

A single such key makes obstore fail for the whole page of the listing, and obstore cannot resume after it.
boto3 lists all keys as they are stored.
"""

from __future__ import annotations

import os

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote.buckets.bucket_address import FileAddress
from vllm_mmout.geo.raster.remote.buckets.stores import is_public


def keys_from_boto3(place: FileAddress, obstore_error: Exception) -> list[str]:
    """Return all keys below a bucket folder, as listed by boto3. Call this if obstore fails to list the folder.

    ``obstore_error`` is the error that obstore raised.

    Raises:
        InputError: the keys cannot be listed. The message contains obstore's own message, which names a rejected key.

    """
    reason = str(obstore_error).partition("\n\n")[0].strip()
    remedy = "copy that object to another name, or name the scenes one by one"
    if place.scheme != "s3":
        raise InputError(f"{place.name} cannot be listed: {reason}; {remedy}")
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise InputError(f"{place.name} cannot be listed: {reason}; pip install boto3, or {remedy}") from error
    config = Config(signature_version=UNSIGNED) if is_public() else None
    # obstore reads these two variables, boto3 does not.
    region, endpoint = os.environ.get("AWS_REGION"), os.environ.get("AWS_ENDPOINT")
    try:
        pages = boto3.client("s3", region_name=region, endpoint_url=endpoint, config=config).get_paginator(
            "list_objects_v2"
        )
        responses = pages.paginate(Bucket=place.bucket, Prefix=place.key)
        return [item["Key"] for response in responses for item in response.get("Contents", ())]
    except (BotoCoreError, ClientError) as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code") or type(error).__name__
        raise InputError(f"{place.name} cannot be listed: {reason}, and boto3 says {code}; {remedy}") from None
