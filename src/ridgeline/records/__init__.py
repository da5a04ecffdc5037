"""The nouns of a campaign. Frozen, no I/O; every other room speaks in these words."""
