#!/bin/bash
# @@{title}
# Train in a container of an image with rlx; words after the script's name are further key=value settings. Packages and
# models stay in the cache folder of your home, so that a second start downloads nothing.
set -euo pipefail

cd @@{folder}
mkdir -p "$HOME/.cache"
exec docker run @@{options} \
  --volume "$PWD:/project" --volume "$HOME/.cache:/root/.cache" --workdir /project \
  @@{image} rlx train @@{words}"$@"@@{flags}
