#!/bin/bash
@@{options}
# @@{title}
# Submit it by sbatch from the project folder; words after its name are further key=value settings.
# @@{save_before} s before the time limit Slurm sends SIGTERM: the run saves a checkpoint and ends, the job is queued again under
# the same number, and goes on from there (launch.slurm.max_restarts: how often).
set -euo pipefail
@@{environment}
cd @@{folder}
RLX=(@@{rlx})
WORDS=(@@{words}trainer.experiment_name=@@{name} "$@")
TRAIN=""
STATUS=1
TIME_IS_UP=false

stop() {
  local left=$((${SLURM_JOB_END_TIME:-0} - $(date +%s)))
  if [ -n "${SLURM_JOB_END_TIME:-}" ] && [ "$left" -le $((@@{save_before} + 60)) ]; then TIME_IS_UP=true; fi
  if [ -z "$TRAIN" ]; then exit 143; fi
  kill -TERM "$TRAIN" 2>/dev/null || true
}
trap stop TERM

@@{cluster}
"${RLX[@]}" train "${WORDS[@]}" @@{flags} &
TRAIN=$!
# wait would return at the first signal, while the run still saves; the trap runs between two short sleeps
while kill -0 "$TRAIN" 2>/dev/null; do
  if ! machines_are_up; then
    echo "a machine of the job has gone: the run cannot go on" >&2
    kill -TERM "$TRAIN" 2>/dev/null || true
    for _ in $(seq 30); do
      kill -0 "$TRAIN" 2>/dev/null || break
      sleep 1
    done
    kill -KILL "$TRAIN" 2>/dev/null || true
    wait "$TRAIN" || true
    exit 1
  fi
  sleep 1 &
  wait $! || true
done
STATUS=0
wait "$TRAIN" || STATUS=$?
clean_up
trap - EXIT

if "$TIME_IS_UP" && [ "$STATUS" -eq 143 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt @@{max_restarts} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$STATUS"
