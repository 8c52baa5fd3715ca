#!/bin/bash
# @@{title}
# Train in a container; words after the script's name are further key=value settings. rlx is mounted from its checkout
# (RLX_HOME), prepared data from ~/data. Packages and models stay in a cache folder of the container's own, whose files
# belong to root, so that a second start downloads nothing. An image that has rlx needs less: launch.docker.image.
set -euo pipefail

cd @@{folder}
if [ -z "${RLX_HOME:-}" ]; then RLX_HOME=@@{checkout}; fi
CACHE="$HOME/.cache/rlx-docker"
mkdir -p "$CACHE" "$HOME/data"
OPTIONS=(@@{options})
exec docker run "${OPTIONS[@]}" --volume "$PWD:/project" --workdir /project \
  --volume "$RLX_HOME:/rlx:ro" --volume "$CACHE:/root/.cache" --volume "$HOME/data:/root/data:ro" \
  nvidia/cuda:13.0.2-devel-ubuntu24.04 bash -c '
    set -e
    { apt-get update -qq && apt-get install -qq -y python3-venv git; } > /dev/null
    python3 -m venv /tools && /tools/bin/pip install -q uv
    UV_PROJECT_ENVIRONMENT=/tools/rlx /tools/bin/uv sync -q --frozen --no-install-project --project /rlx
    export PYTHONPATH=/rlx/cli:/rlx
    exec /tools/rlx/bin/python -m rlx train "$@"
  ' rlx @@{words}"$@"@@{flags}
