"""`pl.pallas_call`: blocks and grids, as TPU's and Triton's users spell them, derivatives, calls that are split over devices."""
