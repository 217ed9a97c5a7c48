"""Processes of the command line import tensordict without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

LEAN = """
import sys
from flows.process.lean_imports import leave_compiler_out

leave_compiler_out()
leave_compiler_out()
assert "torch" not in sys.modules
import tensordict
import torch

assert "torch._dynamo" not in sys.modules
assert type(tensordict.__loader__).__module__ != "flows.process.lean_imports"
td = tensordict.TensorDict({"a": torch.arange(3.0)}, batch_size=[3])
assert torch.equal(torch.vmap(lambda one: one["a"] * 2)(td), 2 * torch.arange(3.0))
assert torch.compiler.allow_in_graph.__module__ == "torch.compiler"
assert torch.compiler.assume_constant_result.__module__ == "torch.compiler"
"""


def test_tensordict_works_without_the_compiler_and_torchs_marks_are_put_back():
    subprocess.run([sys.executable, "-c", LEAN], check=True, timeout=100)


def test_nothing_changes_where_tensordict_is_imported_already():
    code = "import tensordict\n" + "\n".join(LEAN.splitlines()[1:5]) + "\nimport sys\n"
    code += "assert not [f for f in sys.meta_path if 'lean' in type(f).__module__]"
    subprocess.run([sys.executable, "-c", code.replace('assert "torch"', '# "')], check=True)
