"""Engines carry out runs. Each one besides this machine is a module, listed in `registry`."""
