"""Trajectories as tensors, prepared by a language trainer and read by its loss.

Shape letters: B rows, T tokens.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor

from ratchet.errors import DataError
from ratchet.rollouts.padding import (
    Truncation,
    checked_width,
    compute_position_id_with_mask,
    pad_rows,
    scores_of_tokens,
)
from ratchet.rollouts.trajectory import Trajectory

REQUIRED_FIELDS = (
    *("input_ids", "attention_mask", "position_ids", "loss_mask"),
    *("token_level_scores", "advantages"),
)
"""The values that a policy's update needs, each ``[B, T]``."""

_COLUMNS = {
    "group_ids": "group_id",
    "run_ids": "run_id",
    "attempt_ids": "attempt_id",
    "task_ids": "task_id",
    "agents": "agent",
    "roles": "role",
    "finish_reasons": "finish_reason",
    "is_truncated": "is_truncated",
    "is_validation": "is_validation",
    "model_versions": "model_version",
    "scores": "scores",
    "metrics": "metrics",
}

_PENALTY = {"log_probs", "ref_log_probs"}
_PENALTY_HINT = (
    " kl={coef: 0.1, place: reward} in the trainer's algorithm section adds log_probs and"
    " ref_log_probs."
)


class TokenData(dict[str, Tensor]):
    """Tensors of a batch by name; the error for a missing tensor lists the available ones.

    :meth:`get` and ``in`` do not raise.
    """

    def __init__(self, batch: Batch, entries: Mapping[str, Tensor]) -> None:
        super().__init__(entries)
        self._batch = batch

    def __missing__(self, name: str) -> Tensor:
        raise self._batch.missing([name])


class RowData(UserDict[str, Any]):
    """Metadata of a batch's rows by name: one entry per row.

    Rewards and advantages are stored as float32 tensors. Advantages that are set here are copied to
    all tokens of the loss mask, where the loss reads them.
    """

    def __init__(self, batch: Batch, entries: Mapping[str, Any]) -> None:
        super().__init__()
        self._batch = batch
        self.data.update({name: _as_column(name, entry) for name, entry in entries.items()})

    def __setitem__(self, name: str, entry: object) -> None:
        super().__setitem__(name, _as_column(name, entry))
        if name == "advantages":
            self._batch.spread_advantages()


@dataclass(eq=False)
class Batch:
    """Rows of tokens.

    Raises
    ------
    DataError
        If tensors, or entries of the metadata, differ in the number of rows.
    """

    values: dict[str, Tensor]
    """Tensors by name, the first dimension B; those of tokens are ``[B, T]``."""
    metadata: MutableMapping[str, Any] = field(default_factory=dict)
    """Metadata of the rows by name: ``rewards`` (float32 ``[B]``), ``group_ids`` …"""

    def __post_init__(self) -> None:
        self.values = TokenData(self, self.values)
        self.metadata = RowData(self, self.metadata)
        self.check()
        if "advantages" in self.metadata and "advantages" not in self.values:
            self.spread_advantages()

    def __len__(self) -> int:
        """Return the number of rows."""
        columns = chain(self.values.values(), filter(_by_row, self.metadata.values()))
        return next(map(len, columns), 0)

    @property
    def roles_or_agents(self) -> list[str]:
        """Each row's role, or its agent if roles are not drawn: the names of their averages."""
        agents = self.metadata["agents"]
        roles = self.metadata.get("roles", [""] * len(agents))
        return [role or agent for role, agent in zip(roles, agents, strict=True)]

    @property
    def is_padding(self) -> Tensor:
        """Boolean ``[B]``: the rows that :meth:`pad_to_multiple` added."""
        return torch.tensor(self.metadata.get("is_padding", [False] * len(self)), dtype=torch.bool)

    @classmethod
    def from_trajectories(
        cls, trajectories: Sequence[Trajectory], pad_token_id: int, *, left_pad: bool = False
    ) -> Self:
        """Create a batch of trajectories, padded on the right by default.

        ``token_level_scores`` contains the reward at the last token of the loss mask.

        Raises
        ------
        DataError
            If only some of the trajectories have advantages.
        """

        def tokens(rows: list[Any], dtype: torch.dtype, pad_value: float = 0) -> Tensor:
            return pad_rows(rows, pad_value, dtype=dtype, left_pad=left_pad)

        integer, real = torch.int64, torch.float32
        mask = tokens([[1] * len(one) for one in trajectories], integer)
        loss_mask = tokens([one.loss_mask for one in trajectories], integer)
        log_probs = tokens([one.logprobs for one in trajectories], real)
        rewards = torch.tensor([one.reward for one in trajectories], dtype=real)
        values = {
            "input_ids": tokens([one.tokens for one in trajectories], integer, pad_token_id),
            "attention_mask": mask,
            "position_ids": compute_position_id_with_mask(mask),
            "loss_mask": loss_mask,
            "rollout_log_probs": torch.where(loss_mask.bool(), log_probs, 0.0),
            "token_level_scores": scores_of_tokens(rewards, loss_mask),
        }
        metadata: dict[str, Any] = {"rewards": rewards}
        for column, name in _COLUMNS.items():
            metadata[column] = [getattr(one, name) for one in trajectories]
        advantages = _token_advantages(trajectories)
        if advantages is not None:
            values["advantages"] = tokens(advantages, real)
            if all(one.advantage is not None for one in trajectories):
                row_advantages = [one.advantage for one in trajectories]
                metadata["advantages"] = torch.tensor(row_advantages, dtype=real)
        return cls(values, metadata)

    def to_trajectories(self) -> list[Trajectory]:
        """Return the trajectories of the rows, without those that were added as padding.

        Numbers have the precision of the tensors.
        """
        self.check()
        trajectories = []
        for row in torch.nonzero(~self.is_padding).flatten().tolist():
            attended = self.values["attention_mask"][row].bool()
            by_token = {
                name: self.values[name][row][attended].tolist()
                for name in ("input_ids", "loss_mask", "rollout_log_probs", "advantages")
                if name in self.values
            }
            known = {
                name: self.metadata[column][row]
                for column, name in _COLUMNS.items()
                if column in self.metadata
            }
            for name, column in {"reward": "rewards", "advantage": "advantages"}.items():
                if column in self.metadata:
                    known[name] = float(self.metadata[column][row])
            trajectories.append(
                Trajectory(
                    tokens=by_token["input_ids"],
                    loss_mask=by_token["loss_mask"],
                    logprobs=by_token.get("rollout_log_probs", [0.0] * int(attended.sum())),
                    token_advantages=by_token.get("advantages"),
                    **known,
                )
            )
        return trajectories

    def spread_advantages(self) -> None:
        """Write each row's advantage at the tokens that its loss mask shows, 0 elsewhere."""
        self._need(["loss_mask"])
        mask = self.values["loss_mask"]
        advantages = self.metadata["advantages"].to(mask.device)
        if advantages.shape != mask.shape[:1]:
            raise DataError(
                f"batch: metadata 'advantages': got the shape {tuple(advantages.shape)}, expected"
                f" {tuple(mask.shape[:1])}, one a row. Those of tokens are values: set"
                f" batch.values['advantages'], of the shape {tuple(mask.shape)}."
            )
        self.values["advantages"] = torch.where(mask.bool(), advantages.unsqueeze(1), 0.0)

    def select(self, rows: Tensor | Sequence[int]) -> Self:
        """Return some of the rows with their metadata, in the given order."""
        index = torch.as_tensor(rows, dtype=torch.long)
        values = {name: value[index.to(value.device)] for name, value in self.values.items()}
        picked = index.tolist()
        metadata: dict[str, Any] = {}
        for name, entry in self.metadata.items():
            if isinstance(entry, Tensor) and _by_row(entry):
                metadata[name] = entry[index.to(entry.device)]
            else:
                metadata[name] = [entry[row] for row in picked] if _by_row(entry) else entry
        return type(self)(values, metadata)

    def reorder(self, order: Tensor | Sequence[int]) -> Self:
        """Return the rows in another order."""
        permutation = torch.as_tensor(order, dtype=torch.long).tolist()
        if sorted(permutation) != list(range(len(self))):
            raise DataError(f"reorder: got {permutation}, expected each of {len(self)} rows once.")
        return self.select(permutation)

    def pad_to_multiple(self, multiple: int) -> Self:
        """Add rows of weight 0 until the number of rows is a multiple of ``multiple``.

        A model sees a single token of them; they are excluded from losses, scores and groups.
        """
        if multiple < 1:
            raise DataError(f"pad_to_multiple: got {multiple}, expected at least 1.")
        missing = -len(self) % multiple
        if not missing:
            return self.select(range(len(self)))
        padded = self.select([*range(len(self)), *[0] * missing])
        rows = slice(len(self), len(padded))
        for name, value in padded.values.items():
            if name != "input_ids":
                value[rows] = 0
        first = self.values["attention_mask"][0].bool().int().argmax()
        padded.values["attention_mask"][rows, first] = 1
        for name, entry in padded.metadata.items():
            if isinstance(entry, Tensor) and _by_row(entry):
                entry[rows] = 0
            elif _by_row(entry) and name in _COLUMNS:
                entry[rows] = [type(entry[0])()] * missing
        padded.metadata["is_padding"] = [*self.is_padding.tolist(), *[True] * missing]
        return padded

    def remove_redundant_left_padding(
        self,
        pad_token_id: int | None = None,
        anchor_field: str = "attention_mask",
        fields: Iterable[str] = (),
    ) -> Self:
        """Cut the columns off before the first token of any row.

        The attention mask decides; every value of the width of ``anchor_field`` is cut alike.

        Parameters
        ----------
        pad_token_id
            Not read: the token may be one that a model means, such as the end token.
        anchor_field
            A value ``[B, T]``.
        fields
            Values that must be there.
        """
        return self._cut(anchor_field, fields, left=True)

    def remove_redundant_right_padding(
        self,
        pad_token_id: int | None = None,
        anchor_field: str = "attention_mask",
        fields: Iterable[str] = (),
    ) -> Self:
        """Cut the columns off after the last token of any row; else as for the left."""
        return self._cut(anchor_field, fields, left=False)

    def _cut(self, anchor_field: str, fields: Iterable[str], *, left: bool) -> Self:
        self._need(["attention_mask", anchor_field, *fields])
        width = self.values[anchor_field].shape[1]
        used = torch.nonzero(self.values["attention_mask"].bool().any(0)).flatten().tolist()
        first, last = (used[0], used[-1]) if used else (0, 0)
        columns = slice(first, width) if left else slice(0, last + 1)
        if not used:
            columns = slice(0, 1)
        values = {
            name: value[:, columns] if value.shape[1:2] == (width,) else value
            for name, value in self.values.items()
        }
        return type(self)(values, dict(self.metadata))

    def check(self) -> None:
        """Check that all metadata has one entry per row."""
        columns = {f"values {name!r}": value for name, value in self.values.items()}
        columns |= {f"metadata {name!r}": x for name, x in self.metadata.items() if _by_row(x)}
        rows = len(self)
        for name, column in columns.items():
            if len(column) != rows:
                raise DataError(f"batch: {name}: got {len(column)} rows, expected {rows}.")

    def check_required(self, names: Sequence[str] = REQUIRED_FIELDS) -> None:
        """Check that all fields required by an update exist and have the same shape."""
        self._need(names)
        self.check()
        for name in names:
            got, expected = self.values[name].shape, self.values[names[0]].shape
            if got != expected:
                raise DataError(
                    f"batch: values {name!r}: got the shape {tuple(got)}, expected"
                    f" {tuple(expected)} as of {names[0]!r}."
                )

    def _need(self, names: Iterable[str]) -> None:
        missing = [name for name in names if name not in self.values]
        if missing:
            raise self.missing(missing)

    def missing(self, names: Sequence[str]) -> DataError:
        """Return an error that names the missing and the available values."""
        return DataError(
            f"batch: missing values {list(names)}; it has values {sorted(self.values)} and metadata"
            f" {sorted(self.metadata)}.{_PENALTY_HINT if _PENALTY & set(names) else ''}"
        )


def _as_column(name: str, entry: object) -> object:
    """Convert rewards and advantages to a tensor."""
    if name in ("advantages", "rewards"):
        return torch.as_tensor(entry, dtype=torch.float32)
    return entry


def _by_row(entry: object) -> bool:
    """Return whether metadata has an entry per row, rather than one for the batch."""
    return isinstance(entry, list | tuple) or (isinstance(entry, Tensor) and entry.dim() > 0)


def _token_advantages(trajectories: Sequence[Trajectory]) -> list[list[float]] | None:
    """Return an advantage a token, or None if no trajectory has any."""
    rows: list[list[float]] = []
    for one in trajectories:
        if one.token_advantages is not None:
            rows.append(one.token_advantages)
        elif one.advantage is not None:
            rows.append([one.advantage * mask for mask in one.loss_mask])
    if rows and len(rows) < len(trajectories):
        raise DataError(
            f"trajectories: got advantages of {len(rows)} of {len(trajectories)}, expected them"
            " of all or none."
        )
    return rows or None


def padding_data(
    batch: Batch,
    *,
    pad_token_id: int,
    max_length: int | None = None,
    left_pad: bool = False,
    truncation: Truncation = "error",
) -> Batch:
    """Return the batch with rows of one length, all padding at one end and of one token.

    Every field of the width of ``input_ids`` is moved along; position ids are recomputed.

    Parameters
    ----------
    batch
        In any layout; positions that its ``attention_mask`` hides are dropped.
    pad_token_id
        The padding of ``input_ids``; other fields are padded with 0.
    max_length
        The longest row's length by default, at least 1.
    left_pad
        Whether padding is at the start of rows instead of the end.
    truncation
        Which end of a row that is too long is truncated.

    Raises
    ------
    DataError
        If a row is too long and truncation is not allowed.
    """
    attended = batch.values["attention_mask"].bool()
    lengths = attended.sum(1)
    longest = int(lengths.max()) if len(batch) else 0
    width = max(1, longest) if max_length is None else max_length
    width = checked_width(width, longest, truncation)
    clipped_lengths = lengths.clamp(max=width).unsqueeze(1)
    column = torch.arange(width, device=attended.device).unsqueeze(0)
    order = column - (width - clipped_lengths) if left_pad else column.expand(len(batch), width)
    present = (order >= 0) & (order < clipped_lengths)
    if truncation == "left":
        order = order + lengths.unsqueeze(1) - clipped_lengths
    # A stable sort puts the positions that count first, in their order.
    positions = torch.argsort(~attended, dim=1, stable=True)
    source = positions.gather(1, order.clamp(0, max(0, attended.shape[1] - 1)))
    moved = {}
    for name, value in batch.values.items():
        if value.shape[1:2] != attended.shape[1:]:
            moved[name] = value
            continue
        index, there = source, present
        for size in value.shape[2:]:
            index = index.unsqueeze(-1).expand(*index.shape, size)
            there = there.unsqueeze(-1)
        filler = pad_token_id if name == "input_ids" else 0
        moved[name] = torch.where(there, value.gather(1, index), filler)
    moved["position_ids"] = compute_position_id_with_mask(moved["attention_mask"])
    return type(batch)(moved, dict(batch.metadata))
