"""The pendulum that is to be swung up, on tensors, step by step as gymnasium's ``Pendulum-v1``.

States are f64 as there, observations f32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ratchet.scenarios.gymnasium.dynamics import Dynamics, State, Transition, uniform
from ratchet.scenarios.gymnasium.registry import register_dynamics
from ratchet.scenarios.gymnasium.spaces import AgentSpace, ContinuousActions

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
SECONDS = 0.05


@register_dynamics("Pendulum-v1", max_episode_steps=200)
class Pendulum(Dynamics):
    """A pendulum with a weak motor; the cost is its angle, its speed and the torque, squared.

    ``g`` is gravity.
    """

    def __init__(self, g: float = 10.0) -> None:
        self.g = g

    @property
    def agents(self) -> dict[str, AgentSpace]:
        """Cosine and sine of the angle, and speed; a torque."""
        return {"agent": AgentSpace(3, ContinuousActions((-MAX_TORQUE,), (MAX_TORQUE,)))}

    def first_state(self, seeds: Tensor) -> State:
        """Start at any angle with a low velocity."""
        high = torch.tensor([math.pi, 1.0], dtype=torch.float64)
        return {"physics": uniform(seeds, -high, high)}

    def observe(self, state: State) -> Tensor:
        """Show everything."""
        theta, speed = state["physics"].unbind(-1)
        observation = torch.stack([theta.cos(), theta.sin(), speed], -1)
        return observation.to(torch.float32).unsqueeze(1)

    def step(self, state: State, actions: Tensor) -> Transition:
        """Turn, by the half-implicit Euler method."""
        theta, speed = state["physics"].unbind(-1)
        torque = actions[:, 0, 0].clamp(-MAX_TORQUE, MAX_TORQUE)
        angle = (theta + math.pi).remainder(2 * math.pi) - math.pi
        # gymnasium squares the torque in f32, the action's type
        cost = angle.square() + 0.1 * speed.square() + (0.001 * torque.square()).to(torch.float64)
        faster = speed + (3 * self.g / 2 * theta.sin() + 3.0 * torque) * SECONDS
        faster = faster.clamp(-MAX_SPEED, MAX_SPEED)
        physics = torch.stack([theta + faster * SECONDS, faster], -1)
        reward = -cost.to(torch.float32).unsqueeze(-1)
        never = torch.zeros_like(cost, dtype=torch.bool)
        return Transition({"physics": physics}, reward, never)
