"""What was played: nested dictionaries of arrays, datasets, files, statistics and transcripts.

Names are imported on first use, so that ``import ratchet.rollouts`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.rollouts.arrays import STRING
    from ratchet.rollouts.batch import Batch
    from ratchet.rollouts.dataset import NestedArrayDictDataset
    from ratchet.rollouts.files import load_nested_array_dict, save_nested_array_dict
    from ratchet.rollouts.joining import concatenate_nested_array_dicts, stack_nested_array_dicts
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from ratchet.rollouts.order import DataOrder
    from ratchet.rollouts.padding import compute_position_id_with_mask, padding_data
    from ratchet.rollouts.spec import rollout_spec
    from ratchet.rollouts.specs import (
        ArraySpec,
        BoolArraySpec,
        CompositeSpec,
        FloatArraySpec,
        IntArraySpec,
        StringArraySpec,
    )
    from ratchet.rollouts.tokens import ReplyTokens, tokens_of
    from ratchet.rollouts.trajectory import Trajectory, load_trajectories, save_trajectories
    from ratchet.rollouts.transcripts import (
        processed_transcripts,
        prompt_transcripts,
        raw_transcripts,
        read_report_transcripts,
        report_transcripts,
        write_report_transcripts,
        write_transcripts,
    )

__all__ = [
    "STRING",
    "ArraySpec",
    "Batch",
    "BoolArraySpec",
    "CompositeSpec",
    "DataOrder",
    "FloatArraySpec",
    "IntArraySpec",
    "NestedArrayDict",
    "NestedArrayDictDataset",
    "ReplyTokens",
    "StringArraySpec",
    "Trajectory",
    "compute_position_id_with_mask",
    "concatenate_nested_array_dicts",
    "load_nested_array_dict",
    "load_trajectories",
    "padding_data",
    "processed_transcripts",
    "prompt_transcripts",
    "raw_transcripts",
    "read_report_transcripts",
    "report_transcripts",
    "rollout_spec",
    "save_nested_array_dict",
    "save_trajectories",
    "stack_nested_array_dicts",
    "tokens_of",
    "write_report_transcripts",
    "write_transcripts",
]

_HOMES = {
    "STRING": "ratchet.rollouts.arrays",
    "ArraySpec": "ratchet.rollouts.specs",
    "Batch": "ratchet.rollouts.batch",
    "BoolArraySpec": "ratchet.rollouts.specs",
    "CompositeSpec": "ratchet.rollouts.specs",
    "DataOrder": "ratchet.rollouts.order",
    "FloatArraySpec": "ratchet.rollouts.specs",
    "IntArraySpec": "ratchet.rollouts.specs",
    "NestedArrayDict": "ratchet.rollouts.nested_array_dict",
    "NestedArrayDictDataset": "ratchet.rollouts.dataset",
    "ReplyTokens": "ratchet.rollouts.tokens",
    "StringArraySpec": "ratchet.rollouts.specs",
    "Trajectory": "ratchet.rollouts.trajectory",
    "compute_position_id_with_mask": "ratchet.rollouts.padding",
    "concatenate_nested_array_dicts": "ratchet.rollouts.joining",
    "load_nested_array_dict": "ratchet.rollouts.files",
    "load_trajectories": "ratchet.rollouts.trajectory",
    "padding_data": "ratchet.rollouts.padding",
    "processed_transcripts": "ratchet.rollouts.transcripts",
    "prompt_transcripts": "ratchet.rollouts.transcripts",
    "raw_transcripts": "ratchet.rollouts.transcripts",
    "read_report_transcripts": "ratchet.rollouts.transcripts",
    "report_transcripts": "ratchet.rollouts.transcripts",
    "rollout_spec": "ratchet.rollouts.spec",
    "save_nested_array_dict": "ratchet.rollouts.files",
    "save_trajectories": "ratchet.rollouts.trajectory",
    "stack_nested_array_dicts": "ratchet.rollouts.joining",
    "tokens_of": "ratchet.rollouts.tokens",
    "write_report_transcripts": "ratchet.rollouts.transcripts",
    "write_transcripts": "ratchet.rollouts.transcripts",
}


__getattr__ = lazy_names(__name__, _HOMES)
