"""Find the entry points of installed IO Processor plugins."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from vllm_mmout.errors import RegistrationError
from vllm_mmout.messages import close_match
from vllm_mmout.wings.io_plugins.own.mmout_plugin import GROUP

_OURS = __name__.partition(".")[0]


def installed_plugins() -> dict[str, list[EntryPoint]]:
    """Return the entry points of installed plugins by name, without this package's own plugin ``mmout``."""
    points_by_name: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if point.module.partition(".")[0] != _OURS:
            rivals = points_by_name.setdefault(point.name, [])
            if all(point.value != other.value for other in rivals):
                rivals.append(point)
    return points_by_name


def find_plugin(name: str) -> EntryPoint:
    """Return a plugin's entry point. Raise RegistrationError if no plugin or several plugins have the name.

    The plugin is not imported.
    """
    installed = installed_plugins()
    rivals = installed.get(name, [])
    if not rivals:
        names = ", ".join(installed) or "none"
        raise RegistrationError(
            f"no IO Processor plugin {name!r} is installed{close_match(name, installed)} (installed: {names});"
            " install its package, or correct the name"
        )
    if len(rivals) > 1:
        raise RegistrationError(
            f"several IO Processor plugins are called {name!r}: {', '.join(map(origin_of, rivals))}; uninstall a"
            " package"
        )
    return rivals[0]


def origin_of(point: EntryPoint) -> str:
    """Describe where an entry point comes from, as "pkg.mod:function of package NAME"."""
    return f"{point.value} of package {point.dist.name if point.dist else '(unknown)'}"
