"""CartPole on tensors, step by step as gymnasium's ``CartPole-v1`` (Barto, Sutton & Anderson 1983).

States are f64 as there, observations f32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ratchet.scenarios.gymnasium.dynamics import Dynamics, State, Transition, uniform
from ratchet.scenarios.gymnasium.registry import register_dynamics
from ratchet.scenarios.gymnasium.spaces import AgentSpace, DiscreteActions

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.0 + POLE_MASS
HALF_LENGTH = 0.5
FORCE = 10.0
SECONDS = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360


@register_dynamics("CartPole-v1", max_episode_steps=500)
@register_dynamics("CartPole-v0", max_episode_steps=200)
class CartPole(Dynamics):
    """A cart is pushed to the left or right so that the pole on it does not fall.

    With ``sutton_barto_reward``, the reward is −1 for a fall and otherwise 0, instead of 1 per
    step.
    """

    def __init__(self, sutton_barto_reward: bool = False) -> None:
        self.sutton_barto_reward = sutton_barto_reward

    @property
    def agents(self) -> dict[str, AgentSpace]:
        """Position, speed, angle and angular speed; left or right."""
        return {"agent": AgentSpace(4, DiscreteActions((2,)))}

    def first_state(self, seeds: Tensor) -> State:
        """Stand nearly still in the middle."""
        bound = torch.full((4,), 0.05, dtype=torch.float64)
        return {"physics": uniform(seeds, -bound, bound)}

    def observe(self, state: State) -> Tensor:
        """Show everything."""
        return state["physics"].to(torch.float32).unsqueeze(1)

    def step(self, state: State, actions: Tensor) -> Transition:
        """Push, by Euler's method."""
        _, x_dot, theta, theta_dot = state["physics"].unbind(-1)
        force = actions[:, 0, 0] * (2 * FORCE) - FORCE
        cos, sin = theta.cos(), theta.sin()
        moment = POLE_MASS * HALF_LENGTH
        push = (force + moment * theta_dot.square() * sin) / TOTAL_MASS
        inertia = HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos.square() / TOTAL_MASS)
        theta_acc = (GRAVITY * sin - cos * push) / inertia
        x_acc = push - moment * theta_acc * cos / TOTAL_MASS
        speeds = torch.stack([x_dot, x_acc, theta_dot, theta_acc], -1)
        physics = state["physics"] + SECONDS * speeds
        fallen = (physics[:, 0].abs() > MAX_POSITION) | (physics[:, 2].abs() > MAX_ANGLE)
        reward = torch.ones_like(fallen, dtype=torch.float32)
        if self.sutton_barto_reward:
            reward = -fallen.to(torch.float32)
        return Transition({"physics": physics}, reward.unsqueeze(-1), fallen)
