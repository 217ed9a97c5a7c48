"""Policy gradients for chat models: each agent learns from all tokens of all its replies.

GRPO (Shao et al. 2024) and variants; optionally with running averages per agent as baselines, as
in SPIRAL's self-play (Liu et al. 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ratchet.algorithms.replayed_credit import check_redraws, credited_replies
from ratchet.errors import DataError, ParameterError
from ratchet.language_models.training_service.interface import OptimizerSettings, TrainingExample
from ratchet.language_models.training_service.steps import ServiceLoss, TrainingSteps
from ratchet.protocols.registry import playing_agents
from ratchet.rollouts.outcomes import episode_rewards
from ratchet.rollouts.tokens import tokens_of
from ratchet.rollouts.trajectory import Trajectory
from ratchet.scenarios.pure_text.agents.group_state import TokenTraining
from ratchet.scenarios.pure_text.agents.token_training import train_on_tokens
from ratchet.seeding import numpy_generator
from trainers.named import register_trainer
from trainers.text.base import PureTextRlTrainer
from trainers.text.redraws import Redrawer

if TYPE_CHECKING:
    import numpy as np

    from ratchet.parameters.chat_agents import TextAgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.parameters.text_trainers import PureTextGrpoParameters
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from ratchet.rollouts.tokens import ReplyTokens
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup
    from ratchet.scenarios.pure_text.agents.whole_agent import CallContext
    from ratchet.scenarios.pure_text.base import TextScenarioInstance
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from trainers.results import Metrics
    from trainers.text.plans import PlannedRollout
    from trainers.text.sampling import Calls


STAGE = "create_fine_tune_jobs"
_ACTOR = {"kl": "approximate_kl"}
"""The service's name of a metric → that of other trainers, if different."""


class TokenSamplingTrainer(PureTextRlTrainer):
    """Base of text trainers that learn from tokens.

    In training, the tokens of learning agents' prompts and replies are requested with
    log-probabilities and stored in the rollouts. Turns of the agents in ``pure_text_grpo.redraws``
    are redrawn; tests use single rollouts.
    """

    def __init__(
        self,
        hyper_params: HyperParameters,
        scenario_instance: TextScenarioInstance,
        settings: ExperimentSettings,
    ) -> None:
        super().__init__(hyper_params, scenario_instance, settings)
        self.train_environment.asks_for_tokens = True

    def _call_context(
        self, environment: PureTextEnvironment, iteration: int, calls: Calls
    ) -> CallContext:
        """Return the context of calls; in training it requests tokens."""
        context = super()._call_context(environment, iteration, calls)
        if not self._is_training(environment):
            return context
        agents = self.hyper_params.agents
        learning = (name for name in self.agent_names if not agents[name].freeze_agent)
        return replace(context, token_agents=frozenset(learning))

    @classmethod
    def responses_per_step(cls, hyper_params: HyperParameters) -> int:
        """Return 1: redrawn turns are not branches of a tree."""
        return 1

    @classmethod
    def redraws_per_turn(cls, hyper_params: HyperParameters) -> Mapping[str, int]:
        """Return ``pure_text_grpo.redraws``."""
        redraws: Mapping[str, int] = hyper_params.pure_text_grpo.redraws
        return redraws

    async def _sample_one(
        self,
        environment: PureTextEnvironment,
        iteration: int,
        planned: PlannedRollout,
        calls: Calls,
    ) -> NestedArrayDict:
        """Collect one planned rollout, in training with those redrawn from it."""
        redraws = self.redraws_per_turn(self.hyper_params)
        if not redraws or not self._is_training(environment):
            return await super()._sample_one(environment, iteration, planned, calls)
        context = self._call_context(environment, iteration, calls)
        return await Redrawer(environment, self.text_agents, context, redraws).sample(planned)


@register_trainer("pure_text_grpo")
class PureTextGrpoTrainer(TokenSamplingTrainer):
    """Takes policy-gradient steps on its own rollouts, and continues with the new models.

    Instead of a fine-tune job each group of agents that share a model has a training session at
    the service; an interrupted stage resumes it.
    """

    _learning: Metrics | None = None

    @classmethod
    def check_parameters(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Refuse options for which trained probabilities would differ from the replies'."""
        super().check_parameters(hyper_params, base_dir)
        text_rl, parameters = hyper_params.text_rl, hyper_params.pure_text_grpo
        if text_rl.fine_tune_on_all_previous_rollouts:
            raise ParameterError(
                "text_rl.fine_tune_on_all_previous_rollouts: got true, expected false: the policy"
                " gradient requires the model's own rollouts."
            )
        if text_rl.verifier_guess_replacement_proportion:
            raise ParameterError(
                "text_rl.verifier_guess_replacement_proportion: got"
                f" {text_rl.verifier_guess_replacement_proportion}, expected 0: replies that the"
                " model did not write have no policy gradient."
            )
        others_learn = _check_redraws(hyper_params, base_dir)
        if others_learn and parameters.compares_rollouts and text_rl.rollouts_per_datapoint == 1:
            raise ParameterError(
                "text_rl.rollouts_per_datapoint: got 1, expected more for the baseline"
                f" {parameters.baseline!r} and the scale {parameters.advantage_scale!r} of"
                " pure_text_grpo, which compare the rollouts of a datapoint. Or choose baseline"
                " agent_average with advantage_scale batch or none."
            )
        for name, agent in playing_agents(hyper_params, base_dir).items():
            iterations = range(hyper_params.rl.num_iterations)
            learns = any(agent.update_schedule.is_on(each, name) for each in iterations)
            if learns and not agent.freeze_agent:
                _check_agent(name, agent)

    @classmethod
    def examples_per_rollout(cls, hyper_params: HyperParameters, num_rounds: int) -> float:
        """Return 0: no fine-tune job is created or billed."""
        return 0.0

    def job_stats(self) -> Metrics:
        """Return which groups have no job, and statistics of rollouts and steps."""
        return {**super().job_stats(), **(self._learning or {})}

    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        """Train each learning group on all replies of its agents."""
        self._learning = {}
        for name, agents in self.learning_model_groups.items():
            self._learning |= self._train(self.shared_model_groups[name], agents, rollouts)

    def _train(
        self,
        group: PureTextSharedModelGroup,
        agents: list[str],
        rollouts: NestedArrayDict,
    ) -> Metrics:
        parameters = self.hyper_params.pure_text_grpo
        averages = dict((group.state.token_training or TokenTraining()).reward_averages)
        trajectories: list[Trajectory] = []
        metrics: Metrics = {}
        for agent in agents:
            agent_trajectories = reply_trajectories(
                rollouts,
                agent,
                self.agent_names.index(agent),
                model_version=len(group.state.model_names) - 1,
                is_redrawn=agent in parameters.redraws,
            )
            averages, agent_metrics = _set_advantages(agent_trajectories, averages, parameters)
            metrics |= {f"{agent}.{label}": value for label, value in agent_metrics.items()}
            trajectories += agent_trajectories
        generator = numpy_generator(
            self.hyper_params.seed, STAGE, self._iteration, "batches", group.name
        )
        steps = training_steps(
            trajectories,
            parameters,
            generator,
            longest_reply=max(self.hyper_params.agents[agent].max_tokens for agent in agents),
        )
        name = "".join(
            c if c.isalnum() and c.isascii() else "-" for c in self._get_fine_tune_job_name(group)
        )
        done = train_on_tokens(group, steps, name=name, reward_averages=averages)
        actor = {f"{group.name}.actor/{_ACTOR.get(n, n)}": v for n, v in done.items()}
        return {**metrics, **actor}


def _set_advantages(
    trajectories: list[Trajectory],
    averages: dict[str, float],
    parameters: PureTextGrpoParameters,
) -> tuple[dict[str, float], Metrics]:
    """Set the advantages of one agent's trajectories; return averages after them, and metrics.

    Draws of one turn are compared with each other.
    """
    from ratchet.algorithms.language.metrics import log_grpo_metrics  # torch
    from ratchet.algorithms.language.trajectories import trajectory_advantages

    agent = trajectories[0].agent if trajectories else ""
    baseline = "leave_one_out" if agent in parameters.redraws else parameters.baseline
    advantages = trajectory_advantages(
        trajectories,
        baseline=baseline,
        scale=parameters.advantage_scale,
        agent_averages=averages,
        decay=parameters.baseline_decay,
    )
    for one, advantage in zip(trajectories, advantages.advantage.tolist(), strict=True):
        one.advantage = advantage
    metrics: Metrics = {}
    log_grpo_metrics(trajectories, metrics)
    written = sum(one.num_written for one in trajectories)
    metrics["response_length/mean"] = written / max(1, len(trajectories))
    if baseline == "agent_average" and trajectories:
        metrics["critic/baseline"] = averages.get(agent, advantages.agent_averages[agent])
    return advantages.agent_averages, metrics


def _check_redraws(hyper_params: HyperParameters, base_dir: Path | None) -> bool:
    """Refuse redraws of agents that do not learn; return whether other agents learn."""
    redraws = hyper_params.pure_text_grpo.redraws
    if not redraws:
        return True
    from ratchet.protocols.registry import build_protocol_handler  # torch

    names = build_protocol_handler(hyper_params, base_dir=base_dir).agent_names
    learning = [name for name in names if not hyper_params.agents[name].freeze_agent]
    agents = hyper_params.agents
    models = {name: agents[name].shared_model_group or name for name in learning}
    check_redraws("pure_text_grpo.redraws", redraws, models)
    return len(redraws) < len(learning)


def _check_agent(name: str, agent: TextAgentParameters) -> None:
    """Refuse an agent whose tokens aren't sampled from the trained probabilities."""
    for field in ("temperature", "top_p", "repetition_penalty"):
        value = getattr(agent, field)
        if value not in (None, 1):
            raise ParameterError(
                f"agents.{name}.{field}: got {value}, expected 1, or no value: pure_text_grpo"
                " trains the probabilities that replies are sampled from. Or freeze the agent."
            )
    backend = agent.fine_tuning_service.backend
    if agent.base_url is None or agent.api_version is not None or backend not in (None, "ratchet"):
        raise ParameterError(
            f"agents.{name}: got a service without training sessions, expected base_url embedded,"
            " or that of `ratchet llm serve`. Or freeze the agent."
        )


def reply_trajectories(
    rollouts: NestedArrayDict,
    agent: str,
    agent_index: int,
    *,
    model_version: int = 0,
    is_redrawn: bool = False,
) -> list[Trajectory]:
    """Return a trajectory for each reply of an agent in rollouts [N], grouped by rollout.

    The replies of a rollout are segments of one run, each with the sum of the agent's rewards. A
    group consists of the agent's runs on one datapoint, or of the draws of one turn if the agent's
    turns were redrawn. If invalid replies were retried, the last one is used.
    """
    acted = rollouts.array(("agents", "active"))[:, :, agent_index] & ~rollouts.array("padding")
    cut = rollouts.array(("agents", "token_limit"))[:, :, agent_index]
    replies = credited_replies(
        rollouts.array("node_id"),
        acted,
        episode_rewards(rollouts)[:, agent_index],
        agent_index,
        compares_draws=is_redrawn,
    )
    trajectories = []
    for row, step, original, reward in zip(*(each.tolist() for each in replies), strict=True):
        where = f"rollout {row}, step {step}, agent {agent!r}"
        prompt, written, log_probs = _complete(tokens_of(rollouts, row, step, agent_index), where)
        datapoint = int(rollouts["datapoint_id"][row])
        group = f"{datapoint}/{original}/{step}/{agent}" if is_redrawn else f"{datapoint}/{agent}"
        trajectories.append(
            Trajectory(
                tokens=[*prompt, *written],
                loss_mask=[0] * len(prompt) + [1] * len(written),
                logprobs=[0.0] * len(prompt) + [*log_probs],
                reward=reward,
                group_id=group,
                run_id=group,
                attempt_id=f"{row}",
                task_id=f"{datapoint}",
                agent=agent,
                finish_reason="length" if cut[row, step] else "stop",
                is_truncated=bool(cut[row, step]),
                model_version=model_version,
            )
        )
    return trajectories


def _complete(
    tokens: ReplyTokens | None, where: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    """Return prompt tokens, reply tokens, and the latter's log-probabilities."""
    if tokens is not None and tokens.prompt_token_ids and tokens.token_ids is not None:
        written, log_probs = tokens.token_ids, tokens.log_probs
        if log_probs is not None and len(written) == len(log_probs):
            return tokens.prompt_token_ids, written, log_probs
    returned_fields = "nothing" if tokens is None else sorted(tokens.to_dict())
    raise DataError(
        f"{where}: the service returned {returned_fields} of the reply's tokens, expected token ids"
        " of prompt and reply, and a log-probability for each token of the reply. Run the agent on"
        " the embedded service or `ratchet llm serve`, or freeze it."
    )


_LOSSES = {"clip": "ppo"}
"""Ratchet's name of a loss → the service's, if different."""


def training_steps(
    trajectories: Sequence[Trajectory],
    parameters: PureTextGrpoParameters,
    generator: np.random.Generator,
    *,
    longest_reply: int,
) -> TrainingSteps | None:
    """Return the steps that train on trajectories; None if no trajectory has an advantage.

    Trajectories without one count in means, but are not sent. If a pass has several steps, the
    generator samples the trajectories of each.
    """
    written = [one for one in trajectories if one.num_written]
    size = parameters.batch_size or max(1, len(written))
    examples: list[TrainingExample] = []
    batches = []
    for _ in range(parameters.num_epochs):
        order = generator.permutation(len(written)) if size < len(written) else range(len(written))
        for start in range(0, len(written), size):
            batch = [written[index] for index in order[start : start + size]]
            first = len(examples)
            examples += _examples(batch, parameters, longest_reply)
            if len(examples) > first:
                batches.append(range(first, len(examples)))
    if not batches:
        return None
    optimizer = OptimizerSettings(
        learning_rate=parameters.lr,
        beta1=parameters.beta1,
        beta2=parameters.beta2,
        weight_decay=parameters.weight_decay,
        max_grad_norm=parameters.max_grad_norm,
    )
    name = _LOSSES.get(parameters.policy_loss, parameters.policy_loss)
    loss = ServiceLoss(name, _loss_config(parameters), of_sampler=True)
    optimizers = [optimizer] * len(batches)
    return TrainingSteps(examples, batches, optimizers, loss, parameters.micro_batch_size)


def _loss_config(parameters: PureTextGrpoParameters) -> Mapping[str, float]:
    if parameters.policy_loss in ("importance_sampling", "reinforce"):
        return {}
    return {
        "clip_low_threshold": 1 - parameters.clip_low,
        "clip_high_threshold": 1 + parameters.clip_high,
    }


def _examples(
    batch: Sequence[Trajectory], parameters: PureTextGrpoParameters, longest_reply: int
) -> list[TrainingExample]:
    """Return the examples of a step, weighted so that their sum is the loss."""
    num_tokens = sum(one.num_written for one in batch)
    constant = parameters.aggregation_constant or longest_reply

    def weight(one: Trajectory) -> float:
        return {
            "token_mean": 1 / num_tokens,
            "sequence_mean_token_mean": 1 / (len(batch) * one.num_written),
            "sequence_mean_token_sum": 1 / len(batch),
            "constant": 1 / (len(batch) * constant),
        }[parameters.aggregation]

    return [
        TrainingExample(
            tokens=tuple(one.tokens),
            loss_mask=tuple(one.loss_mask),
            weights=tuple(weight(one) * mask for mask in one.loss_mask),
            advantages=tuple(one.advantage * mask for mask in one.loss_mask),
            log_probs=tuple(one.logprobs),
        )
        for one in batch
        if one.advantage
    ]
