"""The command line imports tensordict and TorchRL without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

LEAN = """
import sys
from flows.process.import_shims import skip_compiler_import

skip_compiler_import()
skip_compiler_import()
assert "torch" not in sys.modules
import tensordict
import torch

assert "torch._dynamo" not in sys.modules
assert type(tensordict.__loader__).__module__ != "flows.process.import_shims"
td = tensordict.TensorDict({"a": torch.arange(3.0)}, batch_size=[3])
assert torch.equal(torch.vmap(lambda one: one["a"] * 2)(td), 2 * torch.arange(3.0))
assert torch.compiler.allow_in_graph.__module__ == "torch.compiler"
assert torch.compiler.assume_constant_result.__module__ == "torch.compiler"
"""
WITH_TORCHRL = """
import sys
from flows.process.import_shims import skip_compiler_import

skip_compiler_import()
import torch
import torchrl.trainers.algorithms.configs
from torchrl.data import LazyTensorStorage, ReplayBuffer

assert "torch._dynamo" not in sys.modules
assert torch.compiler.disable.__module__ == "torch.compiler"
buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
buffer.extend(torch.arange(3))
graphs = []

def note(graph, inputs):
    graphs.append(graph)
    return graph.forward

@torch.compile(backend=note)
def sample(number):
    return buffer.storage._rand_given_ndim(2) + 0 * number.sin()

assert sample(torch.ones(2)).shape == (2,)
assert graphs
assert not [node for graph in graphs for node in graph.graph.nodes if "randint" in str(node.target)]
"""


def test_tensordict_works_without_the_compiler_and_torch_functions_are_restored():
    subprocess.run([sys.executable, "-c", LEAN], check=True, timeout=300)


def test_torchrl_works_without_the_compiler():
    subprocess.run([sys.executable, "-c", WITH_TORCHRL], check=True, timeout=300)


def test_skipping_has_no_effect_after_tensordict_is_imported():
    code = "import tensordict\n" + "\n".join(LEAN.splitlines()[1:5]) + "\nimport sys\n"
    code += "assert not [f for f in sys.meta_path if getattr(f, 'name', '') == 'tensordict']"
    subprocess.run([sys.executable, "-c", code.replace('assert "torch"', '# "')], check=True)
