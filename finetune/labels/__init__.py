"""Labels by a person: which rows to ask about, what was answered, and how good a model would be."""
