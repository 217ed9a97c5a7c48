"""Environments of packages of the ``verifiers`` kind: their tasks, turns and rubrics, used here.

Known by what they have, not by their class, so that the package itself need not be installed.
"""
