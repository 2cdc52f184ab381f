"""The lifecycle as a machine: any interleaving of all operations against a plain model of the promises."""
