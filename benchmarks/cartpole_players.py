"""PPO on CartPole with one of four libraries, at equal settings.

Started by ``cartpole.py`` as ``cartpole_players.py NAME SEED MINIBATCH``; prints one line of
JSON. Two perceptrons of 64 and 64 tanh units, eight environments, 128 steps each, ten epochs. CPU
time includes training iterations, but not set-up and evaluation.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ratchet.scenarios.gymnasium.cartpole import CartPole

if TYPE_CHECKING:
    from torchrl.trainers.algorithms.ppo import PPOTrainer

NUM_ENVS = 8
NUM_STEPS = 128
FRAMES = NUM_ENVS * NUM_STEPS
NUM_EPOCHS = 10
LEARNING_RATE = 1e-3
GAMMA = 0.99
LMBDA = 0.95
CLIP = 0.2
CRITIC = 0.5
MAX_NORM = 0.5
SOLVED = 475.0
MAX_ITERATIONS = 100
MIN_ITERATIONS = 15
LIMIT = 500

Policy = Callable[[Tensor], Tensor]
"""Observations f32 [E, 4] → logits [E, 2]."""
Player = Iterator[Policy]
"""Yields the policy after each training iteration."""


def play_ratchet(seed: int, minibatch: int) -> Player:
    """Train with Ratchet."""
    from ratchet import ExperimentSettings, HyperParameters
    from ratchet.scenarios import build_scenario_instance
    from trainers.registry import build_trainer

    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="CartPole-v1",
        seed=seed,
        gymnasium={"num_envs": NUM_ENVS},
        agents={"_default": {"orthogonal_initialisation_gain": 2**0.5}},
        ppo={"clip_epsilon": CLIP, "critic_coef": CRITIC, "entropy_eps": 0.0},
        rl={
            "frames_per_batch": FRAMES,
            "minibatch_size": minibatch,
            "num_epochs": NUM_EPOCHS,
            "lr": LEARNING_RATE,
            "gamma": GAMMA,
            "lmbda": LMBDA,
            "max_grad_norm": MAX_NORM,
            "loss_critic_type": "l2",
            "use_shared_body": False,
            "normalize_observations": False,
        },
    )
    settings = ExperimentSettings()
    instance = build_scenario_instance(hyper_params, settings)
    trainer: Any = build_trainer(hyper_params, instance, settings)
    trainer.initial_state()
    agent: Any = instance.agents["agent"]
    for iteration in range(MAX_ITERATIONS):
        trainer.run_iterations(iteration, iteration + 1)
        yield lambda x: agent.policy(x)


def play_stable_baselines(seed: int, minibatch: int) -> Player:
    """Train with Stable-Baselines3."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=NUM_ENVS, seed=seed),
        n_steps=NUM_STEPS,
        batch_size=minibatch,
        n_epochs=NUM_EPOCHS,
        learning_rate=LEARNING_RATE,
        gamma=GAMMA,
        gae_lambda=LMBDA,
        clip_range=CLIP,
        ent_coef=0.0,
        vf_coef=CRITIC,
        max_grad_norm=MAX_NORM,
        seed=seed,
        device="cpu",
    )
    for iteration in range(MAX_ITERATIONS):
        model.learn(FRAMES, reset_num_timesteps=iteration == 0)
        yield lambda x: model.policy.get_distribution(x).distribution.logits


def orthogonal(net: nn.Sequential, last_gain: float) -> nn.Sequential:
    """Initialise like the other libraries."""
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return net


def perceptron(num_outputs: int, last_gain: float) -> nn.Sequential:
    """Build a perceptron of 64 and 64 tanh units."""
    hidden = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    return orthogonal(nn.Sequential(*hidden, nn.Linear(64, num_outputs)), last_gain)


def play_torchrl(seed: int, minibatch: int) -> Player:
    """Train with TorchRL's PPOTrainer and its default components."""
    from threading import Semaphore, Thread

    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    trainer, network = torchrl_trainer(seed, minibatch)
    go, done = Semaphore(0), Semaphore(0)

    def pause() -> None:
        done.release()
        go.acquire()

    trainer.register_op("post_steps", pause)

    def train() -> None:
        go.acquire()
        trainer.train()

    Thread(target=train, daemon=True).start()  # PPOTrainer cannot be stepped from outside
    for _ in range(MAX_ITERATIONS):
        go.release()
        done.acquire()
        yield network


def torchrl_trainer(seed: int, minibatch: int) -> tuple[PPOTrainer, Policy]:
    """Build TorchRL's trainer and the network that it trains."""
    from tensordict.nn import TensorDictModule
    from torch.distributions import Categorical
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers import SamplerWithoutReplacement
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.trainers.algorithms.ppo import PPOTrainer

    env = SerialEnv(NUM_ENVS, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    env.set_seed(seed)
    network = perceptron(2, 0.01)
    logits = TensorDictModule(network, ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True
    )
    loss = ClipPPOLoss(
        actor,
        ValueOperator(perceptron(1, 1.0), ["observation"]),
        clip_epsilon=CLIP,
        entropy_coeff=0.0,
        critic_coeff=CRITIC,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    trainer = PPOTrainer(
        collector=Collector(env, actor, frames_per_batch=FRAMES, total_frames=-1),
        total_frames=FRAMES * MAX_ITERATIONS,
        frame_skip=1,
        optim_steps_per_batch=None,  # all; with a number, every other epoch has no steps
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), LEARNING_RATE),
        clip_grad_norm=True,
        clip_norm=MAX_NORM,
        progress_bar=False,
        num_epochs=NUM_EPOCHS,
        gamma=GAMMA,
        lmbda=LMBDA,
        replay_buffer=TensorDictReplayBuffer(
            storage=LazyTensorStorage(FRAMES),
            sampler=SamplerWithoutReplacement(),
            batch_size=minibatch,
        ),
    )
    return trainer, network


def play_plain_torch(seed: int, minibatch: int) -> Player:
    """Train with a plain loop: batched environments, fused Adam, torch distributions."""
    from torch.distributions import Categorical

    torch.manual_seed(seed)
    actor, critic = perceptron(2, 0.01), perceptron(1, 1.0)
    params = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(params, LEARNING_RATE, fused=True)
    game = CartPole()
    state = game.first_state(torch.randint(2**31, (NUM_ENVS,)))
    age = torch.zeros(NUM_ENVS)
    for _ in range(MAX_ITERATIONS):
        rows: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            for _ in range(NUM_STEPS):
                seen = game.observe(state)[:, 0]
                choice = Categorical(logits=actor(seen))
                action = choice.sample()
                step = game.step(state, action.view(-1, 1, 1))
                state, age = step.state, age + 1
                cut = (age >= LIMIT) & ~step.terminated
                over = cut | step.terminated
                reward = step.reward[:, 0]
                if cut.any():
                    reward = reward + GAMMA * cut * critic(game.observe(state)[:, 0])[:, 0]
                log_prob = choice.log_prob(action)
                rows.append((seen, action, log_prob, critic(seen)[:, 0], reward, over))
                if over.any():
                    fresh = game.first_state(torch.randint(2**31, (int(over.sum()),)))
                    state["physics"][over] = fresh["physics"]
                    age[over] = 0
            after = critic(game.observe(state)[:, 0])[:, 0]
        data = with_advantages(rows, after)
        for _ in range(NUM_EPOCHS):
            for index in torch.randperm(FRAMES).split(minibatch):
                seen_b, action_b, old, gain, target = (x[index] for x in data)
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                ratio = (Categorical(logits=actor(seen_b)).log_prob(action_b) - old).exp()
                bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
                policy = -torch.minimum(ratio * gain, bounded * gain).mean()
                loss = policy + CRITIC * (critic(seen_b)[:, 0] - target).square().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(params, MAX_NORM)
                optimizer.step()
        yield actor


def with_advantages(rows: list[tuple[Tensor, ...]], after: Tensor) -> list[Tensor]:
    """Return observations, actions, log-probabilities, advantages and targets, [FRAMES, …] each."""
    seen, action, log_prob, value, reward, over = map(torch.stack, zip(*rows, strict=True))
    going = (~over).float()
    advantage, following = torch.zeros_like(reward), torch.zeros(NUM_ENVS)
    for t in reversed(range(NUM_STEPS)):
        then = value[t + 1] if t + 1 < NUM_STEPS else after
        delta = reward[t] + GAMMA * going[t] * then - value[t]
        following = delta + GAMMA * LMBDA * going[t] * following
        advantage[t] = following
    return [x.flatten(0, 1) for x in (seen, action, log_prob, advantage, advantage + value)]


PLAYERS: dict[str, Callable[[int, int], Player]] = {
    "ratchet": play_ratchet,
    "torchrl": play_torchrl,
    "stable-baselines3": play_stable_baselines,
    "plain torch": play_plain_torch,
}


@torch.no_grad()
def mean_return(policy: Policy) -> float:
    """Return the mean return of 100 episodes with greedy actions."""
    game = CartPole()
    state = game.first_state(torch.arange(100))
    alive, total = torch.ones(100, dtype=torch.bool), torch.zeros(100)
    for _ in range(LIMIT):
        actions = policy(game.observe(state)[:, 0]).argmax(-1)
        state, reward, fallen = game.step(state, actions.view(-1, 1, 1))
        total += reward[:, 0] * alive
        alive &= ~fallen
        if not alive.any():
            break
    return float(total.mean())


def main() -> None:
    """Train until solved and print speed and CPU time."""
    name, seed, minibatch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    player = PLAYERS[name](seed, minibatch)
    times: list[float] = []
    solved: int | None = None
    before = time.process_time()
    for policy in player:
        times.append(time.process_time() - before)
        if solved is None and mean_return(policy) >= SOLVED:
            solved = len(times)
        if solved is not None and len(times) >= MIN_ITERATIONS:
            break
        before = time.process_time()
    rate = FRAMES / statistics.median(times[1:])
    seconds = None if solved is None else sum(times[:solved])
    print(json.dumps({"rate": rate, "seconds": seconds, "frames": (solved or 0) * FRAMES}))


if __name__ == "__main__":
    main()
