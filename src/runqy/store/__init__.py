"""The only code that speaks SQL: queues, their history, and the original's further tables."""
