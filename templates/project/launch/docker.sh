#!/bin/bash
# Train in a container: bash launch/docker.sh [key=value ...]
# rlx is mounted from its checkout (RLX_HOME); packages and models stay in the cache folders of your home, so that a
# second start downloads nothing. --shm-size: ranks and data workers exchange tensors through shared memory.
set -euo pipefail

IMAGE="${IMAGE:-nvidia/cuda:13.0.2-devel-ubuntu24.04}"
RLX_HOME="${RLX_HOME:?path of the rlx checkout}"
GPUS="${GPUS:-all}"
mkdir -p "$HOME/.cache"

exec docker run --rm --init --gpus "$GPUS" --shm-size=16g --ulimit memlock=-1 \
  --volume "$RLX_HOME:/rlx" --volume "$PWD:/project" --volume "$HOME/.cache:/root/.cache" --workdir /project \
  --env HF_TOKEN --env WANDB_API_KEY \
  "$IMAGE" bash -c '
    set -e
    apt-get update -qq && apt-get install -qq -y python3-venv git > /dev/null
    python3 -m venv /tools && /tools/bin/pip install -q uv
    export PATH=/tools/bin:$PATH UV_PROJECT_ENVIRONMENT=/tools/rlx
    exec uv run --frozen --project /rlx rlx train --resume "$@"
  ' train "$@"
