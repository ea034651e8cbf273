"""File tests: PTX and kernel IR with what is expected of it. `run.py` executes those of kind `run`."""
