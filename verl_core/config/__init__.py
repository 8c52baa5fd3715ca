"""Configuration without torch: schema, profile composition, origins, checks, veRL key table, catalogue of what exists."""
