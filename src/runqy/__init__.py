"""runqy: a distributed task queue for machine-learning inference and other heavy work."""

__version__ = "0.5.0"
