"""Configuration: what may be configured (schema), reading it (load), and saying what is wrong with it (problems)."""
