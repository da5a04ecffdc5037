"""The nouns of a campaign. Frozen, no I/O; every other room uses these types."""
