"""The worker: registers, deploys the code, keeps its process warm, feeds it tasks, and survives."""
