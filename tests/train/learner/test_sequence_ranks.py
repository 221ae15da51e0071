"""How many ranks can compute each row together."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from ltrain_train.errors import BadRun
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.verl_backend.backend import check_sequence_ranks
from ltrain_transforms.recipe import Train


def job_of(folder: Path, ranks: int, **config: object) -> Job:
    (folder / "config.json").write_text(json.dumps(config))
    train = Train(ranks=ranks, sequence_ranks=ranks)
    return Job.from_train(train, base=folder, policy="p", ranks=ranks)


def test_the_ranks_divide_the_heads_of_the_attention(tmp_path: Path) -> None:
    heads = {"model_type": "llama", "num_attention_heads": 12, "num_key_value_heads": 4}
    for ranks in (1, 2, 4, 12):
        check_sequence_ranks(job_of(tmp_path, ranks, **heads))
    with pytest.raises(BadRun, match=r"is 3 in \[train\].* 12 attention heads .*: 1, 2, 4, 12\."):
        check_sequence_ranks(job_of(tmp_path, 3, **heads))


def test_a_model_whose_rows_are_alone_has_one_rank_for_each_row(tmp_path: Path) -> None:
    check_sequence_ranks(job_of(tmp_path, 1, model_type="mamba"))
    with pytest.raises(BadRun, match=r"model type 'mamba'\)\. Set `sequence_ranks` to 1\."):
        check_sequence_ranks(job_of(tmp_path, 2, model_type="mamba"))


def test_a_batch_has_a_part_for_each_group_of_ranks(tmp_path: Path) -> None:
    train = Train(ranks=6, sequence_ranks=2)
    assert Job.from_train(train, base=tmp_path, policy="p", ranks=6).parts == 3


def test_each_row_needs_all_of_its_ranks() -> None:
    with pytest.raises(ValidationError, match="Set `ranks` to a multiple of `sequence_ranks`"):
        Train(ranks=3, sequence_ranks=2)
