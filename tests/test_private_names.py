"""What we rely on in other packages, though nobody promises it to us."""

from __future__ import annotations

import importlib.metadata

import pytest

from vllm_mmout.private_names import Contact, third_party_faults


def test_packages_are_as_they_are_relied_on():
    """The first to know of a release that is different; ``vllm-mmout doctor`` says the same."""
    assert third_party_faults() == []


def test_versions_that_are_installed_are_those_that_are_required():
    """Packages whose private names are used have a range of versions, up to one that nobody has seen."""
    requirements = pytest.importorskip("packaging.requirements")
    ranges = {
        requirement.name: requirement.specifier
        for requirement in map(requirements.Requirement, importlib.metadata.requires("vllm-mmout"))
        if requirement.marker is None
    }
    for name in ("rasterio", "tifffile", "urllib3"):
        assert {part.operator for part in ranges[name]} == {">=", "<"}
        assert ranges[name].contains(importlib.metadata.version(name))


@pytest.mark.parametrize(
    ("contact", "says"),
    [
        (("no_such_package", ("name",)), "no_such_package cannot be imported"),
        (("fractions", ("Quotient",)), "fractions.Quotient does not exist (needed to: divide)"),
        (("fractions", ("Fraction.no_such",)), "fractions.Fraction.no_such does not exist"),
    ],
)
def test_what_is_not_there_is_named(contact, says):
    """Module, name and what it is for."""
    module, names = contact
    (fault,) = Contact(module, names, "divide").faults()
    assert says in fault


@pytest.mark.parametrize(
    "contact",
    [
        ("fractions", ("Fraction", "Fraction.numerator")),
        ("threading", ("Thread._target",)),
        ("importlib", ("metadata",)),
    ],
)
def test_names_attributes_of_objects_and_submodules_are_found(contact):
    """Also what an object gets when it is made."""
    assert list(Contact(*contact, "test").faults()) == []
