#!/bin/bash
# @@{title}
# Train in a container of an image with rlx; words after the script's name are further key=value settings. Models come
# from and go to ~/.cache/huggingface, prepared data comes from ~/data.
set -euo pipefail

cd @@{folder}
MODELS="$HOME/.cache/huggingface"
mkdir -p "$MODELS" "$HOME/data"
OPTIONS=(@@{options})
exec docker run "${OPTIONS[@]}" --volume "$PWD:/project" --workdir /project \
  --volume "$MODELS:/root/.cache/huggingface" --volume "$HOME/data:/root/data:ro" \
  @@{image} rlx train @@{words}"$@"@@{flags}
