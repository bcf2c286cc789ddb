"""``vllm-mmout doctor``: checks whether this installation works, and prints how to repair it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os

from vllm_mmout.commands import Subparsers
from vllm_mmout.commands.engine import prepare_environment
from vllm_mmout.engine.hooks.compat import TESTED_RELEASES, is_tested, vllm_version
from vllm_mmout.errors import HookError
from vllm_mmout.private_names import faults, third_party_faults
from vllm_mmout.wing import failures, wings

CODECS = ("deflate", "lzw", "zstd", "jpeg", "webp", "lerc", "packbits", "lzma")
"""Most common GeoTIFF compressions. The doctor command checks that ``imagecodecs`` can decode them."""
TESTED = f"this version is tested with {', '.join(TESTED_RELEASES)}"
GROUPS = ("vllm.general_plugins", "vllm.endpoint_plugins")
"""Entry point groups through which vLLM loads this package's hooks and this package's HTTP routes."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the ``doctor`` command to the program's parser."""
    parser = subparsers.add_parser(
        "doctor", help="check the installation", description="Check engine, hooks and codecs; say what to do."
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Run the checks, and print one line for each. Return exit status 1 if any check failed, else 0."""
    prepare_environment()
    healthy = True
    for check in (_package, _engine, _runner, _hooks, _contacts, _wings, _allowed, _codecs):
        passed, finding = check()
        healthy = healthy and passed
        print(f"{'ok  ' if passed else 'FAIL'}  {finding}")
    return 0 if healthy else 1


def _package() -> tuple[bool, str]:
    groups = [importlib.metadata.entry_points(group=group) for group in GROUPS]
    if all(any(point.value.startswith("vllm_mmout.") for point in points) for points in groups):
        return True, "plugin: registered with vLLM"
    return (
        False,
        "plugin: vLLM does not find it; install the package (pip install vllm-mmout) instead of only importing it",
    )


def _engine() -> tuple[bool, str]:
    try:
        import torch
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        return False, f'engine: {error}; install one: pip install "vllm-mmout[gpu]" or "vllm-mmout[cpu]"'
    device = current_platform.device_name or "cpu"
    untested = "" if is_tested() else f"; untested, {TESTED}"
    return True, f"engine: vLLM {vllm.__version__} for {device}, torch {torch.__version__}{untested}"


def _runner() -> tuple[bool, str]:
    try:
        from vllm import envs
        from vllm.triton_utils import HAS_TRITON
    except ImportError:
        return True, "runner: not checked, as there is no engine"
    from vllm_mmout.engine.hooks.hook_table import hooks
    from vllm_mmout.engine.hooks.install import find_targets, is_native

    requested: bool | None = envs.VLLM_USE_V2_MODEL_RUNNER
    reason = (
        "no Triton"
        if requested is None and not HAS_TRITON
        else "vLLM's choice"
        if requested is None
        else "by the environment"
    )
    version = 2 if (HAS_TRITON if requested is None else requested) else 1
    native = ["a model's state by get_model_state_cls"] if version == 2 else []
    try:
        rows = [row for row in hooks() if row.wrap is not None]
        native += [row.name for row in rows if is_native(row)]
        names = [] if find_targets(hooks())[1] else [row.name for row in rows if row.name not in native]
    except (HookError, ImportError):
        names = []  # the line about the hooks gives the reason
    wrapped = ", ".join(names) or "nothing"
    return (
        True,
        f"runner: Model Runner V{version} ({reason}); native: {', '.join(native) or 'nothing'}; wrapped: {wrapped}",
    )


def _hooks() -> tuple[bool, str]:
    try:
        import vllm  # noqa: F401 - only to see whether it works
    except ImportError:
        return False, "hooks: not checked, as there is no engine"
    from vllm_mmout.engine.hooks.hook_table import hooks, names
    from vllm_mmout.engine.hooks.install import find_targets

    try:
        missing = [*find_targets(hooks())[1], *faults(names())]
    except HookError as error:
        return False, f"hooks: {error}"
    if missing:
        summary = f"vLLM {vllm_version()} lacks {len(missing)} names, and nothing is installed"
        return False, "\n        ".join(
            [f"hooks: {summary}; {TESTED}: install one of these, or a newer vllm_mmout", *missing]
        )
    return True, f"hooks: all {len(hooks())} targets found, and {sum(len(row.names) for row in names())} further names"


def _contacts() -> tuple[bool, str]:
    missing = third_party_faults()
    if missing:
        return False, f"packages: {'; '.join(missing)}; install the versions that vllm-mmout requires"
    return True, "packages: urllib3, tifffile, rasterio and others have all the names that vllm-mmout uses"


def _wings() -> tuple[bool, str]:
    failed = list(failures().values())
    return not failed, "; ".join(failed) or f"wings: {', '.join(wing.name for wing in wings()) or 'none'}"


def _allowed() -> tuple[bool, str]:
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is None or "vllm_mmout" in allowed.split(","):
        return True, "VLLM_PLUGINS: allows the plugin"
    return False, f"VLLM_PLUGINS={allowed!r} leaves the plugin out; add vllm_mmout to it"


def _codecs() -> tuple[bool, str]:
    import imagecodecs

    missing = [name for name in CODECS if not getattr(imagecodecs, name.upper()).available]
    if missing:
        return False, f"codecs: no {', '.join(missing)}; pip install --upgrade imagecodecs"
    return True, f"codecs: imagecodecs {imagecodecs.__version__} reads {', '.join(CODECS)}"
