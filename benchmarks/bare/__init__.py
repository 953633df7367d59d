"""What our service is measured against: the least that FastAPI and SQLAlchemy can do."""
