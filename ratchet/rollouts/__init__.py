"""Rollouts: nested dictionaries of arrays, datasets, files, statistics and transcripts.

Names are imported on first use, so that ``import ratchet.rollouts`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.rollouts.arrays import STRING as STRING
    from ratchet.rollouts.batch import Batch as Batch
    from ratchet.rollouts.batch import padding_data as padding_data
    from ratchet.rollouts.concatenation import (
        concatenate_nested_array_dicts as concatenate_nested_array_dicts,
    )
    from ratchet.rollouts.concatenation import stack_nested_array_dicts as stack_nested_array_dicts
    from ratchet.rollouts.dataset import DataOrder as DataOrder
    from ratchet.rollouts.dataset import NestedArrayDictDataset as NestedArrayDictDataset
    from ratchet.rollouts.files import load_nested_array_dict as load_nested_array_dict
    from ratchet.rollouts.files import save_nested_array_dict as save_nested_array_dict
    from ratchet.rollouts.nested_array_dict import NestedArrayDict as NestedArrayDict
    from ratchet.rollouts.padding import (
        compute_position_id_with_mask as compute_position_id_with_mask,
    )
    from ratchet.rollouts.specs import ArraySpec as ArraySpec
    from ratchet.rollouts.specs import BoolArraySpec as BoolArraySpec
    from ratchet.rollouts.specs import CompositeSpec as CompositeSpec
    from ratchet.rollouts.specs import FloatArraySpec as FloatArraySpec
    from ratchet.rollouts.specs import IntArraySpec as IntArraySpec
    from ratchet.rollouts.specs import StringArraySpec as StringArraySpec
    from ratchet.rollouts.specs import rollout_spec as rollout_spec
    from ratchet.rollouts.tokens import ReplyTokens as ReplyTokens
    from ratchet.rollouts.tokens import tokens_of as tokens_of
    from ratchet.rollouts.trajectory import Trajectory as Trajectory
    from ratchet.rollouts.trajectory import load_trajectories as load_trajectories
    from ratchet.rollouts.trajectory import save_trajectories as save_trajectories
    from ratchet.rollouts.transcripts import processed_transcripts as processed_transcripts
    from ratchet.rollouts.transcripts import prompt_transcripts as prompt_transcripts
    from ratchet.rollouts.transcripts import raw_transcripts as raw_transcripts
    from ratchet.rollouts.transcripts import read_report_transcripts as read_report_transcripts
    from ratchet.rollouts.transcripts import report_transcripts as report_transcripts
    from ratchet.rollouts.transcripts import write_report_transcripts as write_report_transcripts
    from ratchet.rollouts.transcripts import write_transcripts as write_transcripts

export_lazily(__name__)
