# Read by the zsh of `rlx env shell`: the user's own settings, then the environment in front of what they put on PATH.
ZDOTDIR="${RLX_USER_ZDOTDIR:-$HOME}"
[[ -f "$ZDOTDIR/.zshrc" ]] && source "$ZDOTDIR/.zshrc"
[[ -n "$RLX_USER_ZDOTDIR" ]] || unset ZDOTDIR
export PATH="$RLX_SHELL_PATH"
PROMPT="($RLX_SHELL) $PROMPT"
unset RLX_SHELL_PATH RLX_SHELL_ZDOTDIR RLX_USER_ZDOTDIR
