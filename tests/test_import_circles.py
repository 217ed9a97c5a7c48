"""Modules have no circular imports, which prevent testing or replacing one at a time."""

from __future__ import annotations

import grimp
import networkx

PACKAGES = ("ratchet", "trainers", "tasks", "flows", "deployments")


def _circles(*, with_types: bool) -> list[list[str]]:
    imports = grimp.build_graph(
        *PACKAGES, cache_dir=None, exclude_type_checking_imports=not with_types
    )
    graph = networkx.DiGraph(
        (module, imported)
        for module in imports.modules
        for imported in imports.find_modules_directly_imported_by(module)
    )
    assert len(graph) > 400, "the graph covers the complete project"
    circles = [sorted(found) for found in networkx.strongly_connected_components(graph)]
    return sorted(found for found in circles if len(found) > 1)


def test_no_modules_import_each_other_at_run_time():
    assert _circles(with_types=False) == []


def test_one_pair_of_modules_imports_each_other_for_type_checking():
    pair = ["trainers.base", "trainers.checkpointing"]  # a trainer and the files of its checkpoint
    assert _circles(with_types=True) == [pair]
