"""Training, rollout, rewards and configuration of rlx; `rlx` itself stands in `cli/rlx`."""

import warnings

# Python says so each time it compiles torchao, which transformers imports: in a new or a read-only environment.
warnings.filterwarnings("ignore", "invalid escape sequence", SyntaxWarning, module=r".*[/\\]torchao[/\\]")
