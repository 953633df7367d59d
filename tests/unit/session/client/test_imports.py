"""What a user pays for `import modelyard`."""

import subprocess
import sys

import modelyard

HEAVY = ["torch", "transformers", "fastapi", "sqlalchemy", "registry", "exporters"]


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_client_imports_nothing_heavy() -> None:
    code = f"import sys, modelyard; print([name for name in {HEAVY} if name in sys.modules])"
    assert _python(code) == "[]\n"


def test_every_exported_name_exists() -> None:
    assert [name for name in modelyard.__all__ if not hasattr(modelyard, name)] == []
