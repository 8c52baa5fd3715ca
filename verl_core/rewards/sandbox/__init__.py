"""Running programs that a model has written, and judging them where they cannot reach.

`protocol.Sandbox` runs one program; `choose.sandbox_of` gives the configuration's back end. Those of this machine
(`bubblewrap`, `nsjail`, `rlimits`) differ in a command line (`local`), and share the limits held from outside
(`supervise`) and the filter of system calls (`seccomp`); `remote` is a client. `asserts` and `cases` form verdicts from
what comes back; what runs inside is in `inside/`.
"""
