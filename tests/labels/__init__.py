"""Labels by a person."""
