"""`ridgeline schema`: the JSON schema of study files, for editors."""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON schema of study files; editors use it to complete keys and show what they mean."""
    from ridgeline.store.schema import json_schema

    print(json.dumps(json_schema(), indent=1))
