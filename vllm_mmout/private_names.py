"""`Contact`: private names of other packages that are used here, and a check that they still exist."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final


@dataclass(frozen=True, slots=True)
class Contact:
    """Private names that this package uses from one module of another package, and the reason for their use."""

    module: str
    names: tuple[str, ...]
    """Private names in ``module`` that this package uses: objects, submodules, or attributes as "Class.attribute".

    An attribute may be defined in the class, or be set on instances by a method."""
    why: str

    def faults(self) -> Iterator[str]:
        """Yield a message for each private name that the installed version of the module does not have.

        Yield a single message if the module cannot be imported.
        """
        try:
            module = importlib.import_module(self.module)
        except ImportError as error:
            yield f"{self.module} cannot be imported: {error} (needed to: {self.why})"
            return
        for name in self.names:
            if not _is_there(module, name):
                yield f"{self.module}.{name} does not exist (needed to: {self.why})"


THIRD_PARTIES: Final = (
    Contact(
        "urllib3.connection",
        ("HTTPConnection._new_conn", "HTTPConnection._dns_host", "HTTPConnection.response_class"),
        "connect to addresses that were looked at before, and give slow answers up",
    ),
    Contact(
        "urllib3.connectionpool",
        ("HTTPConnectionPool._new_conn", "HTTPConnectionPool._get_conn", "HTTPConnectionPool.pool"),
        "close connections that other threads read from",
    ),
    Contact("urllib3", ("PoolManager.pool_classes_by_scheme",), "have pools of ours made"),
    Contact("urllib3.util.connection", ("allowed_gai_family",), "look hosts up as urllib3 does"),
    Contact(
        "tifffile",
        (
            "TIFF.DECOMPRESSORS",
            "TIFF.IMAGE_COMPRESSIONS",
            "TiffPage.decode",
            "TiffPage.dataoffsets",
            "TiffPage.databytecounts",
            "TiffPage.jpegtables",
            "TiffPage.jpegheader",
            "TiffPage.shaped",
        ),
        "decode segments one by one, read by ourselves",
    ),
    Contact("rasterio._err", ("CPLE_BaseError",), "tell GDAL's errors, which rasterio lets through unchanged"),
    Contact(
        "uvicorn.protocols.http.h11_impl",
        ("RequestResponseCycle.receive", "RequestResponseCycle.transport"),
        "end a connection whose client takes nothing",
    ),
    Contact("argparse", ("_SubParsersAction", "ArgumentParser._option_string_actions"), "ask which flags a parser has"),
)
"""Private names that this package uses from packages other than vLLM.

The versions of those packages are restricted by setup.cfg or by vLLM.
"""


def third_party_faults() -> list[str]:
    """Return a message for each private name that this package needs but the installed third-party package lacks.

    The names are listed in `THIRD_PARTIES`. Packages that are not installed are skipped.
    """
    return list(faults(contact for contact in THIRD_PARTIES if find_spec(contact.module.partition(".")[0])))


def faults(contacts: Iterable[Contact]) -> Iterator[str]:
    """Yield a message for each private name in ``contacts`` that the installed version of its package lacks."""
    for contact in contacts:
        yield from contact.faults()


def _is_there(module: object, name: str) -> bool:
    first, _, attribute = name.partition(".")
    owner = getattr(module, first, None)
    if owner is None:
        try:
            importlib.import_module(f"{getattr(module, '__name__', '')}.{first}")
        except ImportError:
            return False
        return True
    return not attribute or hasattr(owner, attribute) or (isinstance(owner, type) and _is_set_in(owner, attribute))


def _is_set_in(owner: type, attribute: str) -> bool:
    """Return whether the class ``owner`` or a base class declares ``attribute``, or assigns it in a method."""
    for base in owner.__mro__[:-1]:
        if attribute in vars(base).get("__annotations__", {}):
            return True
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # classes of extension modules lack source code
            continue
        if re.search(rf"\bself\.{attribute}\b[^=\n]*=[^=]", source):
            return True
    return False
