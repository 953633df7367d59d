"""A client's command starts at once and works where only the client is installed."""

import json
import subprocess
import sys

HEAVY = ["torch", "transformers", "fastapi", "sqlalchemy", "alembic", "pydantic_settings"]


def test_the_commands_load_nothing_heavy_before_one_runs() -> None:
    loaded = f"[name for name in {HEAVY} if name in sys.modules]"
    code = f"import json, sys, session.cli.root; print(json.dumps({loaded}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == []
