"""A method and its fast path: which of the two is called."""

from __future__ import annotations

import torch

from ratchet.fast.dispatch import fast_path, is_supported, only_plain_operations


def implementation(box, x, *, scale=1):
    return None if x < 0 else ("fast", box.offset + x * scale)


class Box:
    offset = 1

    @fast_path(implementation)
    def compute(self, x, *, scale=1):
        """Compute x."""
        return "plain", self.offset + x * scale


class Other(Box):
    offset = 2


class Custom(Box):
    compute = fast_path(implementation)(Box.compute)


def test_the_plain_method_is_called_where_the_implementation_returns_none():
    assert Box().compute(2, scale=3) == ("fast", 7)
    assert Box().compute(-2) == ("plain", -1)
    assert Box.compute.__doc__ == "Compute x."
    with only_plain_operations():
        assert Box().compute(2) == ("plain", 3)
    assert Box().compute(2) == ("fast", 3)


def test_subclasses_use_the_plain_method_unless_they_name_an_implementation():
    assert Other().compute(2) == ("plain", 4)
    assert Custom().compute(2) == ("fast", 3)
    assert Custom().compute(-2) == ("plain", -1)


def test_only_tensors_that_autograd_differentiates_on_the_cpu_are_supported():
    x = torch.ones(2)
    assert is_supported(x)
    assert not is_supported(x.double())
    assert not is_supported(x.to("meta"))
    seen = []
    torch.func.vmap(lambda row: seen.append(is_supported(row)) or row)(x)
    with torch.autograd.forward_ad.dual_level():
        seen.append(is_supported(x))
    with torch.autocast("cpu", torch.bfloat16):
        seen.append(is_supported(x))
    assert seen == [False] * 3
