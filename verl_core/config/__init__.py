"""Configuration, without torch: `schema` says what there is, `compose` makes one configuration from profile, file and
command line, `checks` refuses what cannot be right, `effective` fills in what follows, `write` saves and reads it;
`describe`, `derived` and `explain` say what keys mean, `json_schema` says it to editors; `catalogue` lists what exists,
`verl_keys` translates veRL's keys, `errors` and `process` say how things end."""
