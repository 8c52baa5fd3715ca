"""Weights & Biases: a copy of the metrics that can neither block nor stop a run."""

import logging
import netrc
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from verl_core.config.errors import UserError
from verl_core.tracking.files import write_atomic

log = logging.getLogger(__name__)

INIT_TIMEOUT_S = 30.0
FINISH_TIMEOUT_S = 60.0


def check_mode() -> None:
    """Refuses a WANDB_MODE that wandb does not know before anything starts. Raises UserError."""
    from wandb import Settings

    choices = get_args(Settings.model_fields["mode"].annotation)
    mode = os.environ.get("WANDB_MODE")
    if mode and mode not in choices:
        raise UserError(f"WANDB_MODE={mode}: not one of {', '.join(choices)}", "export WANDB_MODE=offline")


def has_key() -> bool:
    """Whether wandb can log in without asking at the terminal."""
    import wandb

    settings = wandb.setup().settings
    if settings.api_key or settings.identity_token_file:
        return True
    hosts = {urlsplit(settings.base_url).netloc}
    if settings.base_url == wandb.Settings.model_fields["base_url"].default:
        hosts.add("api.wandb.ai")  # the public server's earlier name, under which `wandb login` stored keys
    try:
        return not hosts.isdisjoint(netrc.netrc(os.environ.get("NETRC")).hosts)
    except (OSError, netrc.NetrcParseError):
        return False


class WandbTracker:
    """Logs to the run whose id stands in RUN_DIR/wandb_run_id, so that a resumed run goes on in the same place, also
    with changed settings. Without a key or a route to the server it writes offline, and says how to send it later.

    Steps are a metric of their own (`step`), not wandb's counter, which refuses to go back: steps taken again after a
    resume from an older checkpoint are shown.
    """

    name = "wandb"
    essential = False

    def __init__(self, run_dir: Path, project: str, experiment: str, config: Mapping[str, Any]):
        import wandb

        self._run_dir, self._project, self._experiment = run_dir, project, experiment
        mode = os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")
        if mode == "offline" and not os.environ.get("WANDB_MODE"):
            log.warning("wandb: no API key, writing offline; send it later with: wandb sync %s/wandb/*run-*", run_dir)
        try:
            self._run = self._init(mode)
        except Exception as e:
            if mode != "online":
                raise
            log.warning("wandb: cannot reach the server (%s), writing offline", str(e).splitlines()[0])
            wandb.teardown()  # frees the run id, which the failed attempt still holds
            self._run = self._init("offline")
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        self._run.config.update(dict(config), allow_val_change=True)

    def _init(self, mode: Any) -> Any:
        import wandb

        return wandb.init(
            project=self._project,
            name=self._experiment,
            dir=self._run_dir,
            id=self._run_id(),
            resume="allow",
            settings=wandb.Settings(
                mode=mode,
                init_timeout=INIT_TIMEOUT_S,
                finish_timeout=FINISH_TIMEOUT_S,
                login_timeout=INIT_TIMEOUT_S,
                console="off",
                silent=True,
            ),
        )

    def _run_id(self) -> str:
        path = self._run_dir / "wandb_run_id"
        if not path.exists():
            write_atomic(path, secrets.token_hex(4) + "\n")
        return path.read_text(encoding="utf-8").strip()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def finish(self, exit_code: int) -> None:
        import wandb

        self._run.finish(exit_code=exit_code)
        wandb.teardown()  # waits for its writer: finish alone returns before the file is whole
