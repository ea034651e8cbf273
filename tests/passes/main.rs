//! The kernel IR as text.
mod round_trip;
