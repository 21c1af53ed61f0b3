"""The version of parsim: in results, and in the package's metadata."""

VERSION = "0.1.0"
