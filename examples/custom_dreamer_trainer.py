"""DreamerV3 (Hafner et al. 2023) from TorchRL components: a small world model of Pendulum.

TorchRL has DreamerV3's loss, optimizer and optimization stepper, but no trainer. This one adds a
recurrent policy, a replay buffer from which sequences are sampled, and networks that world model,
imagination and policy share.
Run with ``python examples/custom_dreamer_trainer.py``.
"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
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
from torchrl.envs import Compose, EnvBase, GymEnv, InitTracker, TensorDictPrimer, TransformedEnv
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
from torchrl.trainers import Trainer as LibraryTrainer
from torchrl.trainers import TrainerHookBase
from torchrl.trainers.algorithms import DreamerV3OptimizationStepper, DreamerV3Optimizer

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers import TorchRlTrainer

SEEN, WIDTH, CATEGORIES, CLASSES, SLICE = 3, 32, 4, 4, 8
STATE = CATEGORIES * CLASSES
FEATURES = ["state", "belief"]
AFTER = [("next", name) for name in FEATURES]


def perceptron(inputs: int, outputs: int) -> MLP:
    """Build a network with one hidden layer."""
    return MLP(in_features=inputs, out_features=outputs, num_cells=WIDTH, depth=1)


class Learner:
    """Networks shared by world model, imagination and policy."""

    def __init__(self) -> None:
        sizes = {"hidden_dim": WIDTH, "rnn_hidden_dim": WIDTH}
        sizes |= {"num_categoricals": CATEGORIES, "num_classes": CLASSES}
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

    def policy(self) -> TensorDictSequential:
        """Infer the state from observation and belief, act, and update the belief."""
        prior_inputs = [*FEATURES, "action"]
        return TensorDictSequential(
            TensorDictModule(self.encoder, ["observation"], ["encoded"]),
            TensorDictModule(self.posterior, ["belief", "encoded"], ["_", "state"]),
            self.actor,
            TensorDictModule(self.prior, prior_inputs, ["_", "_", ("next", "belief")]),
        )

    def loss(self) -> DreamerV3Loss:
        """Build the loss of world model, actor and critic."""
        prior_inputs = [*FEATURES, "action"]
        inferred = [("next", "posterior_logits"), ("next", "state")]
        world = TensorDictSequential(
            TensorDictModule(self.encoder, [("next", "observation")], [("next", "encoded")]),
            RSSMRolloutV3(
                TensorDictModule(self.prior, prior_inputs, [("next", "prior_logits"), *AFTER]),
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

    def dreams(self) -> DreamerEnv:
        """Build the environment imagined by the world model."""
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


class Sequences(TrainerHookBase):
    """Hook that stores frames and samples sequences; the trainer's state includes the frames."""

    def __init__(self, replay_buffer: TensorDictReplayBuffer) -> None:
        self.replay_buffer = replay_buffer

    def extend(self, batch: TensorDictBase) -> TensorDictBase:
        """Store collected frames."""
        self.replay_buffer.extend(batch.reshape(-1))
        return batch

    def sample(self, _: TensorDictBase) -> TensorDictBase:
        """Sample sequences [B, SLICE]."""
        drawn: TensorDictBase = self.replay_buffer.sample()
        return drawn.reshape(-1, SLICE).exclude("index")

    def register(self, trainer: LibraryTrainer, name: str = "sequences") -> None:
        """Store frames before an epoch; sample for each of its steps."""
        trainer.register_op("pre_epoch", self.extend)
        trainer.register_op("process_optim_batch", self.sample)


class Dreamer(TorchRlTrainer):
    """World model, and an actor trained on imagined rollouts."""

    _policy: TensorDictSequential

    def build_trainer(self) -> LibraryTrainer:
        """Build the TorchRL trainer."""
        rl, learner = self.hyper_params.rl, Learner()
        loss = learner.loss()
        self._policy = learner.policy()
        stepper = DreamerV3OptimizationStepper(
            loss,
            DreamerV3Optimizer(loss.parameters(), lr=rl.lr, warmup_steps=10),
            SoftUpdate(loss.value_loss, tau=0.02),
        )
        collector = Collector(
            self.build_environment(), self._policy, frames_per_batch=rl.frames_per_batch
        )
        trainer = LibraryTrainer(
            collector=collector,
            total_frames=rl.num_iterations * rl.frames_per_batch,
            frame_skip=1,
            optim_steps_per_batch=rl.num_epochs,
            loss_module=loss,
            optimization_stepper=stepper,
        )
        trainer.replay_buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10_000),
            sampler=SliceSampler(slice_len=SLICE, traj_key=("collector", "traj_ids")),
            batch_size=rl.minibatch_size,
        )
        Sequences(trainer.replay_buffer).register(trainer)
        return trainer

    def build_environment(self) -> EnvBase:
        """Build Pendulum with an entry for the policy's belief."""
        remembered = TensorDictPrimer(belief=Unbounded((WIDTH,)), default_value=0.0)
        return TransformedEnv(GymEnv(self.hyper_params.dataset), Compose(InitTracker(), remembered))

    @property
    def policy(self) -> TensorDictSequential:
        """Policy used in tests: the loss has no recurrent actor."""
        _ = self.torchrl_trainer  # builds the policy
        return self._policy


def main() -> None:
    """Train for a few iterations and print the metrics."""
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer={"module_path": "custom_dreamer_trainer.py", "class_name": "Dreamer"},
        dataset="Pendulum-v1",
        gymnasium={"num_test_episodes": 2},
        rl={"num_iterations": 3, "frames_per_batch": 200, "minibatch_size": 64, "num_epochs": 4},
    )
    settings = ExperimentSettings()
    instance = build_scenario_instance(hyper_params, settings)
    trainer = Dreamer(hyper_params, instance, settings)
    trainer.train()
    for record in trainer.history:
        rounded = {name: round(value, 3) for name, value in record.values.items()}
        print(record.stage, record.iteration, rounded)


if __name__ == "__main__":
    main()
