"""StructuredOutput: fields with types, as a pydantic model."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from vllm_mmout.errors import SaveError
from vllm_mmout.raster.atomic import whole_file

try:
    from pydantic import BaseModel, PrivateAttr
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'StructuredOutput needs pydantic, which comes with the engine; pip install "vllm-mmout[cpu]"', name="pydantic"
    ) from error


class StructuredOutput(BaseModel):
    """Base of results that are data rather than media: subclass it and declare the fields."""

    formats: ClassVar[dict[str, str]] = {".json": "json"}

    _path: str | None = PrivateAttr(default=None)

    @property
    def path(self) -> str | None:
        """The file that holds the result, where the request asked for one."""
        return self._path

    @path.setter
    def path(self, path: str | None) -> None:
        self._path = path

    def to_bytes(self, format: str | None = None) -> bytes:  # noqa: A002 - the same word as in the other outputs
        """The result as JSON.

        Raises:
            SaveError: another format is asked for.

        """
        if format not in (None, "json", ".json"):
            raise SaveError(f"{type(self).__name__} cannot be written as {format!r} (known: json)")
        return self.model_dump_json(indent=2).encode()

    def save(self, path: str | Path) -> Path:
        """Write the result to a .json file.

        Raises:
            SaveError: the suffix is another one, or the file cannot be written.

        """
        target = Path(path)
        if target.suffix.lower() not in self.formats:
            suffix = f"suffix {target.suffix!r}" if target.suffix else "no suffix"
            raise SaveError(f"cannot save {target}: {suffix} tells the format (known: {', '.join(self.formats)})")
        with whole_file(target) as part:
            part.write_bytes(self.to_bytes())
        return target
