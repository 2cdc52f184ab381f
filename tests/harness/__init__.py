"""What tests of several folders share: real servers, moved clocks, waiting for a condition."""
