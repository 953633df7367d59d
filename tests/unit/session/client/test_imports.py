"""What a user pays for `import modelyard`."""

import pickle
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


def test_exported_errors_print_as_they_are_imported() -> None:
    assert {item.__module__ for item in vars(modelyard).values() if isinstance(item, type)} == {
        "modelyard"
    }
    error = pickle.loads(pickle.dumps(modelyard.InvalidInput("x")))
    assert (type(error), str(error)) == (modelyard.InvalidInput, "x")
