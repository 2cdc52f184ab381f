"""The server: the one control plane. HTTP in front, configuration in SQL, tasks in Redis."""
