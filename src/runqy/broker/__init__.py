"""The only code that speaks Redis: keys, scripts, transitions, reads, events, worker records."""
