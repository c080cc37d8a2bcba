"""The HTTP face: Confluent's REST v3 for producing and administration, health, and metrics. A client of the brokers."""
