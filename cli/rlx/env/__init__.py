"""Software environments. One lockfile; each set of extras gets its own folder, made by uv and never holding rlx itself.

`lockfile` reads what the lock and pyproject.toml say, `uv` runs uv, `manager` makes and reuses folders, `interpreter`
serves RLX_PYTHON, `launch` becomes a job inside an environment.
"""
