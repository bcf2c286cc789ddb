"""Load the exported program of a ``.pt2`` archive onto a device."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import ModelError, type_and_message
from vllm_mmout.wings.archives.contents import Contents, contents_of

if TYPE_CHECKING:
    import torch
    from torch import nn


def network_of(file: Path, device: torch.device, trusted: Collection[str] = ()) -> tuple[Contents, nn.Module]:
    """Load the exported program in an archive onto a device. Return the archive's contents and the program.

    The program is a module with its weights. It takes a flat list of arguments. ``trusted`` names operators that the
    program may call besides the allowed ones. Raise OptionError if the program calls any other operator, ModelError if
    torch cannot load it.
    """
    contents = contents_of(file)
    contents.check_operators(trusted)
    try:
        exported = _exported(contents)
        if device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            exported = move_to_device_pass(exported, device)
        from vllm_mmout.wings.archives.checks import with_checks

        network: nn.Module = with_checks(exported.module(check_guards=False))
    except Exception as error:
        import torch

        raise ModelError(
            f"{file.name} cannot be loaded by torch {torch.__version__}: {type_and_message(error)}; export it again"
            " with this release"
        ) from error
    return contents, network.requires_grad_(requires_grad=False)


def _exported(contents: Contents) -> Any:
    """Load an archive's exported program with torch. torch can read only the files that were checked before."""
    # This does what `torch.export.load` does, except that `load` would unpickle the sample inputs of the export, and
    # would read the zip file with torch's own reader, which might find files that were not checked.
    from torch.export.pt2_archive import _package
    from torch.export.pt2_archive.constants import ARCHIVE_FORMAT_PATH

    class ArchiveReader(_package.PT2ArchiveReader):
        def get_file_names(self) -> list[str]:
            return list(contents.files)

        def read_bytes(self, name: str) -> bytes:
            return super().read_bytes(name) if name == ARCHIVE_FORMAT_PATH else contents.files[name]

    with ArchiveReader(str(contents.file)) as reader:
        programs = _package._load_exported_programs(reader, reader.get_file_names(), None)  # noqa: SLF001 - see above
    return programs[contents.name]
