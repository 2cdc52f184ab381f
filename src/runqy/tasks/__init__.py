"""The words: what a task is, which states it has, which limits it carries, how an attempt is decided."""
