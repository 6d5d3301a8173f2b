"""The configuration of a run: its typed schema, YAML with positions, and the check of one against the other."""

from naspipe.config.schema import RunConfig as RunConfig
