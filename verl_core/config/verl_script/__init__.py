"""Reads a shell script that launches veRL, without running anything of it.

`read_script` gives the launches with their words: variables, arrays, defaults, arithmetic and tests that the script
itself decides are followed; what it does not decide (commands, loops, files) is kept as a reported unknown. `hydra`
reads the `key=value` words of a launch.
"""

from verl_core.config.verl_script.script import Script, read_script

__all__ = ["Script", "read_script"]
