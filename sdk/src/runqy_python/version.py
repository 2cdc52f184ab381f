"""The version of this distribution, also told to the worker."""

__version__ = "0.3.0"
