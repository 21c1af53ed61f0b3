"""Configurations and descriptions of other tools: read as scenarios and topologies, scenarios written as configurations."""
