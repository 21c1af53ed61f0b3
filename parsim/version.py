"""Versions: of parsim, and of the contract that its JSON documents keep."""

__version__ = "0.1.0"
CONTRACT_VERSION = 1
