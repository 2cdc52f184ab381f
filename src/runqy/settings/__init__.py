"""Settings of server and worker: flags, environment, files, defaults; validated once, then frozen."""
