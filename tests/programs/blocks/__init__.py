"""Random `pl.pallas_call`s, held against JAX's interpreter bit for bit."""
