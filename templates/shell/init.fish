# Run by the fish of `rlx env shell` after the user's own settings: the environment in front of what they put on PATH.
set -gx PATH (string split : -- $RLX_SHELL_PATH)
set -e RLX_SHELL_PATH
functions -q fish_prompt; and functions -c fish_prompt rlx_users_prompt
function fish_prompt
    echo -n "($RLX_SHELL) "
    functions -q rlx_users_prompt; and rlx_users_prompt
end
