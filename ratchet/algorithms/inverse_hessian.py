"""Inverse-Hessian-vector products: solve H x = g from products of H with vectors.

H is symmetric, P × P. All three methods terminate for any H, but ``x`` is a
solution only if H is positive definite: for losses of reinforcement learning expect a rough one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

HessianProducts = Callable[[Tensor], Tensor]
"""Applies H to each row of [k, P]."""


def conjugate_gradient(
    products: HessianProducts, vector: Tensor, *, num_iterations: int, tolerance: float = 1e-6
) -> Tensor:
    """Solve H x = g by conjugate gradients (Hestenes & Stiefel 1952).

    Stops early when the residual's norm is at most ``tolerance`` times that of g, or at a direction
    of curvature ≤ 0, which has no minimum (Steihaug 1983): ``x`` is then the previous iterate, 0 in
    the first step.

    Parameters
    ----------
    vector
        g, [P].
    num_iterations
        The number of products at most; P of them are exact up to rounding.
    tolerance
        Of the residual.
    """
    x = torch.zeros_like(vector)
    residual = direction = vector
    square = first = residual.dot(residual)
    for _ in range(num_iterations):
        if square <= tolerance**2 * first:
            break
        product = products(direction.unsqueeze(0)).squeeze(0)
        curvature = direction.dot(product)
        if curvature <= 0:
            break
        length = square / curvature
        x = x + length * direction
        residual = residual - length * product
        before, square = square, residual.dot(residual)
        direction = residual + square / before * direction
    return x


def neumann_series(products: HessianProducts, vector: Tensor, *, num_iterations: int) -> Tensor:
    """Sum α Σ_k (I − αH)^k g over k < K, which tends to H⁻¹g (Lorraine et al. 2020).

    The sum converges if H is positive definite and α‖H‖ < 2. ‖H‖ is unknown, so each step uses for
    1/α the largest ‖Hr‖/‖r‖ so far; it never exceeds ‖H‖, and grows as soon as
    too long a step has blown the residual r = (I − αH)^k g up along the steepest direction.

    Parameters
    ----------
    products
        H, applied once for each term except the last.
    vector
        g, [P].
    num_iterations
        K, the number of terms.
    """
    x = torch.zeros_like(vector)
    residual, norm = vector, vector.new_zeros(())
    for left in reversed(range(num_iterations)):
        length = residual.norm()
        if length == 0:
            break
        if left == 0 and norm > 0:
            return x + residual / norm
        product = products(residual.unsqueeze(0)).squeeze(0)
        norm = torch.maximum(norm, product.norm() / length)
        if norm == 0:
            break
        x = x + residual / norm
        residual = residual - product / norm
    return x


def nystrom(
    products: HessianProducts,
    vector: Tensor,
    *,
    rank: int,
    rho: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Solve (H_k + ρI) x = g, H_k being a Nyström approximation of H (Hataya & Yamada 2023).

    H_k = HΩ(ΩᵀHΩ)⁺(HΩ)ᵀ with k random orthonormal directions Ω; by Woodbury's identity
    x = (g − Y (ρ ΩᵀY + YᵀY)⁺ Yᵀg)/ρ with Y = HΩ. With k = P it is exact. (The paper's Ω are k
    unit vectors; directions across all parameters catch more of H, Frangella et al. 2023.)

    Parameters
    ----------
    products
        H, applied once, to k vectors.
    vector
        g, [P].
    rank
        k; P if that is smaller.
    rho
        ρ > 0.
    generator
        Samples Ω; torch's global generator when None.
    """
    size = min(rank, len(vector))
    drawn = torch.randn(
        len(vector), size, generator=generator, dtype=vector.dtype, device=vector.device
    )
    omega = torch.linalg.qr(drawn).Q.mT  # [k, P]
    y = products(omega)  # [k, P]
    core = y @ omega.mT
    system = (0.5 * rho * (core + core.mT) + y @ y.mT).double()
    inner = torch.linalg.pinv(system, hermitian=True) @ (y @ vector).double()
    x: Tensor = (vector - inner.to(y.dtype) @ y) / rho
    return x
