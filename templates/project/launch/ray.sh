#!/bin/bash
# Start this machine's part of a Ray cluster in the environment that the project trains in, and stay until stopped.
#   on the first machine:  bash launch/ray.sh "$(hostname)" IP:6379
#   on every other:        bash launch/ray.sh FIRST_HOST IP:6379
#   then, on any of them:  rlx train cluster.ray_address=IP:6379 cluster.nnodes=N cluster.n_gpus_per_node=G
# The project folder and rlx must be at the same path on every machine.
set -euo pipefail

RLX="${RLX:-@@{rlx}}"
HEAD="${1:?name of the first machine}"
ADDRESS="${2:?IP:PORT of the first machine}"

if [ "$(hostname)" = "$HEAD" ] || [ "$(hostname -s)" = "$HEAD" ]; then
  exec $RLX env run -- ray start --head --node-ip-address="${ADDRESS%:*}" --port="${ADDRESS##*:}" --block
fi
for attempt in $(seq 30); do
  $RLX env run -- ray start --address="$ADDRESS" --block && exit 0
  echo "attempt $attempt: no Ray head at $ADDRESS yet" >&2
  sleep 5
done
exit 1
