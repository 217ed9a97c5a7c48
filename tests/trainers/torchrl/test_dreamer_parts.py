"""The library's DreamerV3 parts in a trainer of one's own: a small world model of Pendulum."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import (
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torchrl.collectors import Collector
from torchrl.data import (
    Bounded,
    Composite,
    LazyTensorStorage,
    SliceSampler,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import Compose, GymEnv, InitTracker, TensorDictPrimer, TransformedEnv
from torchrl.envs.model_based import DreamerEnv
from torchrl.modules import (
    MLP,
    RSSMPosteriorV3,
    RSSMPriorV3,
    RSSMRolloutV3,
    TanhNormal,
    WorldModelWrapper,
)
from torchrl.objectives import (
    DreamerV3ActorLoss,
    DreamerV3Loss,
    DreamerV3ModelLoss,
    DreamerV3ValueLoss,
    SoftUpdate,
)
from torchrl.trainers import Trainer
from torchrl.trainers.algorithms import DreamerV3OptimizationStepper, DreamerV3Optimizer

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers import TorchRlTrainer

SEEN, WIDTH, STATE, SLICE = 3, 8, 4, 4
FEATURES = ["state", "belief"]
AFTER = [("next", name) for name in FEATURES]


def perceptron(inputs, outputs):
    return MLP(in_features=inputs, out_features=outputs, num_cells=WIDTH, depth=1)


class Learner:
    """The networks that world model, imagination and policy share."""

    def __init__(self):
        sizes = {"hidden_dim": WIDTH, "rnn_hidden_dim": WIDTH}
        sizes |= {"num_categoricals": 2, "num_classes": 2}
        self.prior = RSSMPriorV3(action_shape=(1,), action_dim=1, **sizes)
        self.posterior = RSSMPosteriorV3(obs_embed_dim=WIDTH, **sizes)
        self.encoder = torch.nn.Linear(SEEN, WIDTH)
        self.reward = perceptron(STATE + WIDTH, 1)
        self.actor = ProbabilisticTensorDictSequential(
            TensorDictModule(perceptron(STATE + WIDTH, 2), FEATURES, ["params"]),
            TensorDictModule(NormalParamExtractor(), ["params"], ["loc", "scale"]),
            ProbabilisticTensorDictModule(
                in_keys=["loc", "scale"],
                out_keys=["action"],
                distribution_class=TanhNormal,
                distribution_kwargs={"low": -2.0, "high": 2.0},
                return_log_prob=True,
            ),
        )
        self.value = TensorDictModule(perceptron(STATE + WIDTH, 1), FEATURES, ["state_value"])

    def policy(self):
        """Infer the state from what is seen and remembered, act, and remember."""
        taken = [*FEATURES, "action"]
        return TensorDictSequential(
            TensorDictModule(self.encoder, ["observation"], ["encoded"]),
            TensorDictModule(self.posterior, ["belief", "encoded"], ["_", "state"]),
            self.actor,
            TensorDictModule(self.prior, taken, ["_", "_", ("next", "belief")]),
        )

    def loss(self):
        taken = [*FEATURES, "action"]
        inferred = [("next", "posterior_logits"), ("next", "state")]
        world = TensorDictSequential(
            TensorDictModule(self.encoder, [("next", "observation")], [("next", "encoded")]),
            RSSMRolloutV3(
                TensorDictModule(self.prior, taken, [("next", "prior_logits"), *AFTER]),
                TensorDictModule(
                    self.posterior, [("next", "belief"), ("next", "encoded")], inferred
                ),
                reset_key="is_init",
            ),
            TensorDictModule(perceptron(STATE + WIDTH, SEEN), AFTER, [("next", "reco_pixels")]),
            TensorDictModule(self.reward, AFTER, [("next", "reward")]),
        )
        model = DreamerV3ModelLoss(world, reward_two_hot=False, detach_output=False)
        model.set_keys(pixels="observation")
        actor = DreamerV3ActorLoss(self.actor, self.value, self.dreams(), imagination_horizon=3)
        value = DreamerV3ValueLoss(self.value, actor_loss=actor, slow_critic_regularization=1.0)
        return DreamerV3Loss(model, actor, value)

    def dreams(self):
        """The environment that the world model imagines."""
        world = WorldModelWrapper(
            TensorDictModule(self.prior, [*FEATURES, "action"], ["_", *FEATURES]),
            TensorDictModule(self.reward, FEATURES, ["reward"]),
        )
        environment = DreamerEnv(world, prior_shape=(STATE,), belief_shape=(WIDTH,))
        environment.observation_spec = Composite(state=Unbounded(STATE), belief=Unbounded(WIDTH))
        environment.state_spec = environment.observation_spec.clone()
        environment.action_spec = Bounded(-2, 2, (1,))
        environment.reward_spec = Unbounded((1,))
        return environment


class Dreamer(TorchRlTrainer):
    """DreamerV3 (Hafner et al. 2023), without its pictures."""

    def build_trainer(self):
        learner = Learner()
        loss = learner.loss()
        self._policy = learner.policy()
        stepper = DreamerV3OptimizationStepper(
            loss,
            DreamerV3Optimizer(loss.parameters(), lr=1e-3, warmup_steps=4),
            SoftUpdate(loss.value_loss, tau=0.02),
        )
        rl = self.hyper_params.rl
        collector = Collector(
            self.build_environment(), self._policy, frames_per_batch=rl.frames_per_batch
        )
        trainer = Trainer(
            collector=collector,
            total_frames=rl.num_iterations * rl.frames_per_batch,
            frame_skip=1,
            optim_steps_per_batch=2,
            loss_module=loss,
            optimization_stepper=stepper,
        )
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(60),
            sampler=SliceSampler(slice_len=SLICE, traj_key=("collector", "traj_ids")),
            batch_size=4 * SLICE,
        )
        trainer.replay_buffer = buffer
        trainer.register_op("pre_epoch", lambda batch: buffer.extend(batch.reshape(-1)) * 0)
        trainer.register_op(
            "process_optim_batch", lambda _: buffer.sample().reshape(-1, SLICE).exclude("index")
        )
        return trainer

    def build_environment(self):
        remembered = TensorDictPrimer(belief=Unbounded((WIDTH,)), default_value=0.0)
        return TransformedEnv(GymEnv("Pendulum-v1"), Compose(InitTracker(), remembered))

    @property
    def policy(self):
        self.torchrl_trainer  # noqa: B018 -- which makes it
        return self._policy


@pytest.fixture
def make():
    params = HyperParameters(
        scenario="gymnasium",
        trainer="torchrl_ppo",  # for the section; the class is given
        dataset="Pendulum-v1",
        gymnasium={"num_test_episodes": 2, "num_train_seeds": 4, "max_episode_steps": 12},
        rl={"num_iterations": 3, "frames_per_batch": 24},
    )
    instance = build_scenario_instance(params, ExperimentSettings())
    return lambda: Dreamer(params, instance, ExperimentSettings())


def test_its_world_model_learns_resumes_and_its_policy_is_tested(make):
    whole, cut, resumed = make(), make(), make()
    for trainer in (whole, cut):
        trainer.initial_state()
    before = whole.state
    metrics = whole.run_iterations(0, 3)
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 3) == metrics[1:]
    assert resumed.state == whole.state != before
    assert any(name.startswith("loss_model") for name in metrics[0])
    assert any("momentum" in name for name in whole.state.tensors)
    assert whole.run_test("test").metrics["agent.mean_episode_reward"] < 0
