"""What is wrong with kernels: one clear error each, at the user's line, and what the emulator finds while they run."""
