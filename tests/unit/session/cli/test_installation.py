"""The folder of an installation."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from registry.settings import Settings
from session.cli.installation import open_home


def test_processes_that_look_at_one_home_at_once_all_find_it_writable(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: open_home(settings), range(400))) == {tmp_path / "home"}
    assert list((tmp_path / "home").iterdir()) == []
