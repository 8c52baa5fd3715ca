"""Neighbouring ranks that share a rollout engine."""

from tests.checkpoint.checkpoint_models import on_ranks
from tests.controller.span_ranks import tell


def test_the_first_of_each_span_has_the_engine_and_all_gpus_of_it(tmp_path):
    on_ranks(4, tell, str(tmp_path))
    told = [(tmp_path / f"{rank}.txt").read_text() for rank in range(4)]
    assert told[0] == "True {'CUDA_VISIBLE_DEVICES': 'GPU-0,GPU-1'} 2"
    assert told[2] == "True {'CUDA_VISIBLE_DEVICES': 'GPU-2,GPU-3'} 2"
    assert [t.split()[0] for t in told] == ["True", "False", "True", "False"]
    assert all(t.endswith(" 2") for t in told)  # nobody went on before both engines were up
