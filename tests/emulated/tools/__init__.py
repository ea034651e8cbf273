"""What shows users what kernels do: prints, reports, timelines, drawings."""
