#!/bin/bash
# Start this machine's part of a Ray cluster in the environment that the project trains in, and stay until stopped.
#   on the first machine:  bash launch/ray-node.sh head 6379
#   on every other:        bash launch/ray-node.sh FIRST_MACHINE 6379
#   then, on any of them:  RAY_ADDRESS=FIRST_MACHINE:6379 bash launch/ray.sh
# Words after the port are key=value settings, for example rollout.engine=sglang. The project folder and rlx must be at
# the same paths on every machine. ~/.ray/auth_token, which the first machine makes, keeps strangers out of the cluster:
# copy it to the others where homes are not shared.
set -euo pipefail

cd "$(dirname "$0")/.."
HEAD="${1:?head, or the name of the first machine}"
PORT="${2:?port of the first machine}"
shift 2
RLX=(@@{rlx})@@{environment}

export RAY_AUTH_MODE=token
if [ "$HEAD" = head ]; then
  "${RLX[@]}" env run "$@" -- ray get-auth-token --generate > /dev/null
  exec "${RLX[@]}" env run "$@" -- ray start --head --port="$PORT" --block
fi
until (exec 3<> "/dev/tcp/$HEAD/$PORT") 2>/dev/null; do
  if [ "$SECONDS" -gt 900 ]; then
    echo "no Ray head at $HEAD:$PORT after 900 s" >&2
    exit 1
  fi
  sleep 2
done
exec "${RLX[@]}" env run "$@" -- ray start --address="$HEAD:$PORT" --block
