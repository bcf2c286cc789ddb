"""The fields of structured results, as JSON and as a table."""

from __future__ import annotations

import csv
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO

    from vllm_mmout.outputs.areas import AreasOutput
    from vllm_mmout.outputs.formats import Format
    from vllm_mmout.outputs.structured import StructuredOutput


def write_json(output: StructuredOutput, file: BinaryIO, _form: Format) -> None:
    """Write all fields."""
    file.write(output.model_dump_json(indent=2).encode())


def write_areas(output: AreasOutput, file: BinaryIO, _form: Format) -> None:
    """Write a row for each class, after one of names."""
    from vllm_mmout.outputs.areas import ClassArea  # with pydantic

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ClassArea.model_fields)
    writer.writerows(one.model_dump().values() for one in output.classes)
    file.write(text.getvalue().encode())
