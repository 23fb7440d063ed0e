"""How good a model is, how sure that is, and where it fails."""
