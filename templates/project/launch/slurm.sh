#!/bin/bash
#SBATCH --job-name=@@{project}
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --output=slurm-%j.log
# Submit from the project folder: sbatch launch/slurm.sh [key=value ...]
# Two minutes before the time limit Slurm sends SIGTERM, rlx saves a checkpoint and ends; a requeued job goes on from it.
# Several nodes: set --nodes above; a Ray cluster is then started over them with the same environment on each.
set -euo pipefail

RLX="${RLX:-@@{rlx}}"
NODES="${SLURM_JOB_NUM_NODES:-1}"
GPUS="${SLURM_GPUS_ON_NODE:-1}"
RUN="trainer.experiment_name=${EXPERIMENT:-slurm-${SLURM_JOB_ID:-0}}"

if [ "$NODES" -eq 1 ]; then
  exec $RLX train --resume "$RUN" cluster.n_gpus_per_node="$GPUS" "$@"
fi

HEAD="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
ADDRESS="$(getent ahostsv4 "$HEAD" | awk '{ print $1; exit }'):${RAY_PORT:-6379}"
srun --nodes="$NODES" --ntasks="$NODES" bash launch/ray.sh "$HEAD" "$ADDRESS" &
CLUSTER=$!
trap 'kill "$CLUSTER" 2>/dev/null || true' EXIT
until $RLX env run -- ray status --address "$ADDRESS" > /dev/null 2>&1; do
  kill -0 "$CLUSTER"
  sleep 2
done
$RLX train --resume "$RUN" cluster.ray_address="$ADDRESS" cluster.nnodes="$NODES" cluster.n_gpus_per_node="$GPUS" "$@" &
TRAIN=$!
trap 'kill -TERM "$TRAIN"' TERM
wait "$TRAIN" || wait "$TRAIN"
