"""Three solvers of H x = g that use only Hessian products, against a dense solve."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.algorithms.inverse_hessian import conjugate_gradient, neumann_series, nystrom

SIZE = 8


def problem(seed, *, shift=0.3):
    """Return a symmetric matrix, positive definite unless ``shift`` is low, and a vector."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)
    matrix = drawn @ drawn.T / SIZE + shift * torch.eye(SIZE)
    return matrix, torch.randn(SIZE, generator=generator, dtype=torch.float64)


def counting(matrix):
    calls = []

    def products(vectors):
        calls.append(len(vectors))
        return vectors @ matrix

    return products, calls


@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_conjugate_gradients_are_exact_after_as_many_products_as_dimensions(seed):
    matrix, vector = problem(seed)
    products, calls = counting(matrix)
    found = conjugate_gradient(products, vector, num_iterations=SIZE)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, vector), rtol=1e-3, atol=1e-4)
    assert sum(calls) <= SIZE


@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_the_neumann_series_converges_to_the_solution(seed):
    matrix, vector = problem(seed)
    solution = torch.linalg.solve(matrix, vector)
    errors = [
        (neumann_series(lambda v: v @ matrix, vector, num_iterations=n) - solution).norm()
        for n in (5, 40, 400)
    ]
    assert errors[2] < 1e-6 * solution.norm()
    assert errors[2] < errors[1] < errors[0]


@given(seed=st.integers(0, 10_000), rho=st.sampled_from([1e-3, 0.1, 1.0]))
@settings(max_examples=8, deadline=None)
def test_nystrom_of_full_rank_solves_the_damped_system(seed, rho):
    matrix, vector = problem(seed)
    products, calls = counting(matrix)
    generator = torch.Generator().manual_seed(seed)
    found = nystrom(products, vector, rank=SIZE, rho=rho, generator=generator)
    expected = torch.linalg.solve(matrix + rho * torch.eye(SIZE), vector)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert calls == [SIZE]


def test_nystrom_is_exact_for_a_low_rank_matrix():
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    matrix = factor @ factor.T
    vector = torch.randn(50, generator=generator, dtype=torch.float64)
    found = nystrom(lambda v: v @ matrix, vector, rank=3, rho=0.1, generator=generator)
    expected = torch.linalg.solve(matrix + 0.1 * torch.eye(50), vector)
    torch.testing.assert_close(found, expected)


def test_nystrom_samples_only_from_its_generator():
    matrix, vector = problem(0)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(found))
        generator = torch.Generator().manual_seed(seed)
        found.append(nystrom(lambda v: v @ matrix, vector, rank=2, rho=0.1, generator=generator))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("solve", [conjugate_gradient, neumann_series])
def test_more_products_reduce_the_residual(solve):
    matrix, vector = problem(4)
    left = [
        (matrix @ solve(lambda v: v @ matrix, vector, num_iterations=n) - vector).norm()
        for n in range(1, 6)
    ]
    assert left == sorted(left, reverse=True)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_neumann_series_adapts_its_step_size_to_any_scale(scale):
    matrix, vector = problem(7)
    found = neumann_series(lambda v: v @ (scale * matrix), vector, num_iterations=300)
    expected = torch.linalg.solve(scale * matrix, vector)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_conjugate_gradients_stop_where_the_curvature_is_not_positive():
    matrix = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    down = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert conjugate_gradient(lambda v: v @ matrix, down, num_iterations=5).tolist() == [0.0, 0.0]
    up = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert conjugate_gradient(lambda v: v @ matrix, up, num_iterations=5).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    "solve",
    [
        lambda products, vector: conjugate_gradient(products, vector, num_iterations=5),
        lambda products, vector: neumann_series(products, vector, num_iterations=5),
        lambda products, vector: nystrom(products, vector, rank=5, rho=0.1),
    ],
)
@pytest.mark.parametrize("matrix", ["zero", "indefinite"])
def test_singular_matrices_give_finite_results(solve, matrix):
    indefinite, vector = problem(2, shift=-0.8)
    given = torch.zeros_like(indefinite) if matrix == "zero" else indefinite
    assert solve(lambda v: v @ given, vector).isfinite().all()
    assert solve(lambda v: v @ given, torch.zeros_like(vector)).abs().sum() == 0
