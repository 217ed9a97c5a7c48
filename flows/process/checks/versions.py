"""Python, the packages that work together, and those that are there besides."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from flows.process.checks.base import Check, CheckResult, Places, bad, good, warning
from ratchet.lazy import EXTRAS, is_installed

_DISTRIBUTION = "ratchet-experiments"
_UNFIT = ("torchvision", "timm")
"""Packages that do not import beside the torch that is used here, and break others with them."""


def python(places: Places) -> Iterator[Check]:
    """Check that Python is new enough."""
    text = f"{'.'.join(map(str, sys.version_info[:3]))}, wanted >=3.11"
    fits = sys.version_info >= (3, 11)
    advice = "" if fits else ": `make setup PYTHON=python3.11`"
    yield Check("python", CheckResult.GOOD if fits else CheckResult.BAD, text + advice)


def versions(places: Places) -> Iterator[Check]:
    """Compare what is installed with the ranges that are known to work together."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    try:
        lines = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        yield warning("versions", "not installed: `make setup`, or `pip install -e .`")
        return
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield bad(requirement.name, f"missing: pip install '{requirement}'")
            continue
        fits = requirement.specifier.contains(found, prereleases=True)
        wanted = f"{found}, wanted {requirement.specifier}"
        advice = "" if fits else f": pip install '{requirement}'"
        verdict = CheckResult.GOOD if fits else CheckResult.BAD
        yield Check(requirement.name, verdict, wanted + advice)


def extras(places: Places) -> Iterator[Check]:
    """Say which optional packages are there, and how to install the others."""
    for extra in dict.fromkeys(EXTRAS.values()):
        packages = [package for package, its in EXTRAS.items() if its == extra]
        missing = [package for package in packages if not is_installed(package)]
        if missing:
            advice = f"without {', '.join(missing)}: pip install '{_DISTRIBUTION}[{extra}]'"
            yield warning(f"[{extra}]", advice)
        else:
            yield good(f"[{extra}]", ", ".join(packages))


def unfit_packages(places: Places) -> Iterator[Check]:
    """Name packages that do not import beside this torch."""
    for name in _UNFIT:
        if is_installed(name):
            yield warning(name, f"does not import beside this torch: `pip uninstall {name}`")
