"""The local stack: PostgreSQL, RabbitMQ, an embedding model and the services on one machine."""
