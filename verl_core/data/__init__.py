"""Prompts and demonstrations.

`PromptDataset` reads veRL's Parquet (or JSON, or a builtin task) into checked, tokenised `PromptRow`s; `PromptLoader`
deals them out in a resumable order; `DemonstrationSource` makes supervised batches of (question, answer) pairs;
`show_your_work` is the task that needs no download; `prepare/` writes data sets to Parquet, one file a data set.
"""
