"""Which file an engine's process writes to."""

from tests.controller.controller_tiny import tiny_config
from verl_core.controller.engine_logs import engine_log


def test_an_engine_writes_into_its_runs_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = tiny_config("smoke", "trainer.experiment_name=e").trainer
    assert engine_log(trainer, 3) is None  # a machine that does not see the run's folder
    (tmp_path / "runs/smoke/e").mkdir(parents=True)
    assert engine_log(trainer, 3) == tmp_path / "runs/smoke/e/logs/rollout_3.log"
    assert engine_log(tiny_config("smoke").trainer, 3) is None  # rlx eval
