#!/bin/bash
# @@{title}
# Submit it to a running Ray cluster; words after the script's name are further key=value settings. The project folder and
# rlx must be at the same paths on the cluster's machines.
set -euo pipefail

cd @@{folder}
export RAY_ADDRESS=@@{address}
if [ -z "${RAY_AUTH_MODE:-}" ] && [ -f ~/.ray/auth_token ]; then export RAY_AUTH_MODE=token; fi
RLX=(@@{rlx})
RUN=("${RLX[@]}" train @@{words}cluster.ray_address=auto "$@"@@{flags})
# RAY_OVERRIDE_JOB_RUNTIME_ENV: the run hands some variables to its ranks itself, and two hands may name the same one
exec ray job submit --no-wait --runtime-env-json @@{runtime_env} -- \
  bash -c 'cd "$1" && shift && exec env RAY_OVERRIDE_JOB_RUNTIME_ENV=1 "$@"' rlx "$PWD" "${RUN[@]}"
