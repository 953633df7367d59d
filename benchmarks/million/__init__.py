"""A group with many versions in each of two registries, on one PostgreSQL server."""
