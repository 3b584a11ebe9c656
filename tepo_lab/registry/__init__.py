"""What can be run: arms, profiles and sweeps as YAML, composed by Hydra, checked by pydantic, expanded into runs."""
