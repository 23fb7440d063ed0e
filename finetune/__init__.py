"""Fine-tune a transformer on sentence pairs and see what it learned.

Modules stand on floors and import downwards only; `tests/test_floors.py` draws them.
"""

__version__ = "0.1.0"
