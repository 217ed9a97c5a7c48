"""Modules that import each other in a ring cannot be read, tested or replaced one by one."""

from __future__ import annotations

import grimp
import networkx

PACKAGES = ("ratchet", "trainers", "tasks", "flows", "deployments")


def test_no_more_than_two_modules_import_each_other_in_a_circle():
    imports = grimp.build_graph(*PACKAGES, cache_dir=None)
    graph = networkx.DiGraph(
        (module, imported)
        for module in imports.modules
        for imported in imports.find_modules_directly_imported_by(module)
    )
    circles = [sorted(found) for found in networkx.strongly_connected_components(graph)]
    assert len(graph) > 400, "the graph is of the whole project"
    assert [found for found in circles if len(found) > 2] == []
