"""Prompts, and answers to learn from.

`PromptDataset` reads veRL's Parquet (or JSON, or a builtin task) into checked, tokenised `PromptRow`s; `PromptLoader`
deals them out in a resumable order: a `Stream` for each source of a mixture, `Turns` between them, a `Curriculum` in
place of chance. `ExampleDataset` is one whose rows have answers: `example_rows.py` reads the forms that data sets have,
`conversation.py` makes ids and masks of them by the chat template. `DemonstrationSource` makes the batches of the
warm-up; `show_your_work` is the task that needs no download; `prepare/` writes data sets to Parquet, one file a data
set; `inspection/` looks at files before a run does.
"""
