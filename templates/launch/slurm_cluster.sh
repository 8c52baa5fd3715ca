# A Ray node on each machine, started in the environment that the run trains in.
NODES=@@{nodes}
PATIENCE_S=900 # each machine may have to make its environment first
RAY_DIR="/tmp/rlx-ray-$SLURM_JOB_ID"
CLUSTER=""
# A Ray cluster runs whatever it is sent: a token of this job's own keeps everybody else out
RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

in_environment() { "${RLX[@]}" env run "${WORDS[@]}" -- "$@"; }

ray_node() {  # runs on each machine; the first one holds this script and becomes the head
  @@{setup}
  local start=("${RLX[@]}" env run "${WORDS[@]}" -- ray start --num-cpus="$SLURM_CPUS_PER_TASK" --block)
  if [ "$SLURM_NODEID" -eq 0 ]; then
    exec "${start[@]}" --head --node-ip-address="$HEAD" --port="$PORT" --ray-client-server-port="$CLIENT_PORT" \
      --include-dashboard=false --temp-dir="$RAY_DIR"
  fi
  until (exec 3<> "/dev/tcp/$HEAD/$PORT") 2>/dev/null; do
    if [ "$SECONDS" -gt "$PATIENCE_S" ]; then
      echo "$(hostname): no Ray head at $HEAD:$PORT after $PATIENCE_S s" >&2
      return 1
    fi
    sleep 2
  done
  exec "${start[@]}" --address="$HEAD:$PORT"
}

machines_are_up() { kill -0 "$CLUSTER" 2>/dev/null; }

clean_up() {
  trap '' TERM
  if [ -n "$CLUSTER" ]; then
    kill -TERM "$CLUSTER" 2>/dev/null || true
    for _ in $(seq 60); do
      machines_are_up || break
      sleep 1
    done
    kill -KILL "$CLUSTER" 2>/dev/null || true
  fi
  if [ "$STATUS" -eq 0 ] || [ "$STATUS" -eq 143 ]; then
    srun --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 rm -rf "$RAY_DIR" || true
  else
    echo "Ray's logs are kept in $RAY_DIR/session_latest/logs on each machine" >&2
  fi
}
trap clean_up EXIT
FOUND="$(in_environment python -c '
import socket, ray
with socket.socket() as one, socket.socket() as two:
    one.bind(("", 0)), two.bind(("", 0))
    print(ray.util.get_node_ip_address(), one.getsockname()[1], two.getsockname()[1])
')"
read -r HEAD PORT CLIENT_PORT <<< "$FOUND"

srun --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  --kill-on-bad-exit=1 bash -c "set -euo pipefail
$(declare -p RLX WORDS HEAD PORT CLIENT_PORT PATIENCE_S RAY_DIR)
$(declare -f ray_node)
ray_node" &
CLUSTER=$!
SECONDS=0
# timeout: ray.init waits for minutes where the head has died
until in_environment timeout 30 python -c '
import sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
sys.exit(sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]))
' "$HEAD:$PORT" "$NODES" > /dev/null 2>&1; do
  if ! machines_are_up || [ "$SECONDS" -gt "$PATIENCE_S" ]; then
    echo "Ray did not come up on $NODES machines within $SECONDS s" >&2
    exit 1
  fi
  sleep 2
done
WORDS+=(cluster.ray_address="$HEAD:$PORT")
