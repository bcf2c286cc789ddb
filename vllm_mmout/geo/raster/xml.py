"""Parse untrusted XML as a stream. The size is limited, and entity declarations are refused."""

from __future__ import annotations

from collections.abc import Callable
from xml.parsers import expat

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import SharedFile

_LARGEST = 2**26
_PIECE = 2**16


def parse_xml(
    file: SharedFile,
    begin: Callable[[str, dict[str, str]], None],
    end: Callable[[str], None],
    characters: Callable[[str], None],
    make_error: Callable[[str], InputError],
) -> None:
    """Parse an XML file. Call ``begin`` and ``end`` for each element, and ``characters`` for text.

    Args:
        file: the file.
        begin: called with the name and attributes of each element that starts.
        end: called with the name of each element that ends.
        characters: called with text, which may come in pieces.
        make_error: returns the error with a given message, for a file that is too large, damaged, or has a document
            type, which could declare entities.

    """
    if file.size > _LARGEST:
        raise make_error(f"has {file.size >> 20} MiB, at most {_LARGEST >> 20} are read")

    def refuse(*_: object) -> None:
        raise make_error("has a document type, which is refused as it may declare entities")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    try:
        for at in range(0, file.size, _PIECE):
            parser.Parse(file.read_at(at, _PIECE), False)
        parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError) as error:  # LookupError and ValueError: unknown encodings
        raise make_error(f"is damaged XML ({error})") from error
