import subprocess
import sys


def test_a_local_directory_loads_no_sdk() -> None:
    script = """
import sys
from registry.settings import Settings
from session.resources import open_store
open_store(Settings())
assert "boto3" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
