"""Queues: what a queue is, how it is read from YAML and JSON, and what a payload must hold."""
