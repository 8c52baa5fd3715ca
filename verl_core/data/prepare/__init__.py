"""Writing data sets as Parquet with veRL's columns, one file a data set.

A data set is a function `prepare(source, limit) -> Prepared`; `job` finds it by name in the catalogue, `writer` puts
what it returns on disk, whole or not at all.
"""
