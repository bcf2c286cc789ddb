"""Define the flags that make ``vllm-mmout run`` use a Ray cluster, and start runs on the cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from vllm_mmout.errors import OptionError
from vllm_mmout.geo import is_folder, without_secrets
from vllm_mmout.models.inputs.catalogued import expanded
from vllm_mmout.wings.ray.cluster_token import use_token

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams

_FLAGS: Final = ("ray", "ray_workers", "ray_cpus", "ray_gpus", "ray_split")
_HERE: Final = "here"
_READERS: Final = 16
"""Number of threads that read the inputs, to check them before a run on a cluster."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for runs on a cluster to the parser of ``vllm-mmout run``."""
    group = parser.add_argument_group(
        "on a cluster",
        "Run the scenes on the nodes of a cluster of Ray. If a run is interrupted, start it again to continue."
        ' Needs the extra: pip install "vllm-mmout[ray]".',
    )
    group.add_argument(
        "--ray",
        nargs="?",
        const=_HERE,
        metavar="ADDRESS",
        help="address of the cluster; by default RAY_ADDRESS, or this machine alone",
    )
    group.add_argument("--ray-workers", type=int, metavar="N", help="number of engines; by default as many as fit")
    group.add_argument(
        "--ray-cpus", type=float, metavar="N", help="processors of an engine; by default all of a node, or 1 with a GPU"
    )
    group.add_argument("--ray-gpus", type=float, metavar="N", help="GPUs of an engine; by default 1 if a node has any")
    group.add_argument(
        "--ray-split",
        type=int,
        metavar="PIXELS",
        help="cut scenes wider or higher than this into windows of about this side, and join the results",
    )


def asked(options: argparse.Namespace) -> list[str]:
    """Return the ``--ray*`` flags that the user has set, such as "--ray-split"."""
    return [f"--{name.replace('_', '-')}" for name in _FLAGS if getattr(options, name) is not None]


def run(options: argparse.Namespace, params: OutputParams) -> int:
    """Run the model on the input scenes, on a Ray cluster. Return the exit status of ``vllm-mmout run``."""
    if options.ray is None:
        raise OptionError(f"{', '.join(asked(options))} is for a run on a cluster; add --ray")
    if params.mosaic is not None and options.ray_split is not None:
        raise OptionError("--ray-split does not work with --mosaic, whose scenes run as a whole; leave one of them out")
    for flag, is_set in (
        ("--each-day", params.each_day),
        ("--mmout-trace", options.mmout_trace is not None),
        ("--figure", options.figure is not None),
    ):
        if is_set:
            raise OptionError(f"{flag} works only in one process; leave out {flag} or --ray")
    if options.output_format is not None:
        raise OptionError(
            "--output-format does not work on a cluster, which writes default formats; leave it or --ray out"
        )
    if options.ray_split is not None and options.ray_split < 1:
        raise OptionError(f"--ray-split must be 1 or more pixels, got {options.ray_split}")
    if options.ray_split is not None and params.stac_item:
        raise OptionError(
            "--stac-item does not work with --ray-split, which joins results; leave one of them out, or run"
            " vllm-mmout stac on the folder of the results"
        )
    _check_inputs(options.inputs)
    address = None if options.ray == _HERE else options.ray
    try:
        if named := address or os.environ.get("RAY_ADDRESS"):
            use_token(named)
        import obstore  # noqa: F401 - to check that it can be imported
        import ray
        import ray.data  # noqa: F401
    except ImportError as error:
        raise OptionError(f'--ray needs Ray Data ({error}); pip install "vllm-mmout[ray]"') from error
    from vllm_mmout.wings.ray.cluster import Cluster
    from vllm_mmout.wings.ray.cluster_run import ClusterRun
    from vllm_mmout.wings.ray.mosaics import MosaicOnCluster

    places = {"workers": options.ray_workers, "num_cpus": options.ray_cpus, "num_gpus": options.ray_gpus}
    cluster = Cluster(address, **places)
    kind = ClusterRun if params.mosaic is None else MosaicOnCluster
    return kind(options, params, cluster).status()


def _check_inputs(inputs: Sequence[str]) -> None:
    """Raise OptionError if an input is a list of scenes, such as a STAC item collection.

    A run on a cluster needs exactly one scene per input.
    """
    with ThreadPoolExecutor(_READERS) as pool:  # inputs may be addresses of documents
        for input_, records in zip(inputs, pool.map(_records, inputs), strict=True):
            if records is not None:
                raise OptionError(
                    f"{without_secrets(input_)} is a list of {records} items, and --ray takes one scene for each INPUT;"
                    " save each item as a file of its own and give these, or leave out --ray"
                )


def _records(input_: str) -> int | None:
    """Return the number of records in a list of scenes, such as a STAC item collection. Return None for one scene."""
    if is_folder(input_):
        return None
    found = list(expanded(input_))
    return None if len(found) == 1 and found[0] is input_ else len(found)
