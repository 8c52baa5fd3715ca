# Read by the zsh of `rlx env shell`; ZDOTDIR leads here, and is put back before the user's files are read.
RLX_SHELL_ZDOTDIR="$ZDOTDIR"
ZDOTDIR="${RLX_USER_ZDOTDIR:-$HOME}"
[[ -f "$ZDOTDIR/.zshenv" ]] && source "$ZDOTDIR/.zshenv"
ZDOTDIR="$RLX_SHELL_ZDOTDIR"
