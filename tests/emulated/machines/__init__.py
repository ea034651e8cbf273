"""Other machines than a Hopper: what is compiled for each, and how that runs in the emulator. No kernels of one subject: those are in the rooms beside."""
