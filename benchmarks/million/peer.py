"""MLflow's registry: filled by SQL, asked through its client. Runs in an environment of its own.

python peer.py URL fill COUNT | python peer.py URL measure | python peer.py URL latest
"""

import sys
from collections.abc import Callable

from mlflow import MlflowClient  # type: ignore[import-not-found]
from sqlalchemy import create_engine, text
from timing import tell, timed  # type: ignore[import-not-found]

NAME = "large"
VERSIONS = """
INSERT INTO model_versions (workspace, name, version, creation_time, last_updated_time,
    description, user_id, current_stage, source, run_id, run_link, status)
SELECT workspace, name, n, 1767225600000 + n * 10000::bigint, 1767225600000 + n * 10000::bigint,
    'run ' || n || ' of sweep ' || n % 977, 'me',
    CASE WHEN n % 100000 = 3 THEN 'Production' WHEN n % 1000 = 5 THEN 'Staging'
         WHEN n % 10 = 1 THEN 'Archived' ELSE 'None' END,
    's3://bucket/large/pkg_' || n, 'ses_' || n / 1000, '', 'READY'
FROM registered_models, generate_series(1, {count}) n
"""
TAGS = """
INSERT INTO model_version_tags (workspace, name, version, key, value)
SELECT workspace, name, n, 'kind',
    CASE WHEN n % 20 = 0 THEN 'merged' WHEN n % 4 = 1 THEN 'state' ELSE 'adapter' END
FROM registered_models, generate_series(1, {count}) n
UNION ALL SELECT workspace, name, n, 'nightly', '1'
FROM registered_models, generate_series(3, {count}, 3) n
UNION ALL SELECT workspace, name, n, 'golden', '1'
FROM registered_models, generate_series(7, {count}, 50000) n
"""
ALIASES = """
INSERT INTO registered_model_aliases (workspace, name, alias, version)
SELECT workspace, name, 'alias-' || n, n * 10000
FROM registered_models, generate_series(1, {count} / 10000) n
"""


def fill(url: str, count: int) -> None:
    MlflowClient(registry_uri=url).create_registered_model(NAME)
    with create_engine(url).connect() as connection:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        for statement in (VERSIONS, TAGS, ALIASES):
            connection.execute(text(statement.format(count=count)))
        connection.execute(text("VACUUM ANALYZE"))


def questions(client: MlflowClient) -> dict[str, Callable[[], object]]:
    def page(condition: str = "", limit: int = 50) -> Callable[[], object]:
        query = f"name = '{NAME}'" + (f" and {condition}" if condition else "")
        order = ["version_number DESC"]
        return lambda: client.search_model_versions(query, limit, order)

    return {
        "the newest version": page(limit=1),
        "the newest of a kind": page("tags.kind = 'state'", limit=1),
        "by alias": lambda: client.get_model_version_by_alias(NAME, "alias-1"),
        "page": page(),
        "page of a kind": page("tags.kind = 'merged'"),
        "page of a common tag": page("tags.nightly = '1'"),
        "page of a rare tag": page("tags.golden = '1'"),
        "page of a kind and a tag": page("tags.kind = 'state' and tags.nightly = '1'"),
        "page of a session": page("run_id = 'ses_17'"),
        "register one more": lambda: client.create_model_version(NAME, "s3://bucket/large/new"),
    }


def main(url: str, what: str, *values: str) -> None:
    client = MlflowClient(registry_uri=url)
    match what:
        case "fill":
            fill(url, int(values[0]))
        case "latest":
            tell({what: timed(lambda: client.get_latest_versions(NAME))})
        case _:
            tell({name: timed(call) for name, call in questions(client).items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
