"""The configuration of a run: its typed schema, YAML with positions, and how both are matched."""

from naspipe.config.schema import RunConfig as RunConfig
