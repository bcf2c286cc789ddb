"""What can be registered as an output processor, and what it is then called."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import RegistrationError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.registry.registration import default_name, import_processor, make_registration


class Mask(OutputProcessor):
    pass


class Named(OutputProcessor):
    name = "flood-mask"


class Heir(Named):
    pass


class Container:
    class Inner(OutputProcessor):
        """A processor whose class stands in another one."""


class NoProcessor:
    pass


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        (Mask, "Mask"),
        (Named, "flood-mask"),
        (Heir, "Heir"),
        ("not.imported:Mask", "Mask"),
        ("not.imported:Outer.Inner", "Inner"),
    ],
)
def test_default_name(processor, name):
    """A processor is called by the name its class defines, else by its class; an inherited name does not count."""
    assert default_name(processor) == name
    assert make_registration(processor, None, "here").name == name


def test_given_name_wins():
    """A name given on registration wins over the class' own."""
    assert make_registration(Named, "other", "here").name == "other"


def test_path_of_a_nested_class_is_imported():
    """A path may name a class inside a class."""
    assert import_processor(f"{__name__}:Container.Inner") is Container.Inner


def test_class_and_path_of_it_are_the_same_target():
    """A class and the path that leads to it count as one, two classes of one path do not."""
    by_class, by_path = make_registration(Mask, None, "a"), make_registration(f"{__name__}:Mask", None, "b")
    assert by_class.same_target(by_path)
    assert by_path.same_target(by_class)
    assert by_path.load() is by_class.load() is Mask
    twin = type("Mask", (OutputProcessor,), {"__module__": __name__})
    assert not by_class.same_target(make_registration(twin, None, "c"))


@pytest.mark.parametrize("name", ["", "none", "a b", "a:b", "a/b", 3])
def test_unusable_name(name):
    """A name that cannot be written in a request is refused, and so is the one that means no processor."""
    with pytest.raises(RegistrationError, match=r"cannot be the name of an output processor; use letters.*\"none\""):
        make_registration(Mask, name, "here")


@pytest.mark.parametrize("processor", [OutputProcessor, NoProcessor, Mask(), 5, None])
def test_not_a_processor_class(processor):
    """Anything but a subclass is refused, the base class too, as it decodes nothing."""
    with pytest.raises(RegistrationError, match=r"must be a subclass of vllm_mmout\.OutputProcessor or its path, got "):
        make_registration(processor, None, "here")


@pytest.mark.parametrize(
    "path", ["mask", "pkg.Mask", "pkg:", ":Mask", "pkg:Mask:x", "pkg.:Mask", "1a:Mask", "a b:C", ""]
)
def test_malformed_path(path):
    """Text that is no path is refused on registration, with the form that is meant."""
    with pytest.raises(RegistrationError, match=r'is not a path of an output processor; write "package\.module:Class"'):
        make_registration(path, None, "here")


def test_path_of_a_missing_module():
    """A module that is not there is named together with Python's own reason, which stays the cause."""
    with pytest.raises(
        RegistrationError, match=r"'no_such_module_x:Mask': ModuleNotFoundError: No module named 'no_such_module_x'"
    ) as caught:
        import_processor("no_such_module_x:Mask")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_path_of_a_missing_class():
    """A class that its module does not have is named."""
    with pytest.raises(RegistrationError, match=rf"module '{__name__}' has no 'Musk'; correct the path"):
        import_processor(f"{__name__}:Musk")


def test_path_of_another_class():
    """A path that leads to something else is refused and says to what."""
    with pytest.raises(RegistrationError, match=r"NoProcessor' must be a subclass of .*, got <class .*NoProcessor'>"):
        import_processor(f"{__name__}:NoProcessor")


def test_error_inside_a_module_is_not_hidden(tmp_path, monkeypatch):
    """What a processor's module itself raises on import comes through as it is."""
    (tmp_path / "broken_processor_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        import_processor("broken_processor_module:Mask")
