"""What a run tells: metric names (registry), where they go (trackers), how long things take (timing), what stands in
the run directory (records), and pictures of it (plot).

Nothing here imports torch at package level: plots are drawn in an environment without it. `metrics.jsonl` is the
record; every other tracker is a copy that may fail without harm.
"""
