"""From a vetted archive to a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import ModelError, type_and_message
from vllm_mmout.wings.archives.contents import Contents, contents_of
from vllm_mmout.wings.archives.vetting import vetted

if TYPE_CHECKING:
    import torch
    from torch import nn


def network_of(file: Path, device: torch.device) -> tuple[Contents, nn.Module]:
    """What an archive holds, and its program as a module with its weights, on a device."""
    contents = contents_of(file)
    program = vetted(contents)
    try:
        exported = _exported(contents, program)
        if device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            exported = move_to_device_pass(exported, device)
        network: nn.Module = exported.module(check_guards=False)
    except Exception as error:
        import torch

        raise ModelError(
            f"{file.name} cannot be loaded by torch {torch.__version__}: {type_and_message(error)}; export it again"
            " with this release"
        ) from error
    return contents, network.requires_grad_(requires_grad=False)


def _exported(contents: Contents, program: dict[str, Any]) -> Any:
    """The program of an archive, as torch makes it of what is given instead of what the archive has there."""
    # What `torch.export.load` does, which would unpickle the inputs that the program was exported with.
    from torch.export.pt2_archive import _package

    # Torch reads a zip file in its own way: it is given what was vetted, and not what it may find there.
    instead = {
        f"models/{contents.name}.json": json.dumps(program).encode(),
        f"data/sample_inputs/{contents.name}.pt": b"",
        **{file: json.dumps({"config": payload}).encode() for file, payload in contents.payloads.items()},
    }

    class Reader(_package.PT2ArchiveReader):
        def get_file_names(self) -> list[str]:
            return list(contents.files)

        def read_bytes(self, name: str) -> bytes:
            found = instead.get(name)
            return super().read_bytes(name) if found is None else found

    with Reader(str(contents.file)) as reader:
        programs = _package._load_exported_programs(reader, reader.get_file_names(), None)  # noqa: SLF001 - as said
    return programs[contents.name]
