#!/bin/bash
# @@{title}
# Train in a container; words after the script's name are further key=value settings. rlx is mounted from its checkout
# (RLX_HOME); packages and models stay in the cache folder of your home, so that a second start downloads nothing. An
# image that has rlx needs none of this: launch.docker.image.
set -euo pipefail

cd @@{folder}
if [ -z "${RLX_HOME:-}" ]; then RLX_HOME=@@{checkout}; fi
mkdir -p "$HOME/.cache"
exec docker run @@{options} \
  --volume "$RLX_HOME:/rlx:ro" --volume "$PWD:/project" --volume "$HOME/.cache:/root/.cache" --workdir /project \
  nvidia/cuda:13.0.2-devel-ubuntu24.04 bash -c '
    set -e
    { apt-get update -qq && apt-get install -qq -y python3-venv git; } > /dev/null
    python3 -m venv /tools && /tools/bin/pip install -q uv
    UV_PROJECT_ENVIRONMENT=/tools/rlx /tools/bin/uv sync -q --frozen --no-install-project --project /rlx
    export PYTHONPATH=/rlx/cli:/rlx
    exec /tools/rlx/bin/python -m rlx train "$@"
  ' rlx @@{words}"$@"@@{flags}
