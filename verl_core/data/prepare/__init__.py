"""Writing data sets as Parquet with veRL's columns, one file a data set.

A data set is a function `prepare(wanted) -> Prepared` that the catalogue names. One that is published says where its
files lie (`source.Layout`) and what a record becomes; `published` does the rest, from a folder or the hub. `generated`
is the same for problems that are made here. `job` is what `rlx prepare` becomes: `writer` puts the rows on the disk,
whole or not at all, `manifest` says what they were made from, `validate` reads them again.
"""
