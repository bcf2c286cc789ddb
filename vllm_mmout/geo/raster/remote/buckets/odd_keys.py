"""Keys that obstore does not list: with an empty part, "." or ".." in their path, or a control character.

One such key makes obstore's listing of its whole page fail, with no way to go on. boto3 lists them as they are stored.
"""

from __future__ import annotations

import os

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote.buckets.stores import Place, is_public


def keys_as_stored(place: Place, refusal: Exception) -> list[str]:
    """Return all keys below a folder of a bucket whose listing obstore refused.

    Raises:
        InputError: they cannot be listed; the message has what obstore said, which names a key.

    """
    said = str(refusal).partition("\n\n")[0].strip()
    remedy = "copy that object to another name, or name the scenes one by one"
    if place.scheme != "s3":
        raise InputError(f"{place.name} cannot be listed: {said}; {remedy}")
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise InputError(f"{place.name} cannot be listed: {said}; pip install boto3, or {remedy}") from error
    config = Config(signature_version=UNSIGNED) if is_public() else None
    # What boto3 does not read, and obstore does.
    region, endpoint = os.environ.get("AWS_REGION"), os.environ.get("AWS_ENDPOINT")
    try:
        pages = boto3.client("s3", region_name=region, endpoint_url=endpoint, config=config).get_paginator(
            "list_objects_v2"
        )
        found = pages.paginate(Bucket=place.bucket, Prefix=place.key)
        return [each["Key"] for page in found for each in page.get("Contents", ())]
    except (BotoCoreError, ClientError) as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code") or type(error).__name__
        raise InputError(f"{place.name} cannot be listed: {said}, and boto3 says {code}; {remedy}") from None
